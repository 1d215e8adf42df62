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
from registry.cli.views.columns import ADAPTERS
from registry.cli.views.output import Format, Printer, yaml_document
from registry.cli.views.residency_view import AdapterRow
from registry.model.messages import spec_message
from registry.model.records import AdapterSpec, Canary, Expect, ExpectedAnswer, Placement, Prepare, SourceSpec, Strategy
from registry.v1 import registry_pb2 as pb
from tests.support.fake_admin import applied

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


def adapters(*names: str, pool: str = "dev", **labels: str) -> list[pb.Adapter]:
    source = pb.Source(uri="s3://b/x")
    return [
        pb.Adapter(name=name, pool=pool, generation=3, etag="9", spec=pb.AdapterSpec(source=source, labels=labels))
        for name in names
    ]


@pytest.fixture
def listed(admin):
    """Two pools; dev has a and b, of team x, and c."""

    def answer(request: pb.ListAdaptersRequest) -> pb.ListAdaptersResponse:
        found = [*adapters("a", "b", team="x"), *adapters("c")] if request.pool == "dev" else adapters("d", pool="ops")
        return pb.ListAdaptersResponse(adapters=found)

    admin.answers["ListAdapters"] = [answer]
    admin.answers["ListPools"] = [pb.ListPoolsResponse(pools=[pb.Pool(name="dev")], unreadable=["ops"])]


def written(text: str) -> list[str]:
    return [one["metadata"]["name"] for one in yaml.safe_load_all(text)]


def test_export_writes_all_pools_in_whatever_form(cli, listed):
    for form in ("table", "json", "name"):
        ran = cli("-o", form, "export")
        assert (ran.code, written(ran.out)) == (0, ["a", "b", "c", "d"])
        assert "pools that cannot be read: ops" in ran.err


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["--pool", "dev"], ["a", "b", "c"]),
        (["--pool", "dev", "-l", "team=x"], ["a", "b"]),
        (["-l", "team=y"], []),
        (["A", "d"], ["a", "d"]),
    ],
)
def test_export_of_some(cli, listed, arguments, names):
    ran = cli("export", *arguments)
    assert (ran.code, written(ran.out)) == (0, names)


def test_export_says_who_is_not_there(cli, listed):
    ran = cli("export", "a", "zz")
    assert (ran.code, written(ran.out)) == (3, ["a"])
    assert "there is no adapter 'zz'" in ran.err


def test_export_that_is_not_whole_fails(cli, admin):
    """A record that cannot be read is no silent gap."""
    admin.answers["ListAdapters"] = [pb.ListAdaptersResponse(adapters=adapters("a"), unreadable=["b"])]
    ran = cli("export")
    assert (ran.code, written(ran.out)) == (4, ["a"])
    assert "left out: dev/b" in ran.err
    assert cli("export", "a").code == 0


def test_get_o_manifest(cli, admin, listed):
    admin.answers["GetAdapter"] = adapters("a")
    assert written(cli("-o", "manifest", "get", "adapters", "--pool", "dev").out) == ["a", "b", "c"]
    assert written(cli("get", "adapter", "a", "--pool", "dev", "-o", "manifest").out) == ["a"]


def test_o_manifest_streams_documents(capsys):
    Printer(Format.MANIFEST).row(ADAPTERS, AdapterRow(adapters("a")[0]))
    assert written(capsys.readouterr().out) == ["a"]


@pytest.mark.parametrize("arguments", [["get", "pools"], ["history", "a"], ["apply", "-f", "x"]])
def test_nothing_else_has_a_manifest(cli, arguments):
    ran = cli(*arguments, "-o", "manifest")
    assert (ran.code, ran.out) == (2, "")
    assert "-o manifest" in ran.err


def test_a_folder_of_manifests(cli, admin, manifest, tmp_path):
    """-R reads what is below, and hidden files are nobody's manifests."""
    admin.answers["ApplyAdapters"] = [applied]
    for folder in ("m/deep", "m/.git", "empty"):
        (tmp_path / folder).mkdir(parents=True)
    manifest("b", file="m/b.yaml"), manifest("a", file="m/a.yml"), manifest("c", file="m/deep/c.json")
    for hidden in ("m/.git/x.yaml", "m/.x.yaml", "m/notes.txt"):
        (tmp_path / hidden).write_text("no: manifest")
    assert cli("apply", "-f", "m").code == 0
    assert cli("apply", "-f", "m", "-R").code == 0
    names = [[change.upsert.name for change in request.changes] for request in admin.asked("ApplyAdapters")]
    assert names == [["a", "b"], ["a", "b", "c"]]
    ran = cli("apply", "-f", "empty")
    assert ran.code == 2
    assert "folder without a manifest" in ran.err
    assert "-R" in ran.err
    assert "-R" not in cli("apply", "-R", "-f", "empty").err


def test_a_folder_that_cannot_be_read(cli, tmp_path, monkeypatch):
    def walk(name, onerror):
        onerror(PermissionError(13, "Permission denied", name))
        yield from ()

    (tmp_path / "m").mkdir()
    monkeypatch.setattr("registry.cli.change_set.os.walk", walk)
    ran = cli("apply", "-f", "m")
    assert (ran.code, "cannot read m: Permission denied" in ran.err) == (2, True)


def test_export_of_one_that_cannot_be_read_fails(cli, admin):
    """And of others says nothing."""
    admin.answers["ListAdapters"] = [pb.ListAdaptersResponse(adapters=adapters("a"), unreadable=["b", "c"])]
    ran = cli("export", "a", "B", "--pool", "dev")
    assert (ran.code, written(ran.out)) == (4, ["a"])
    assert "were left out: dev/b;" in ran.err
