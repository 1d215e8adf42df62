"""What commands of one line tell, in each form: check, publish, expect, config, replicas, explain."""

from __future__ import annotations

import json
import stat
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from registry.cli.commands import check, publish, replicas
from registry.cli.local_adapters import Looked
from registry.lora.findings import AdapterWarning, Finding
from registry.sources.credentials import Credentials
from registry.tools.convert.destination import Destination
from registry.tools.convert.options import DEFAULT_MAX_ERROR, ModuleOutcome
from registry.tools.convert.publishing import PublishedFiles
from registry.v1 import registry_pb2 as pb
from tests.unit.cli.fake_admin import FakeAdmin
from tests.unit.cli.test_followed import Time

NO_BASE = {
    "reason": "base_unknown",
    "message": "names and shapes were not compared: the pool has no base; see pool update --from",
}
OUTCOMES = [
    ModuleOutcome("q_proj", "rank", 16, 8, 16.0, 0.0123456, 12),
    ModuleOutcome("k_proj", "kept", 8, 8, 8.0, 0.0),
]


@pytest.fixture
def published(admin, monkeypatch) -> dict[str, Any]:
    """Plays the conversion: what it is asked, and (`gives`) what it gives."""
    seen: dict[str, Any] = {
        "gives": PublishedFiles("sha256:1", OUTCOMES, [AdapterWarning("odd", "it is odd")], was_there=False)
    }

    def convert(folder: Path, there: Destination, compared: Any, options: Any, initial: Any, held: Any) -> Any:
        seen.update(folder=folder, there=there, compared=compared, options=options, initial=initial, held=held)
        return seen["gives"]

    admin.answers["GetPool"] = [pb.Pool(name="dev")]
    monkeypatch.setattr(publish, "publish_folder", convert)
    return seen


@pytest.fixture
def here(tmp_path) -> Path:
    """A folder of this machine."""
    (tmp_path / "a").mkdir()
    return tmp_path / "a"


def test_a_publication_is_told_module_by_module(cli, published, here):
    ran = cli("publish", "a", "there")
    assert ran.code == 0, ran.err
    assert [" ".join(line.split()) for line in ran.out.splitlines()] == [
        "MODULE KIND TRAINED RANK RANK ERROR",
        "q_proj rank 16 8 1.23e-02",
        "k_proj kept 8 8 0.00e+00",
        "warning: odd: it is odd",
        f"warning: base_unknown: {NO_BASE['message']}",
        f"{published['there'].uri} is written",
        "sha256:1",
    ]
    value = cli("-o", "json", "publish", "a", "there").json
    assert value == {
        "uri": published["there"].uri,
        "modules": [one.as_dict() for one in OUTCOMES],
        "warnings": [{"reason": "odd", "message": "it is odd"}, NO_BASE],
        "digest": "sha256:1",
    }
    assert cli("-o", "name", "publish", "a", "there").out == "sha256:1\n"


def test_what_was_published_before_is_told_as_that(cli, published, here):
    published["gives"] = PublishedFiles("sha256:1", [], [], was_there=True)
    lines = cli("publish", "a", "there").out.splitlines()
    assert lines[1:] == [f"{published['there'].uri} was there already", "sha256:1"]


def test_a_conversion_is_asked_for_what_was_said(cli, published, here, monkeypatch):
    assert cli("publish", "a", "there").code == 0
    options = published["options"]
    assert (options.rank, options.dtype, options.max_error, options.has_initial) == (
        None,
        None,
        DEFAULT_MAX_ERROR,
        False,
    )
    assert (published["held"], published["initial"], published["folder"]) == (None, None, Path("a"))
    flags = "--rank 4 --dtype bfloat16 --max-error 0.5 --initial i --max-rank 9 --remap off --vision drop"
    assert cli("publish", "a", "there", *flags.split()).code == 0
    options = published["options"]
    assert (options.rank, options.dtype, options.max_error, options.has_initial) == (4, "BF16", 0.5, True)
    assert (published["initial"], published["compared"].limits.max_rank) == (Path("i"), 9)
    held: list[Any] = []
    monkeypatch.setattr(Credentials, "hold", lambda _self, name, place: held.append((name, place)) or "it")
    assert cli("publish", "a", "s3://b/a", "--credential", "mine").code == 0
    assert (published["held"], held) == ("it", [("mine", published["there"].place)])


FINDING = Finding("bad", "k", "1", "2", "change it")


@pytest.fixture
def looked(admin, monkeypatch) -> Any:
    """Lays down what a look at an adapter shows."""
    admin.answers["GetPool"] = [pb.Pool(name="dev")]

    def lay_down(*findings: Finding) -> None:
        monkeypatch.setattr(check, "look", lambda *_: Looked(findings, [AdapterWarning("odd", "it is odd")]))

    return lay_down


def test_an_adapter_that_is_right_is_told_as_that(cli, looked, here):
    looked()
    warnings = ["warning: odd: it is odd", f"warning: base_unknown: {NO_BASE['message']}"]
    ran = cli("check", "a")
    assert (ran.code, ran.out.splitlines()) == (0, [*warnings, "a is right"])
    assert (cli("-o", "name", "check", "a").code, cli("-o", "name", "check", "a").out) == (0, "")
    value = cli("-o", "json", "check", "a").json
    assert value == {"source": "a", "findings": [], "warnings": [{"reason": "odd", "message": "it is odd"}, NO_BASE]}


