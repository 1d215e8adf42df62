"""Manifests: what is read, that every complaint names its place and remedy, and what is exported, with nothing lost."""

from __future__ import annotations

import copy
import json
import re
import string
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from registry.cli.change.manifest import (
    _WRITTEN,
    Manifest,
    _as_written,
    check_unique,
    manifest_dict,
    manifest_of,
    manifest_schema,
    read_manifests,
)
from registry.cli.views.output import yaml_document
from registry.formats.documents import read_documents
from registry.model.errors import InvalidArgument, Reason
from registry.model.expected_answers import Expect, ExpectedAnswer
from registry.model.messages import spec_message
from registry.model.records import AdapterSpec, Canary, Placement, Prepare, SourceSpec, Strategy
from registry.model.status import ByLoad
from registry.v1 import registry_pb2 as pb

HEAD = "apiVersion: loraplane/v1\nkind: Adapter\n"
META = "metadata: {name: sql, pool: dev}\n"
GOOD = HEAD + META + "spec: {source: {uri: 'file:///adapters/sql'}}\n"
DIGEST = "sha256:" + "ab" * 32


def with_spec(more: str) -> str:
    """A manifest whose spec says more."""
    return GOOD.replace("}}\n", f"}}, {more}}}\n")


def expecting(answer: str) -> str:
    """A manifest with one expected answer."""
    return with_spec(f"expect: {{answers: [{{{answer}}}]}}")


def ranging(replicas: str) -> str:
    """A manifest with a range of replicas."""
    return with_spec(f"placement: {{replicas: {{{replicas}}}}}")


def complaint(text: str) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as caught:
        check_unique(read_manifests(text, "a.yaml"))
    return caught.value


def told(read: Callable[[], object]) -> str:
    """What a reader complains of; empty if it does not."""
    try:
        read()
    except InvalidArgument as error:
        return str(error)
    return ""


def test_documents_are_counted_and_several_mistakes_are_told_at_once():
    """A user need not run it once for each mistake; a page of them is cut. Empty documents are skipped; what is left
    out has the default.
    """
    places = [placed.place for placed in read_manifests(f"---\n{GOOD}---\n---\n{GOOD.replace('sql', 'law')}", "a.yaml")]
    assert places == ["a.yaml: document 1 (line 2)", "a.yaml: document 3 (line 8)"]
    error = complaint("a: 1\nb: 2\nc: 3\nd: 4\n")
    assert (error.message.count("; also "), error.message.endswith("; and 3 more")) == (4, True)
    assert "more" not in complaint("a: 1\n").message
    told = complaint("a: 'b").message
    assert (told.startswith("not a YAML manifest: found unexpected end of stream"), "quotes" in told) == (True, False)
    arguments = {"apiVersion": "loraplane/v1", "kind": "Adapter", "metadata": {"name": "sql", "pool": "dev"}}
    with pytest.raises(InvalidArgument, match=r"add: spec\.source\.digest"):
        manifest_of({**arguments, "spec": {"source": {"uri": "file:///x", "digest": "md5:0"}}}, "add")
    spec = read_manifests(GOOD, "a.yaml")[0].manifest.message().spec
    assert (spec.load, spec.priority, spec.placement.replicas, spec.HasField("strategy")) == ("eager", 0, 0, False)
    assert (spec.prepare.remap, spec.prepare.vision, spec.prepare.dora) == ("auto", "reject", "reject")
    assert (spec.base_model, spec.credentials, spec.source.digest) == ("", "", "")
    few = read_manifests(GOOD.replace("{source", "{strategy: {canary: {replicas: 2}}, source"), "a.yaml")[0].manifest
    assert few.message().spec.strategy == pb.Strategy(canary_replicas="2", promote="auto", soak_seconds=60)
    check_unique(read_manifests(f"{GOOD}---\n{GOOD.replace('pool: dev', 'pool: other')}", "a.yaml"))


