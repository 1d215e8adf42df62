"""What answers of other engines mean, answer by answer as their sources say; no text of them is read."""

from __future__ import annotations

import json
from functools import partial

import pytest

from sidecar.engines.driver import EngineUnreachable, EngineUnusable
from sidecar.engines.observed import AlreadyThere, Done, EngineGone, Outcome, Refused, Transient, Unknown
from sidecar.engines.others import axolotl, pegainfer, sglang
from sidecar.engines.others.sglang import read_requests
from sidecar.engines.others.single_slot import Active
from sidecar.engines.transport import Lost, NotSent, PostRequest, Reply

SGLANG, PEGAINFER, AXOLOTL = sglang.CONTRACT, pegainfer.CONTRACT, axolotl.CONTRACT


def said(code: int, /, **fields: object) -> Reply:
    return Reply(code, json.dumps(fields).encode())


def models(*ids: object, **more: object) -> bytes:
    return json.dumps({"object": "list", "data": [{"id": one, **more} for one in ids]}).encode()


TOLD: dict[str, list[tuple[Reply | Lost | NotSent, Outcome]]] = {
    "sglang": [
        (said(200, success=True, error_message="", loaded_adapters={"x": "/a"}), Done()),
        (said(400, success=False, error_message="a  b\n", loaded_adapters={}), Refused("a b")),
        (said(400, success=False, error_message=None), Refused("no text")),
        (said(400, success=False, error_message="x", loaded_adapters={"x": "/a"}), AlreadyThere()),
        (said(200, success=False), Unknown("HTTP 200: no text")),
        (said(500), Unknown("HTTP 500: no text")),
        (Reply(404, b"Not Found"), Unknown("HTTP 404: no text")),
        (Reply(200, b"[]"), Unknown("HTTP 200: no text")),
    ],
    "pegainfer": [
        (Reply(200, b"Success: LoRA adapter 'x' added successfully."), Done()),
        (said(400, error="a  b\n"), Refused("a b")),
        (said(404, error="unsupported"), Refused("unsupported")),
        (Reply(404, b"Not Found"), Unknown("HTTP 404: no text")),
        (said(503, error="closed"), Unknown("HTTP 503: closed")),
    ],
    "axolotl": [
        (said(200, status="ok"), Done()),
        (said(200, status="later"), Unknown('HTTP 200: {"status": "later"}')),
        (said(422, detail=[]), Unknown('HTTP 422: {"detail": []}')),
        (Reply(500, b""), Unknown("HTTP 500: no text")),
    ],
}
CONTRACTS = {one.kind: one for one in (SGLANG, PEGAINFER, AXOLOTL)}


@pytest.mark.parametrize(
    ("kind", "answer", "outcome"), [(kind, *one) for kind, told in TOLD.items() for one in told], ids=str
)
def test_each_answer_to_a_load_has_one_meaning(kind, answer, outcome):
    """R6."""
    contract = CONTRACTS[kind]
    assert contract.load_outcome("x", answer) == outcome
    assert contract.unload_outcome(answer) == (Refused("x") if outcome == AlreadyThere() else outcome)


@pytest.mark.parametrize("contract", CONTRACTS.values(), ids=CONTRACTS.keys())
def test_what_tells_nothing_of_a_call_is_read_alike_for_all_kinds(contract):
    """A key that is refused may be mended."""
    for outcome_of in (partial(contract.load_outcome, "x"), contract.unload_outcome):
        assert outcome_of(Lost("broke")) == Unknown("broke")
        assert outcome_of(NotSent("none")) == EngineGone("none")
        for status in (401, 403):
            assert isinstance(outcome_of(Reply(status, b"")), Transient)


@pytest.mark.parametrize(
    ("read", "bodies"),
    [
        (lambda body: SGLANG.read([body, b"{}"], {}, "http://e"), [b"{}", b'{"version": 5}']),
        (
            lambda body: PEGAINFER.read([body], {}, "http://e"),
            [
                *(b'{"object": "list"}', b'{"object": "list", "data": [1]}', models(1), models("x", root="/m")),
                models("x", owned_by="axolotl"),
            ],
        ),
        (
            lambda body: AXOLOTL.read([body, b"true"], {}, "http://e"),
            [models(), models("x"), models(1, owned_by="axolotl"), models("x", owned_by="vllm")],
        ),
    ],
    ids=["sglang", "pegainfer", "axolotl"],
)
def test_something_else_is_no_such_engine(read, bodies):
    for body in (b"", b"[]", *bodies):
        with pytest.raises(EngineUnusable) as caught:
            read(body)
        assert caught.value.reason == "not_an_engine"