def test_an_adapter_that_is_wrong_is_told_with_each_finding(cli, looked, here):
    looked(FINDING)
    ran = cli("check", "a")
    lines = [" ".join(line.split()) for line in ran.out.splitlines()]
    assert (ran.code, lines[:2], len(lines)) == (4, ["REASON KEY FOUND EXPECTED REMEDY", "bad k 1 2 change it"], 4)
    ran = cli("-o", "name", "check", "a")
    assert (ran.code, ran.out) == (4, "bad\n")


@pytest.mark.parametrize(
    ("line", "variables", "pool", "base"),
    [
        ("check a --pool p", {}, "p", None),
        ("check a --base-model b", {"LORAPLANE_POOL": "v"}, None, "b"),
        ("check a", {"LORAPLANE_POOL": "v"}, "v", None),
        ("check a", {}, "dev", None),
    ],
)
def test_what_an_adapter_is_compared_with_is_what_was_said(
    cli, looked, here, admin, monkeypatch, line, variables, pool, base
):
    looked()
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    bases: list[str] = []
    monkeypatch.setattr(check, "base_here", lambda folder, flag: bases.append(f"{flag} {folder}"))
    assert cli(*line.split()).code == 0
    assert [one.name for one in admin.asked("GetPool")] == ([pool] if pool else [])
    assert bases == ([f"--base-model {base}"] if base else [])


def test_a_rank_that_is_said_goes_before_that_of_the_pool(cli, here, admin, monkeypatch):
    admin.answers["GetPool"] = [pb.Pool(name="dev", limits=pb.PoolLimits(max_rank=16, target_modules=["q_proj"]))]
    seen: list[Any] = []
    monkeypatch.setattr(check, "look", lambda _folder, _base, limits, _policy: seen.append(limits) or Looked(()))
    assert (cli("check", "a").code, cli("check", "a", "--max-rank", "4").code) == (0, 0)
    assert [(one.max_rank, one.target_modules) for one in seen] == [(16, ("q_proj",)), (4, ("q_proj",))]
    admin.answers["GetPool"] = [pb.Pool(name="dev")]
    assert cli("check", "a").code == 0
    assert (seen[-1].max_rank, seen[-1].target_modules) == (None, None)


@pytest.mark.parametrize("command", ["check s3://b/a --pool dev", "digest s3://b/a", "sign s3://b/a --key k"])
def test_a_source_of_another_host_is_waited_for_ten_minutes_or_as_long_as_is_said(cli, admin, monkeypatch, command):
    admin.answers["GetPool"] = [pb.Pool(name="dev")]
    monkeypatch.delenv("LORAPLANE_TIMEOUT")
    given: list[float] = []
    monkeypatch.setattr(check, "look", lambda *_: Looked(()))
    monkeypatch.setattr(
        "registry.cli.source_reader.SourceReader.fetched",
        lambda _self, _uri, _credential, seconds: given.append(seconds) or nullcontext(Path()),
    )
    monkeypatch.setattr(
        "registry.cli.source_reader.SourceReader.digest",
        lambda _self, _uri, _credential, seconds: given.append(seconds) or "sha256:1",
    )
    cli(*command.split())
    cli(*command.split(), "--timeout", "60")
    assert given == [600.0, 60.0]


@pytest.fixture
def config(cli, tmp_path, monkeypatch) -> Any:
    """Runs `loraplane config`; its file is in a folder that does not exist yet."""
    monkeypatch.setenv("LORAPLANE_CONFIG", str(tmp_path / "new/deep/contexts.json"))

    def call(line: str, *form: str) -> Any:
        return cli(*form, "config", *line.split())

    return call


def test_contexts_as_people_and_programs_read_them(config, tmp_path):
    assert config("set-context b --admin b:1 --protected --pool p --tls-ca ca").code == 0
    assert config("set-context a --admin a:1 --tls-cert c --tls-key k").code == 0
    assert config("set-context c --admin c:1").code == 0
    lines = [" ".join(line.split()) for line in config("get-contexts").out.splitlines()]
    assert lines == [
        "CURRENT NAME ADMIN POOL TLS PROTECTED",
        "a a:1 - yes no",
        "* b b:1 p yes yes",
        "c c:1 - no no",
    ]
    shown = config("use-context c").out.splitlines()[1]
    assert shown.split() == ["*", "c", "c:1", "-", "no", "no"]
    folder = tmp_path / "new/deep"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert json.loads((folder / "contexts.json").read_text())["current"] == "c"


@pytest.mark.parametrize("line", ["set-context b --pool x", "use-context b", "delete-context b"])
def test_what_could_not_be_written_is_not_told_as_done(config, monkeypatch, line):
    assert config("set-context b --admin b:1").code == 0

    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("registry.cli.contexts.os.open", full)
    ran = config(line)
    assert (ran.code, ran.out) == (2, "")
    assert "No space left on device" in ran.err