WRONG_TTLS = ["0", "-1", "0s", "9s", "-10m", "9", "1w", "1.5h", "true", "[]", "3651d", "''", "soon", "999999999999999d"]
TTL_REMEDY = "write a number and s, m, h or d, such as 7d, from 10s to 3650d, or leave it out"
STRATEGIES = {
    "{}": ("canary", "is missing; add it"),
    "{canary: {}}": ("canary.replicas", "is missing; add it"),
    "{canary: 2}": ("canary", "must be a mapping"),
    "{canary: {replicas: 0}}": ("canary.replicas", "from 1 to 10000, or a share"),
    "{canary: {replicas: '0%'}}": ("canary.replicas", "from 1 to 10000, or a share"),
    "{canary: {replicas: true}}": ("canary.replicas", "from 1 to 10000, or a share"),
    "{canary: {replicas: 99999999999}}": ("canary.replicas", "from 1 to 10000"),
    "{canary: {replica: 1}}": ("canary.replica", "did you mean replicas?"),
    "{canary: {replicas: 1}, promote: soon}": ("promote", "'auto' or 'manual'"),
    "{canary: {replicas: 1}, maxFailure: 1}": ("maxFailure", "did you mean maxFailures?"),
    "{canary: {replicas: 1}, maxFailures: -1}": ("maxFailures", "a whole number from 0"),
    "{canary: {replicas: 1}, maxFailures: 99999999999}": ("maxFailures", "to 10000"),
    "{canary: {replicas: 1}, soak: 1m}": ("soak", "a whole number of seconds from 0"),
    "{canary: {replicas: 1}, soak: 99999999999}": ("soak", "which is a week"),
    "{canary: {replicas: 1}, bluegreen: true}": ("bluegreen", "known here: canary, promote, maxFailures, soak"),
}
RANGES = {
    "min: 9, max: 8, perReplica: 50": ("max", "min 9 is more than max 8; use a max of at least 9"),
    "min: 2, max: 8, perReplica: 0": ("perReplica", "use a whole number from 1 to 1000000"),
    "min: 2, max: 10001, perReplica: 50": ("max", "use a whole number from 1 to 10000"),
    "min: true, max: 8, perReplica: 50": ("min", "use a whole number from 1 to 10000"),
    "min: '2', max: 8, perReplica: 50": ("min", "use a whole number from 1 to 10000"),
    "min: 1, max: 2": ("perReplica", "is missing; add it"),
    "min: 2, max: 8, per_replica: 1": ("per_replica", "unknown field; known here: min, max, perReplica"),
}
# Ranges in the form that a record has, which is none of a manifest.
OWN = ("replicas: 2, byLoad: {max: 8, perReplica: 50}", "byLoad: null")


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("# only a comment\n", "a.yaml", "is empty"),
        ("hello\n", "a.yaml: document 1 (line 1): the document", "must be a mapping"),
        ("a: [\n", "a.yaml: document 1, line 2", "not a YAML manifest"),
        ("a: b\x00", "a.yaml: document 1", "not a YAML manifest"),
        ("a: *nowhere\n", "a.yaml: document 1, line 1", "undefined alias"),
        ("a: &x [*x]\n", "a.yaml: document 1, line 1", "recursive"),
        ("a: !!python/object:os.system x\n", "a.yaml: document 1, line 1", "could not determine a constructor"),
        (GOOD + "---\n" + GOOD + "kind: Adapter\n", "a.yaml: document 2, line 10", "stands twice"),
        (GOOD.replace("pool: dev", "pool: dev, pool: x"), "a.yaml: document 1, line 3", "'pool' stands twice"),
        (GOOD + "1: x\n", "a.yaml: document 1, line 5", "put it in quotes"),
        (GOOD + "? [a]\n: x\n", "a.yaml: document 1, line 5", "put it in quotes"),
        (GOOD.replace("name: sql", "name: 5"), "metadata.name", "must be text, found a number; put it in quotes"),
        (GOOD.replace("name: sql", "name: [sql]"), "metadata.name", "must be text, found a list"),
        (GOOD.replace("pool: dev", "pool: 2026-01-01"), "metadata.pool", "must be text, found a date"),
        (GOOD.replace("pool: dev", "pool: dev, labels: {a: true}"), "metadata.labels.a", "found true or false"),
        (GOOD.replace("pool: dev", "pool: dev, lables: {}"), "metadata.lables", "did you mean labels?"),
        (with_spec("xyz: 1"), "spec.xyz", "unknown field; known here: source, baseModel, load"),
        (with_spec("base_model: x"), "spec.base_model", "did you mean baseModel?"),
        (GOOD.replace("'}}", "', sha: x}}"), "spec.source.sha", "unknown field; known here: uri, digest"),
        (with_spec("placement: {replicas: true}"), "spec.placement.replicas", "all, or a whole"),
        (with_spec("prepare: {dora: convert}"), "spec.prepare.dora", "must be 'reject' or 'strip'"),
        *(
            (GOOD.replace("file:///adapters", uri), "spec.source.uri", "write file:///absolute/path")
            for uri in ("file:adapters", "file://adapters", "./adapters", "/adapters")
        ),
        (GOOD.replace("name: sql", "name: 2026-13-45"), "a.yaml: document 1, line 3, column 18", "put text in quotes"),
        (GOOD.replace("name: sql", "name: 0x_"), "a.yaml: document 1, line 3", "put text in quotes"),
        (with_spec(f"priority: {'1' * 5000}"), "a.yaml: document 1, line 4", "put text in quotes"),
        (GOOD.replace("kind: Adapter", "kind: !!timestamp x"), "a.yaml: document 1, line 2", "put text in quotes"),
        (GOOD.replace("kind: Adapter", "kind: !!int ''"), "a.yaml: document 1, line 2", "put text in quotes"),
        (with_spec('description: "a\\nb"'), "spec.description", "without control characters"),
        (with_spec(f"description: {'x' * 1025}"), "spec.description", "at most 1024 characters"),
        (with_spec("labels: {a: b}"), "spec.labels", "stand in metadata"),
        (with_spec("priority: 99999999999"), "spec.priority", "from -1000 to 1000"),
        (with_spec("priority: -99999999999"), "spec.priority", "from -1000 to 1000"),
        (with_spec("placement: {replicas: 99999999999}"), "placement.replicas", "from 1 to 10000"),
        (expecting("prompt: [], tokens: [2]"), "spec.expect.answers.0.prompt", "1 to 64 numbers of tokens"),
        (expecting("prompt: [1], tokens: [-2]"), "spec.expect.answers.0.tokens.0", "1 to 16 numbers of tokens"),
        (expecting("prompt: [1], tokens: [2], logprob: [0]"), "answers.0.logprob", "did you mean logprobs?"),
        (expecting("prompt: [1], tokens: [2], logprobs: [.nan]"), "answers.0.logprobs", "from -1000 to 0 for each"),
        (expecting("prompt: [1], tokens: [2, 3], logprobs: [-1]"), "spec.expect.answers.0", "one logprob of each"),
        (with_spec("expect: {answers: []}"), "spec.expect.answers", "give 1 to 4 answers"),
        (
            with_spec("expect: {answers: [{prompt: [1], tokens: [2]}], tolerance: .inf}"),
            "spec.expect.tolerance",
            "from 0.0001 to 10",
        ),
        (with_spec(f"load: {'x' * 5000}"), "spec.load", "must be 'eager' or 'lazy', found 'xxx"),
        *((with_spec(f"ttl: {ttl}"), "spec.ttl", TTL_REMEDY) for ttl in WRONG_TTLS),
        *((with_spec(f"strategy: {text}"), f"spec.strategy.{path}", what) for text, (path, what) in STRATEGIES.items()),
        *((ranging(text), f"spec.placement.replicas.{path}", what) for text, (path, what) in RANGES.items()),
        *(
            (with_spec(f"placement: {{{one}}}"), "spec.placement.byLoad", "write replicas: {min: 2, max: 8")
            for one in OWN
        ),
    ],
)
def test_complaints_name_place_and_remedy(text, where, what):
    """R14 nack: in one line."""
    error = complaint(text)
    assert (error.reason, where in (error.field or ""), what in error.message) == (Reason.INVALID_MANIFEST, True, True)
    assert ("\n" not in str(error), len(str(error)) < 500) == (True, True)


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused_in_one_line(text):
    assert "\n" not in told(lambda: check_unique(read_manifests(text, "a.yaml")))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    "apiVersion kind metadata spec name pool source uri digest placement replicas x".split()
                ),
                inner,
                max_size=5,
            )
        ),
        max_leaves=20,
    )
)
def test_any_document_is_read_or_refused_with_its_field(content):
    complaint = told(lambda: manifest_of(content, "a.yaml: document 1"))
    assert not complaint or complaint.startswith("a.yaml: document 1: ")


