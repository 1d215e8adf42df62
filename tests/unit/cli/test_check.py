"""check, digest and publish: what is looked at, how it is told, and with what it is compared."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import pytest

from registry.cli.commands import check, publish
from registry.cli.local_adapters import Looked, base_message, base_of_pool
from registry.cli.source_reader import SourceReader
from registry.client.upload.destination import Destination
from registry.lora.base_directory import read_base
from registry.lora.findings import AdapterWarning, Finding
from registry.sources.credentials import Credentials
from registry.tools.convert.options import DEFAULT_MAX_ERROR, ModuleOutcome
from registry.tools.convert.publishing import PublishedFiles
from registry.v1 import registry_pb2 as pb
from tests.corpus.drafts import LLAMA, Architecture
from tests.support.signing import make_key


@pytest.fixture
def base(tmp_path) -> Path:
    return LLAMA.write_base(tmp_path / "base")


def test_what_the_engine_ignores_is_refused_dropped_or_explained(cli, tmp_path, base):
    """R22 applied-whole: the same words in check, in a pool's record, and in a row for each kind of matrix. A wrong one
    ends with 4; programs read reason, key, found, expected and remedy of each.
    """
    gate = "model.layers.0.mlp.gate"
    moe = Architecture("moe", {**LLAMA.modules, gate: (4, 32)}, (*LLAMA.targets, gate))
    of_moe = moe.write_base(tmp_path / "moe")
    (of_moe / "config.json").write_text(json.dumps({"architectures": ["Qwen3MoeForCausalLM"], "head_dim": 8}))
    arguments = ["check", str(moe.draft().write(tmp_path / "a")), "--base-model", str(of_moe)]
    ran = cli("-o", "json", *arguments, "--explain")
    assert (ran.code, [one["reason"] for one in ran.json["findings"]]) == (4, ["not_applied_by_engine"])
    assert ran.json["matrices"][0] == {"module": gate, "fate": "refused", "note": "not_applied_by_engine"}
    ran = cli(*arguments, "--drop", "mlp.gate", "--explain")
    assert (ran.code, "warning: modules_dropped" in ran.out, "dropped" in ran.out) == (0, True, True)
    kept = base_of_pool(pb.Pool(base=base_message(read_base(of_moe))))
    assert kept == read_base(of_moe)
    assert kept.architecture == "Qwen3MoeForCausalLM"
    draft = LLAMA.draft()
    draft.config |= {"lora_alpha": 0, "bias": "all"}
    draft.write(tmp_path / "wrong")
    arguments = ["check", str(tmp_path / "wrong"), "--base-model", str(base), "--max-rank", "2"]
    ran = cli("-o", "json", *arguments)
    found = ran.json["findings"]
    assert {one["reason"] for one in found} == {"bias_not_supported", "zero_alpha", "rank_too_high"}
    assert all({"reason", "key", "found", "expected", "remedy"} <= one.keys() for one in found)
    assert (ran.code, ran.error["reason"]) == (4, "ADAPTER_UNFIT")
    draft = LLAMA.draft()
    draft.config["use_dora"] = True
    arguments = ["check", str(draft.write(tmp_path / "dora")), "--base-model", str(base)]
    ran = cli(*arguments, "--dora", "strip")
    assert (cli(*arguments).code, ran.code) == (4, 0), "a policy may be tried out"
    assert "warning: dora_stripped" in ran.out


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


def test_a_publication_is_asked_for_what_was_said_and_told_module_by_module(cli, published, here, monkeypatch):
    """What was there before is told as that."""

    def said(line: str) -> tuple[object, ...]:
        assert cli("publish", "a", *line.split()).code == 0
        options = published["options"]
        return options.rank, options.dtype, options.max_error, options.has_initial

    assert said("there") == (None, None, DEFAULT_MAX_ERROR, False)
    assert (published["held"], published["initial"], published["folder"]) == (None, None, Path("a"))
    flags = "--rank 4 --dtype bfloat16 --max-error 0.5 --initial i --max-rank 9 --remap off --vision drop"
    assert said(f"there {flags}") == (4, "BF16", 0.5, True)
    assert (published["initial"], published["compared"].limits.max_rank) == (Path("i"), 9)
    held: list[Any] = []
    monkeypatch.setattr(Credentials, "hold", lambda _self, name, place: held.append((name, place)) or "it")
    said("s3://b/a --credential mine")
    assert (published["held"], held) == ("it", [("mine", published["there"].place)])
    ran, value = cli("publish", "a", "there"), cli("-o", "json", "publish", "a", "there").json
    uri = published["there"].uri
    modules = ["MODULE KIND TRAINED RANK RANK ERROR", "q_proj rank 16 8 1.23e-02", "k_proj kept 8 8 0.00e+00"]
    warned = ["warning: odd: it is odd", f"warning: base_unknown: {NO_BASE['message']}"]
    assert (ran.code, ran.lines) == (0, [*modules, *warned, f"{uri} is written", "sha256:1"]), ran.err
    told = {"uri": uri, "digest": "sha256:1", "warnings": [{"reason": "odd", "message": "it is odd"}, NO_BASE]}
    assert value == told | {"modules": [one.as_dict() for one in OUTCOMES]}
    assert cli("-o", "name", "publish", "a", "there").out == "sha256:1\n"
    published["gives"] = PublishedFiles("sha256:1", [], [], was_there=True)
    assert cli("publish", "a", "there").out.splitlines()[1:] == [f"{uri} was there already", "sha256:1"]


def test_what_is_published_becomes_the_source_of_an_adapter_that_keeps_all_else(cli, published, admin, here):
    """As by publish of the Python client; one document is printed."""
    ran = cli("publish", "a", "there", "--name", "acme/a", "--request-id", "mine", "--wait")
    (asked,) = admin.asked("ApplyAdapters")
    (change,) = asked.changes
    source = pb.Source(uri=published["there"].uri, digest="sha256:1")
    assert change.update == pb.Adapter(name="acme/a", spec=pb.AdapterSpec(source=source))
    assert (change.update_mask.paths, asked.pool, asked.request_id) == (["expect", "source"], "dev", "mine")
    assert (ran.code, len(admin.asked("WatchRollout"))) == (0, 1), ran.err
    assert "created" in ran.out
    told = cli("-o", "json", "publish", "a", "there", "--name", "acme/a").json
    assert [one["outcome"] for one in told["results"]] == ["created"]


FINDING = Finding("bad", "k", "1", "2", "change it")


@pytest.fixture
def looked(admin, monkeypatch) -> Any:
    """Lays down what a look at an adapter shows."""
    admin.answers["GetPool"] = [pb.Pool(name="dev")]

    def lay_down(*findings: Finding) -> None:
        monkeypatch.setattr(check, "look", lambda *_: Looked(findings, [AdapterWarning("odd", "it is odd")]))

    return lay_down


@pytest.mark.parametrize(
    ("line", "variables", "pool", "base", "rank"),
    [
        ("check a --pool p --max-rank 4", {}, "p", None, 4),
        ("check a --base-model b", {"LORAPLANE_POOL": "v"}, None, "b", None),
        ("check a", {"LORAPLANE_POOL": "v"}, "v", None, 16),
        ("check a", {}, "dev", None, 16),
    ],
)
def test_an_adapter_is_compared_with_what_was_said(cli, here, admin, monkeypatch, line, variables, pool, base, rank):
    """A rank that is said goes before that of the pool."""
    limits = pb.PoolLimits(max_rank=16, target_modules=["q_proj"])
    admin.answers["GetPool"] = [pb.Pool(name="dev", limits=limits), pb.Pool(name="dev")]
    look, base_here = Mock(return_value=Looked(())), Mock()
    monkeypatch.setattr(check, "look", look)
    monkeypatch.setattr(check, "base_here", base_here)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert (cli(*line.split()).code, [one.name for one in admin.asked("GetPool")]) == (0, [pool] if pool else [])
    assert [*base_here.call_args_list] == ([call(Path(base), flag="--base-model")] if base else [])
    assert [look.call_args.args[2].max_rank, look.call_args.args[2].target_modules] == [
        rank,
        ("q_proj",) if pool else None,
    ]
    if rank == 16:
        assert (cli(*line.split()).code, look.call_args.args[2].max_rank) == (0, None)


@pytest.mark.parametrize("command", ["check s3://b/a --pool dev", "digest s3://b/a", "sign s3://b/a --key key.pem"])
def test_a_source_of_another_host_is_waited_for_ten_minutes_or_as_long_as_is_said(
    cli, admin, monkeypatch, tmp_path, command
):
    make_key(tmp_path)
    monkeypatch.chdir(tmp_path)
    admin.answers["GetPool"] = [pb.Pool(name="dev")]
    monkeypatch.delenv("LORAPLANE_TIMEOUT")
    given: list[float] = []
    monkeypatch.setattr(check, "look", lambda *_: Looked(()))
    for method, answer in (("fetched", nullcontext(Path())), ("digest", "sha256:1")):
        monkeypatch.setattr(SourceReader, method, lambda *told, answer=answer: given.append(told[-1]) or answer)
    cli(*command.split())
    cli(*command.split(), "--timeout", "60")
    assert given == [600.0, 60.0]


def test_what_an_adapter_is_worth_is_told_in_each_form(cli, looked, here):
    looked()
    warnings = ["warning: odd: it is odd", f"warning: base_unknown: {NO_BASE['message']}"]
    ran, named = cli("check", "a"), cli("-o", "name", "check", "a")
    assert (ran.code, ran.out.splitlines(), named.code, named.out) == (0, [*warnings, "a is right"], 0, "")
    value = cli("-o", "json", "check", "a").json
    assert value == {"source": "a", "findings": [], "warnings": [{"reason": "odd", "message": "it is odd"}, NO_BASE]}
    looked(FINDING)
    ran, named = cli("check", "a"), cli("-o", "name", "check", "a")
    assert (ran.code, len(ran.lines), named.code, named.out) == (4, 4, 4, "bad\n")
    assert ran.lines[:2] == ["REASON KEY FOUND EXPECTED REMEDY", "bad k 1 2 change it"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        *(("check {adapter} --base-model {base} --pool p", 2), ("pool create p --base-model m --base-name n", 2)),
        *((f"check {what} --base-model {{base}}", 4) for what in ("oci://bucket/A", "{base}")),
        *(("check {adapter} --base-model {adapter}/..", 4), ("digest {base}", 4)),
        ("sign {base}/gone --key {base}/no.pem", 3),
        *((f"sign {{adapter}} --key {{base}}{file}", 2) for file in ("", "/gone.pem", "/no.pem")),
    ],
)
def test_what_cannot_be_looked_at_is_said(cli, base, adapter, arguments, code):
    """X1 secret-free: a file that is no key is not shown."""
    (base / "no.pem").write_text("canary")
    ran = cli(*arguments.format(adapter=adapter, base=base).split())
    assert (ran.code, ran.err.startswith("error: "), "canary" in ran.err) == (code, True, False)


def test_a_base_survives_the_wire_and_only_what_can_be_opened_is_explained(cli, base, adapter):
    read = read_base(base, ("name",))
    assert (base_of_pool(pb.Pool(base=base_message(read))), base_of_pool(pb.Pool())) == (read, None)
    for engine, expected in (("", "vllm"), ("sglang", "sglang"), ("axolotl", "vllm")):
        of_pool = base_of_pool(pb.Pool(engine=engine, base=pb.BaseShapes(architecture="", head_size=0)))
        assert of_pool.engine == expected
        assert (of_pool.architecture, of_pool.head_size, of_pool.evidence) == (None, None, None)
    (adapter / "adapter_config.json").write_text("{")
    ran = cli("-o", "json", "check", str(adapter), "--base-model", str(base), "--explain")
    assert (ran.code, ran.json["matrices"]) == (4, [])
