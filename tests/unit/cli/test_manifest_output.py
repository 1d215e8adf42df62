"""export and get -o manifest: what apply takes, with nothing lost on the way."""

from __future__ import annotations

import string
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from registry.cli.manifest import manifest_dict, read_manifests
from registry.cli.views.output import yaml_document
from registry.model.messages import spec_message
from registry.model.records import AdapterSpec, Canary, Expect, ExpectedAnswer, Placement, Prepare, SourceSpec, Strategy
from registry.v1 import registry_pb2 as pb

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
PRINTABLE = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=20)
WORD = st.text(string.ascii_letters + string.digits + "._-", min_size=1, max_size=12)
LABELS = st.dictionaries(
    st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._/-]{0,9}\Z")
    | st.sampled_from(["yes", "null", "1", "2020-01-01", "0x1", "1e3", "true", "base_model"]),
    TEXT
    | st.sampled_from(
        ["yes", "off", "null", "~", "1", "2020-01-01", "=", "<<", "0x1", "1_0", "1e3", "", " x ", "a: b", "#"]
    ),
    max_size=4,
)
DIGEST = st.just("sha256:" + "0123456789abcdef" * 4)
FIELDS: dict[type[BaseModel], dict[str, st.SearchStrategy[Any]]] = {
    SourceSpec: {
        "uri": st.from_regex(r"\As3://[^\s\x00-\x1f]{1,20}\Z"),
        "digest": st.none() | DIGEST,
        "signature": st.none() | st.just("A" * 86 + "=="),
    },
    Placement: {"replicas": st.just("all") | st.integers(1, 10_000), "selector": LABELS},
    Canary: {"replicas": st.integers(1, 10_000) | st.integers(1, 100).map("{}%".format)},
    Prepare: {
        "remap": st.sampled_from(["auto", "off"]),
        "vision": st.sampled_from(["reject", "drop", "keep"]),
        "dora": st.sampled_from(["reject", "strip"]),
        "drop": st.lists(WORD, max_size=3),
    },
}
FIELDS[Strategy] = {
    "canary": st.builds(Canary, **FIELDS[Canary]),
    "promote": st.sampled_from(["auto", "manual"]),
    "max_failures": st.integers(0, 10_000),
    "soak_seconds": st.integers(0, 7 * 86_400),
}
FIELDS[ExpectedAnswer] = {
    "prompt": st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=64),
    "tokens": st.lists(st.integers(0, 2**31 - 1), min_size=3, max_size=3),
    "logprobs": st.lists(st.floats(-1000, 0), min_size=3, max_size=3) | st.just([]),
}
FIELDS[Expect] = {
    "answers": st.lists(st.builds(ExpectedAnswer, **FIELDS[ExpectedAnswer]), min_size=1, max_size=4),
    "tolerance": st.floats(0.0001, 10),
}
FIELDS[AdapterSpec] = {
    "source": st.builds(SourceSpec, **FIELDS[SourceSpec]),
    "base_model": st.none() | PRINTABLE,
    "load": st.sampled_from(["eager", "lazy"]),
    "priority": st.integers(-1000, 1000),
    "placement": st.builds(Placement, **FIELDS[Placement]),
    "prepare": st.builds(Prepare, **FIELDS[Prepare]),
    "credentials": st.none() | WORD,
    "labels": LABELS,
    "strategy": st.none() | st.builds(Strategy, **FIELDS[Strategy]),
    "description": st.none() | PRINTABLE,
    "expect": st.none() | st.builds(Expect, **FIELDS[Expect]),
}


@pytest.mark.parametrize("kind", FIELDS, ids=lambda kind: kind.__name__)
def test_every_field_of_the_record_is_tried(kind):
    assert set(FIELDS[kind]) == set(kind.model_fields)


@given(st.builds(AdapterSpec, **FIELDS[AdapterSpec]))
def test_what_is_exported_makes_the_same_adapter(spec):
    """Every field of the record comes back as it was."""
    adapter = pb.Adapter(name="acme/sql", pool="dev", generation=7, spec=spec_message(spec))
    text = yaml_document(manifest_dict(adapter))
    (placed,) = read_manifests(text, "all.yaml")
    message = placed.manifest.message()
    assert (message.name, message.pool) == ("acme/sql", "dev")
    assert message.spec == adapter.spec


def test_defaults_are_not_said():
    spec = spec_message(AdapterSpec(source=SourceSpec(uri="s3://b/sql")))
    assert manifest_dict(pb.Adapter(name="sql", pool="dev", spec=spec)) == {
        "apiVersion": "loraplane/v1",
        "kind": "Adapter",
        "metadata": {"name": "sql", "pool": "dev"},
        "spec": {"source": {"uri": "s3://b/sql"}},
    }


def written(text: str) -> list[str]:
    return [one["metadata"]["name"] for one in yaml.safe_load_all(text)]


@pytest.fixture
def listed(admin) -> None:
    """Two pools, of which one cannot be read; dev has a and b, of team x, and c, and records that cannot be read."""

    def found(pool: str, names: str, unreadable: str = "", **labels: str) -> pb.ListAdaptersResponse:
        spec = pb.AdapterSpec(source=pb.Source(uri="s3://b/x"), labels=labels)
        made = [pb.Adapter(name=name, pool=pool, generation=3, etag="9", spec=spec) for name in names]
        return pb.ListAdaptersResponse(adapters=made, unreadable=list(unreadable))

    def answer(request: pb.ListAdaptersRequest) -> pb.ListAdaptersResponse:
        if request.pool != "dev":
            return found("ops", "d")
        both, torn = found("dev", "ab", team="x"), found("dev", "c", admin.torn)
        both.MergeFrom(torn)
        return both

    admin.torn = ""
    admin.answers["ListAdapters"] = [answer]
    admin.answers["ListPools"] = [pb.ListPoolsResponse(pools=[pb.Pool(name="dev")], unreadable=["ops"])]


@pytest.mark.parametrize(
    ("line", "torn", "code", "names", "told"),
    [
        ("export", "", 0, "abcd", "pools that cannot be read: ops"),
        ("-o json export", "", 0, "abcd", "pools that cannot be read: ops"),
        ("-o name export", "", 0, "abcd", "pools that cannot be read: ops"),
        ("export --pool dev", "", 0, "abc", ""),
        ("export --pool dev -l team=x", "", 0, "ab", ""),
        ("export -l team=y", "", 0, "", ""),
        ("export A d", "", 0, "ad", ""),
        ("export a zz", "", 3, "a", "there is no adapter 'zz'"),
        ("export --pool dev", "t", 4, "abc", "left out: dev/t"),
        ("export a --pool dev", "t", 0, "a", ""),
        ("export a T --pool dev", "tu", 4, "a", "were left out: dev/t;"),
        ("get adapters --pool dev -o manifest", "", 0, "abc", ""),
        ("get adapter a --pool dev -o manifest", "", 0, "a", ""),
    ],
)
def test_what_is_exported_is_whole_or_fails(cli, admin, listed, line, torn, code, names, told):
    """A record that cannot be read is no silent gap; of others nothing is said."""
    admin.torn = torn
    admin.answers["GetAdapter"] = [
        pb.Adapter(name="a", pool="dev", spec=pb.AdapterSpec(source=pb.Source(uri="s3://b/x")))
    ]
    ran = cli(*line.split())
    assert (ran.code, "".join(written(ran.out)), told in ran.err) == (code, names, True)