@pytest.mark.parametrize("form", [_WRITTEN, _as_written(Manifest)], ids=["as it is", "made anew"])
def test_a_manifest_is_as_strict_at_every_depth(form):
    """Lists and what may be left out have a manifest's names too, and nothing else."""
    answers = [{"prompt": [1], "tokens": [2], "logprobs": [-0.5]}]
    whole = {
        "apiVersion": "loraplane/v1",
        "kind": "Adapter",
        "metadata": {"name": "sql", "pool": "dev", "labels": {"team": "x"}},
        "spec": {"source": {"uri": "s3://b/a"}, "expect": {"answers": answers}, "baseModel": "m", "strategy": None},
    }
    read = form.model_validate(whole)
    assert (read.message().spec.expect.answers[0].prompt, read.spec.base_model, read.spec.strategy) == ([1], "m", None)
    for path in ("", "metadata", "spec", "spec source", "spec expect", "spec expect answers"):
        wrong = copy.deepcopy(whole)
        place: Any = wrong
        for step in path.split():
            place = place[step]
        place = place[0] if isinstance(place, list) else place
        place["odd"] = 1
        with pytest.raises(ValidationError, match="odd"):
            form.model_validate(wrong)


TTLS = {"7d": 604_800, "10m": 600, "10s": 10, "3650d": 315_360_000, "90": 90, "null": None}


