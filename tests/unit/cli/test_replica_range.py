"""A range of replicas in a manifest: as it is written, as a record has it, and what is wrong with it."""

from __future__ import annotations

from typing import Any

import pytest

from registry.cli.change.manifest import manifest_dict, manifest_of, manifest_schema
from registry.model.errors import InvalidArgument
from registry.v1 import registry_pb2 as pb

RANGE = {"min": 2, "max": 8, "perReplica": 50}


def manifest(placement: Any) -> dict[str, Any]:
    about = {"apiVersion": "loraplane/v1", "kind": "Adapter", "metadata": {"name": "sql", "pool": "dev"}}
    return {**about, "spec": {"source": {"uri": "file:///a"}, "placement": placement}}


def test_a_range_becomes_the_least_number_and_what_stands_beside_it_and_back():
    written = manifest({"replicas": RANGE, "selector": {"gpu": "a"}})
    message = manifest_of(written, "a.yaml").manifest.message()
    by_load = pb.ByLoad(max=8, per_replica=50)
    assert message.spec.placement == pb.Placement(replicas=2, selector={"gpu": "a"}, by_load=by_load)
    assert manifest_dict(message) == written
    fixed = manifest({"replicas": 2})
    assert manifest_dict(manifest_of(fixed, "a.yaml").manifest.message()) == fixed


@pytest.mark.parametrize(
    ("given", "field", "what"),
    [
        ({**RANGE, "min": 9}, "max", "min 9 is more than max 8; use a max of at least 9"),
        ({**RANGE, "perReplica": 0}, "perReplica", "use a whole number from 1 to 1000000"),
        ({**RANGE, "max": 10_001}, "max", "use a whole number from 1 to 10000"),
        ({**RANGE, "min": True}, "min", "use a whole number from 1 to 10000"),
        ({**RANGE, "min": "2"}, "min", "use a whole number from 1 to 10000"),
        ({"min": 1, "max": 2}, "perReplica", "is missing; add it"),
        ({**RANGE, "per_replica": 1}, "per_replica", "unknown field; known here: min, max, perReplica"),
    ],
)
def test_a_range_that_cannot_be_is_refused_by_its_field(given: dict[str, Any], field: str, what: str):
    with pytest.raises(InvalidArgument) as caught:
        manifest_of(manifest({"replicas": given}), "a.yaml")
    assert (caught.value.field, what in caught.value.message) == (f"a.yaml: spec.placement.replicas.{field}", True)


@pytest.mark.parametrize("placement", [{"replicas": 2, "byLoad": {"max": 8, "perReplica": 50}}, {"byLoad": None}])
def test_the_form_of_a_record_is_none_of_a_manifest(placement: dict[str, Any]):
    with pytest.raises(InvalidArgument, match=r"write replicas: \{min: 2, max: 8, perReplica: 50\}"):
        manifest_of(manifest(placement), "a.yaml")
    with pytest.raises(InvalidArgument, match=r"known here: replicas, selector$"):
        manifest_of(manifest({"replica": 2, "xyz": 1}), "a.yaml")


def test_editors_know_both_forms():
    """The schema has a range as one of the forms of a number, and not what a record makes of it."""
    schema: Any = manifest_schema()
    placement = schema["$defs"]["Placement"]["properties"]
    assert (sorted(placement), "ByLoad" in schema["$defs"]) == (["replicas", "selector"], False)
    *others, form = placement["replicas"]["anyOf"]
    assert [one["type"] for one in others] == ["string", "integer"]
    assert (form["required"], form["additionalProperties"]) == (["min", "max", "perReplica"], False)
    assert {field: (one["minimum"], one["maximum"]) for field, one in form["properties"].items()} == {
        "min": (1, 10_000),
        "max": (1, 10_000),
        "perReplica": (1, 1_000_000),
    }