@pytest.fixture
def draining(admin, monkeypatch) -> Any:
    """A replica that drains, whose sidecar says in turn what it is needed for; and a clock that goes on by itself."""
    time = Time()
    monkeypatch.setattr(replicas, "time", time)
    admin.answers["DrainReplica"] = [pb.DrainReplicaResponse(changed=True, revision=8)]
    admin.answers["GetReplica"] = [pb.Replica(name="r1", pool="dev")]

    def lay_down(*needs: tuple[str, str] | None) -> Time:
        said = iter(needs)
        last: list[Any] = []

        def activity(_replica: object, _seconds: float) -> Any:
            last[:] = [next(said, *last)] if last else [next(said)]
            return {"drain": dict(zip(("reason", "needed"), last[0], strict=True))} if last[0] else {}

        monkeypatch.setattr(replicas, "activity_of", activity)
        return time

    return lay_down


def test_a_drain_is_waited_for_until_nothing_is_needed_there(cli, draining):
    """R20 drain."""
    time = draining(None, ("takeover", "1 of 3 are not served elsewhere"), ("nothing", "all is served elsewhere"))
    ran = cli("drain", "r1", "--wait", "--timeout", "60")
    assert (ran.code, ran.out.splitlines()[-1]) == (0, "replica r1: all is served elsewhere")
    assert time.pauses == [1.0, 1.0]


@pytest.mark.parametrize(
    ("need", "code", "told"),
    [
        (("takeover", "1 of 3 waits"), 6, "DEADLINE_EXCEEDED: replica r1 drains, and after 60 s: 1 of 3 waits"),
        (("nobody", "no other can"), 7, "ROLLOUT_FAILED: replica r1 drains, and after 60 s: no other can"),
        (None, 6, "its sidecar has not heard of that yet"),
    ],
)
def test_a_drain_that_does_not_end_in_time_says_what_it_waits_for(cli, draining, need, code, told):
    time = draining(need)
    ran = cli("drain", "r1", "--wait", "--timeout", "60")
    assert (ran.code, told in ran.err, time.now) == (code, True, 60.0)


def test_a_drain_that_nobody_times_waits_for_five_minutes(cli, draining, monkeypatch):
    monkeypatch.delenv("LORAPLANE_TIMEOUT")
    time = draining(("takeover", "1 of 3 waits"))
    assert (cli("drain", "r1", "--wait").code, time.now) == (6, 300.0)


def test_a_drain_in_a_dry_run_is_not_waited_for(cli, draining, admin: FakeAdmin):
    draining()
    ran = cli("drain", "r1", "--wait", "--dry-run")
    assert (ran.code, admin.asked("GetReplica")) == (0, [])


def test_programs_get_no_word_of_how_a_drain_ended(cli, draining):
    draining(("nothing", "all is served elsewhere"))
    assert cli("-o", "json", "drain", "r1", "--wait", "--timeout", "60").json["changed"] is True


EXPLAINED = {
    "adapter.spec.load": ["FIELD: adapter.spec.load", "TAKES: eager, lazy", "DEFAULT: eager"],
    "adapter.spec.priority": ["FIELD: adapter.spec.priority", "DEFAULT: 0"],
    "adapter.spec.credentials": ["FIELD: adapter.spec.credentials", "TAKES: text"],
    "adapter.spec.source.uri": ["FIELD: adapter.spec.source.uri", "TAKES: text"],
}


@pytest.mark.parametrize("field", EXPLAINED)
def test_a_field_is_explained_with_what_it_takes_and_its_default(cli, field):
    lines = [" ".join(line.split()) for line in cli("explain", field).out.splitlines()]
    assert [one for one in EXPLAINED[field] if one not in lines] == []
    has_default = any(line.startswith("DEFAULT") for line in lines)
    assert has_default == any(one.startswith("DEFAULT") for one in EXPLAINED[field])


def test_fields_of_fields_are_named_where_that_is_asked_for(cli):
    flat = [line.split()[0] for line in cli("explain", "adapter.spec").out.splitlines() if line[:1].islower()]
    deep = [line.split()[0] for line in cli("explain", "adapter.spec", "-R").out.splitlines() if line[:1].islower()]
    assert "source" in flat
    assert not [one for one in flat if "." in one]
    assert {"source.uri", "placement.replicas", "expect.answers.prompt"} <= set(deep)
    names = cli("-o", "name", "explain", "adapter.spec").out.split()
    assert names == flat
    assert cli("-o", "name", "explain", "ADAPTERS").out.split() == ["apiVersion", "kind", "metadata", "spec"]


def test_the_schema_of_a_field_stands_by_itself_for_programs(cli):
    """With what it refers to."""
    whole, field = cli("-o", "json", "explain").json, cli("-o", "json", "explain", "adapter.spec.placement").json
    assert field["$defs"] == whole["$defs"]
    assert "properties" in whole


def test_a_field_that_must_be_said_is_told(cli):
    lines = cli("explain", "adapter.spec.source").out.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("uri ")] == ["required,"]
    assert [line.split()[1] for line in lines if line.startswith("digest ")] != ["required,"]