@pytest.mark.parametrize("ttl", TTLS)
def test_a_time_to_live_is_a_span_or_seconds(ttl):
    """And written back as the shortest span."""
    message = read_manifests(GOOD.replace("{source", f"{{ttl: {ttl}, source"), "a.yaml")[0].manifest.message()
    assert (message.spec.ttl_seconds if message.spec.HasField("ttl_seconds") else None) == TTLS[ttl]
    said = manifest_dict(message)["spec"]
    assert (said.get("ttl") or "null") == ("90s" if ttl == "90" else ttl)


@pytest.mark.parametrize("text", ["a: " + "[" * 200_000, "a: " + "[" * 5000 + "]" * 5000, "- " * 5000])
def test_deep_nesting_is_refused_not_a_crash(text):
    """The depth is counted anew for each document."""
    error = complaint(text)
    assert (error.field, error.message) == ("a.yaml", "is nested too deeply; make it flatter")
    deep = "[" * 49 + "1" + "]" * 49
    assert len(read_documents(f"a: {deep}\n---\nb: {deep}\n", "a.yaml")) == 2
    with pytest.raises(InvalidArgument, match="nested too deeply"):
        read_documents(f"a: [{deep}]\n", "a.yaml")


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
    Placement: {"replicas": st.just("all") | st.integers(1, 10_000), "selector": LABELS, "by_load": st.none()},
    Canary: {"replicas": st.integers(1, 10_000) | st.integers(1, 100).map("{}%".format)},
    Prepare: {
        "remap": st.sampled_from(["auto", "off"]),
        "vision": st.sampled_from(["reject", "drop", "keep"]),
        "dora": st.sampled_from(["reject", "strip"]),
        "drop": st.lists(WORD, max_size=3),
    },
}
RANGED = st.builds(
    lambda least, more, per_replica: Placement(
        replicas=least, by_load=ByLoad(max=least + more, per_replica=per_replica)
    ),
    st.integers(1, 5_000),
    st.integers(0, 5_000),
    st.integers(1, 1_000_000),
)
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
    "placement": st.builds(Placement, **FIELDS[Placement]) | RANGED,
    "prepare": st.builds(Prepare, **FIELDS[Prepare]),
    "credentials": st.none() | WORD,
    "labels": LABELS,
    "strategy": st.none() | st.builds(Strategy, **FIELDS[Strategy]),
    "description": st.none() | PRINTABLE,
    "expect": st.none() | st.builds(Expect, **FIELDS[Expect]),
    "enabled": st.booleans(),
    "ttl_seconds": st.none() | st.integers(10, 315_360_000),
    "ttl_from": st.none() | st.sampled_from(["change", "use"]),
    "keep": st.none() | st.integers(2, 32),
}