METRICS = """\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{dp_rank="0",model_name="m"} 2.0
sglang:num_running_reqs{dp_rank="1",model_name="m"} 1.0
sglang:num_queue_reqs{model_name="m"} 4.0
sglang:num_running_reqs_offline_batch{model_name="m"} 9.0
"""


def test_sglang_counts_requests_of_all_its_ranks():
    """R7: what does not count them gives no evidence."""
    found = read_requests(METRICS, "http://e")
    assert (found.waiting, found.running) == (4, 3)
    for text in ("", METRICS.replace("queue", "other"), METRICS.replace("running_reqs{", "other{")):
        with pytest.raises(EngineUnreachable, match="--enable-metrics"):
            read_requests(text, "http://e")
    for number in ("-", "1e", "1e999"):
        with pytest.raises(EngineUnreachable, match="no number"):  # found by the fuzzer
            read_requests(METRICS.replace("2.0", number), "http://e")


SGLANG_CARDS = b'{"data": [{"id": "base", "root": "base", "parent": null}]}'


@pytest.mark.parametrize(
    ("told", "cpu", "rank"),
    [
        ({}, None, None),
        ({"max_loaded_loras": None, "max_lora_rank": None}, None, None),
        ({"max_loaded_loras": 1, "max_lora_rank": 64}, 1, 64),
        ({"max_loaded_loras": 0, "max_lora_rank": -1}, None, None),
        ({"max_loaded_loras": "8", "max_lora_rank": 8.5}, None, None),
    ],
    ids=str,
)
def test_sglang_tells_its_limits(told, cpu, rank):
    """What is no number of adapters is no limit."""
    about = json.dumps({"version": "0.5.9", "enable_lora": True} | told).encode()
    seen = SGLANG.read([about, SGLANG_CARDS], {}, "http://e")
    assert (seen.version, seen.limits.max_cpu_loras, seen.limits.max_lora_rank) == ("0.5.9", cpu, rank)


@pytest.mark.parametrize(
    ("enabled", "cards", "error", "said"),
    [
        *((odd, SGLANG_CARDS, EngineUnusable, "--enable-lora") for odd in (False, None, 1)),
        (True, b'{"data": [{"id": "base", "root": "base"}]}', EngineUnusable, "0.5.1"),
        (True, b'{"data": [{"id": 1, "parent": null}]}', EngineUnreachable, "cannot be read in full"),
    ],
)
def test_an_sglang_that_cannot_be_driven_is_named(enabled, cards, error, said):
    """R9: one of a release that does not list its adapters would look empty; half a listing is none."""
    about = json.dumps({"version": "0.5.1", "enable_lora": enabled}).encode()
    with pytest.raises(error, match=said):
        SGLANG.read([about, cards], {}, "http://e")


def test_pegainfer_has_of_ours_what_our_record_says():
    """R11 foreign-safe: everything else is left alone. X2: found by the fuzzer, a list without its base model."""
    seen = PEGAINFER.read([models("base", "foreign", "x")], {"x": "/a", "gone": "/b"}, "http://e")
    assert (seen.base_models, dict(seen.adapters), seen.version) == (("base", "foreign"), {"x": "/a"}, "")
    for names in ([], ["ours"]):
        with pytest.raises(EngineUnreachable, match="names no base model"):
            PEGAINFER.read([models(*names)], {"ours": "/a"}, "http://e")


def test_axolotl_is_told_a_name_that_no_other_weights_have():
    """R4: prefix caches of most releases know weights by it alone."""
    fields = {"lora_name": "acme/x#7", "lora_int_id": 7, "lora_path": "/s/1", "load_inplace": False}
    assert axolotl.set_adapter(Active(7, "acme/x", "/s/1")) == PostRequest("/set_lora_adapter/", fields)
