"""Numbers of replicas that follow requests, as manifests and flags say them.

A manifest says ``replicas: {min: 2, max: 8, perReplica: 50}``. A record has the least number where a fixed one would
stand, so that releases that know of no load go by that, and the rest beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from registry.cli import options
from registry.cli.failure import usage
from registry.model.messages import Plain
from registry.model.status import MAX_PER_REPLICA
from registry.v1 import registry_pb2 as pb

_MOST = {"min": 10_000, "max": 10_000, "perReplica": MAX_PER_REPLICA}
_MEANINGS = {
    "min": "Number of replicas at least",
    "max": "Number of replicas at most",
    "perReplica": "Requests that one replica is to have at once, on average over a minute, waiting ones too",
}
_PATH = "spec.placement.replicas"


def without_range(content: Any) -> tuple[Any, dict[str, str]]:  # noqa: ANN401 - what somebody wrote as a manifest
    """A manifest's content with a range of replicas as records have it, and what is wrong with the range, by path."""
    placement = _at(_at(content, "spec"), "placement")
    if "byLoad" in placement:
        return content, {"spec.placement.byLoad": "unknown field; write replicas: {min: 2, max: 8, perReplica: 50}"}
    given = placement.get("replicas")
    if not isinstance(given, Mapping):
        return content, {}
    if problems := {f"{_PATH}.{field}": why for field, why in _problems(given).items()}:
        return content, problems
    by_load = {"max": given["max"], "perReplica": given["perReplica"]}
    spec = {**content["spec"], "placement": {**placement, "replicas": given["min"], "byLoad": by_load}}
    return {**content, "spec": spec}, {}


def _at(values: Any, field: str) -> Mapping[Any, Any]:  # noqa: ANN401 - as above
    found = values.get(field) if isinstance(values, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _problems(given: Mapping[Any, Any]) -> dict[str, str]:
    known = ", ".join(_MOST)
    found = {str(field): f"unknown field; known here: {known}" for field in given if field not in _MOST}
    found |= {field: "is missing; add it" for field in _MOST if field not in given}
    for field, most in _MOST.items():
        value = given.get(field, 1)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            found[field] = f"use a whole number from 1 to {most}"
    if not found and given["min"] > given["max"]:
        found["max"] = f"min {given['min']} is more than max {given['max']}; use a max of at least {given['min']}"
    return found


def with_range(manifest_spec: Plain) -> Plain:
    """A manifest's spec, as it comes from a record, with its range of replicas in one."""
    placement = manifest_spec.get("placement")
    if not isinstance(placement, dict) or "byLoad" not in placement:
        return manifest_spec
    rest = {field: value for field, value in placement.items() if field != "byLoad"}
    together = {"min": placement["replicas"], **placement["byLoad"]}
    return {**manifest_spec, "placement": {**rest, "replicas": together}}


def schema_with_range(schema: Plain) -> Plain:
    """The schema of manifests with a range of replicas as one of the forms of a number."""
    definitions: Any = schema["$defs"]
    whole = definitions["Placement"]
    whole["description"] = whole["description"].partition("\n")[0]  # the rest is about records
    placement = whole["properties"]
    del placement["byLoad"], definitions["ByLoad"]
    fields = {
        field: {"type": "integer", "minimum": 1, "maximum": most, "title": _MEANINGS[field]}
        for field, most in _MOST.items()
    }
    form = {"type": "object", "properties": fields, "required": [*_MOST], "additionalProperties": False}
    number = placement["replicas"]
    number["anyOf"].append(form)
    number["description"] = (
        "use all, a whole number from 1 to 10000, or a range such as {min: 2, max: 8, perReplica: 50}"
    )
    number["title"] = "Number of replicas that serve it, or all; or a range, within which it follows requests"
    return schema


@dataclass(frozen=True, slots=True)
class RangeOptions:
    """Flags by which a number of replicas follows requests."""

    max_replicas: Annotated[
        int | None,
        options.flag(
            "--max-replicas", metavar="N", min=1, help="Let the number follow requests, from --replicas to this one."
        ),
    ] = None
    per_replica: Annotated[
        int | None,
        options.flag(
            "--per-replica", metavar="N", min=1, help="With that: requests that one replica is to have at once."
        ),
    ] = None


def set_range(placement: pb.Placement, replicas: int | None, given: RangeOptions) -> None:
    """Gives a placement the number of replicas that flags name; a number alone is a fixed one.

    Raises:
        CliError: a range lacks a part, or a flag goes with another.
    """
    options.set_given(placement, replicas=replicas)
    if given.max_replicas is None and given.per_replica is None:
        if replicas is not None:
            placement.ClearField("by_load")
        return
    options.set_given(placement.by_load, max=given.max_replicas, per_replica=given.per_replica)
    by_load = placement.by_load
    lacking = {"--replicas": placement.replicas, "--max-replicas": by_load.max, "--per-replica": by_load.per_replica}
    if flags := [flag for flag, value in lacking.items() if not value]:
        raise usage(f"a number of replicas that follows requests needs {' and '.join(flags)}, too")