@given(st.builds(AdapterSpec, **FIELDS[AdapterSpec]))
def test_what_is_exported_makes_the_same_adapter(spec):
    """Every field of the record comes back as it was; defaults are not said."""
    assert {kind: {*fields} for kind, fields in FIELDS.items()} == {kind: {*kind.model_fields} for kind in FIELDS}
    adapter = pb.Adapter(name="acme/sql", pool="dev", generation=7, spec=spec_message(spec))
    text = yaml_document(manifest_dict(adapter))
    (placed,) = read_manifests(text, "all.yaml")
    message = placed.manifest.message()
    assert (message.name, message.pool, message.spec) == ("acme/sql", "dev", adapter.spec)
    bare = spec_message(AdapterSpec(source=SourceSpec(uri="s3://b/sql")))
    assert manifest_dict(pb.Adapter(name="sql", pool="dev", spec=bare)) == {
        "apiVersion": "loraplane/v1",
        "kind": "Adapter",
        "metadata": {"name": "sql", "pool": "dev"},
        "spec": {"source": {"uri": "s3://b/sql"}},
    }


def test_a_range_of_replicas_becomes_the_least_number_and_what_stands_beside_it_and_back():
    placement = {"replicas": {"min": 2, "max": 8, "perReplica": 50}, "selector": {"gpu": "a"}}
    message = read_manifests(with_spec(f"placement: {json.dumps(placement)}"), "a.yaml")[0].manifest.message()
    by_load = pb.ByLoad(max=8, per_replica=50)
    assert message.spec.placement == pb.Placement(replicas=2, selector={"gpu": "a"}, by_load=by_load)
    assert manifest_dict(message)["spec"]["placement"] == placement
    assert complaint(with_spec("placement: {xyz: 1}")).message.endswith("known here: replicas, selector")


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
        *((f"{form}export", "", 0, "abcd", "that cannot be read: ops") for form in ("", "-o json ", "-o name ")),
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


def test_a_name_that_several_pools_have_is_exported_of_each(cli, admin):
    spec = pb.AdapterSpec(source=pb.Source(uri="s3://b/x"))
    admin.answers["ListPools"] = [pb.ListPoolsResponse(pools=[pb.Pool(name="dev"), pb.Pool(name="ops")])]
    admin.answers["ListAdapters"] = [
        lambda asked: pb.ListAdaptersResponse(adapters=[pb.Adapter(name="a", pool=asked.pool, spec=spec)])
    ]
    ran = cli("export", "a")
    assert (ran.code, [one["metadata"]["pool"] for one in yaml.safe_load_all(ran.out)]) == (0, ["dev", "ops"])


def test_every_field_has_a_meaning_in_words_of_a_manifest():
    """What explain shows, and editors: a meaning of its own, not how to write it, and no name that a manifest lacks."""
    schema = manifest_schema()
    fields = {
        f"{kind}.{name}": field
        for kind, one in (("Manifest", schema), *schema["$defs"].items())
        for name, field in one["properties"].items()
    }
    titles = {path: one.get("title", "") for path, one in fields.items()}
    assert [path for path, title in titles.items() if " " not in title or title.endswith(".")] == []
    of_validation = re.compile(r"(?i)input should|valid|string|integer")
    assert [path for path, title in titles.items() if of_validation.search(title)] == []
    assert len({*titles.values()}) == len(titles) > 30
    texts = {path: f"{titles[path]} {one.get('description', '')}" for path, one in fields.items()}
    assert [path for path, text in texts.items() if re.search(r"\w_\w", path + text)] == []
