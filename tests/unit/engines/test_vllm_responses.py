"""What vLLM's answers mean, answer by answer as they were measured on 0.32.0."""

from __future__ import annotations

import json

import pytest

from sidecar.engines.driver import EngineUnreachable, EngineUnusable
from sidecar.engines.observed import (
    AlreadyThere,
    Done,
    EngineActivity,
    EngineGone,
    NotThere,
    PathMissing,
    Refused,
    Transient,
    Unknown,
)
from sidecar.engines.transport import Lost, NotSent, Reply
from sidecar.engines.vllm import responses as answers
from sidecar.engines.vllm.driver import check_name
from sidecar.vllm_plugin.server import Forbidden

PROCESS = """\
process_start_time_seconds 1.79525538183e+09
# TYPE vllm:num_requests_running gauge
# TYPE vllm:lora_requests_info gauge
"""


def sample(running: str = "", waiting: str = "", at: object = 3.0) -> str:
    names = f'running_lora_adapters="{running}",waiting_lora_adapters="{waiting}"'
    return f'vllm:lora_requests_info{{max_lora="4",{names}}} {at}\n'


def metrics(*samples: str, engines: int = 1, running: object = 0.0, waiting: object = 0.0) -> str:
    """A page of a process with these counts of each of its engines, and samples of adapters."""
    lines = [PROCESS]
    for engine in range(engines):
        labels = f'engine="{engine}",model_name="tiny"'
        lines += [f"vllm:num_requests_running{{{labels}}} {running}\n"]
        lines += [f"vllm:num_requests_waiting{{{labels}}} {waiting}\n"]
        lines += [f'vllm:num_requests_waiting_by_reason{{{labels},reason="deferred"}} 7.0\n']
    return "".join((*lines, *samples))


def error(status: int, param: str | None = None, *, is_flat: bool = False) -> Reply:
    """An error; flat as before 0.10.1."""
    fields = {"message": "some\n  text", "type": "T", "param": param, "code": status}
    return Reply(status, json.dumps({"object": "error", **fields} if is_flat else {"error": fields}).encode())


@pytest.mark.parametrize(
    ("answer", "loaded", "unloaded"),
    [
        (Reply(200, b"Success"), Done, Done),
        (error(400), AlreadyThere, Refused),
        (error(400, "body.lora_path"), Refused, Refused),
        *((Reply(400, body), Refused, Refused) for body in (b"", b"{}", b"no JSON", b'{"error": "no"}')),
        (error(404), PathMissing, NotThere),
        (error(400, is_flat=True), AlreadyThere, Refused),
        (error(404, is_flat=True), PathMissing, NotThere),
        *((Reply(status, b'{"detail":"Not Found"}'), Transient, Transient) for status in (401, 403, 404, 405)),
        *((error(status), Transient, Transient) for status in (408, 425, 429)),
        *((error(status), Refused, Refused) for status in (422, 500)),
        *((error(status), Unknown, Unknown) for status in (501, 503)),
        *((answer, Unknown, Unknown) for answer in (Reply(399, b""), Reply(301, b""), Lost("cut"))),
        (NotSent("refused"), EngineGone, EngineGone),
    ],
)
def test_every_kind_of_answer_has_one_meaning(answer, loaded, unloaded):
    assert isinstance(answers.load_outcome(answer), loaded)
    assert isinstance(answers.unload_outcome(answer), unloaded)


@pytest.mark.parametrize("number", ["-", ".", "1e", "1e999", "-1e999"])
def test_a_count_that_is_no_number_says_nothing(number):
    """X2 unbreakable: found by the fuzzer."""
    more = ("external_prefix_cache_queries_total{}", 'rl_weight_update_operations_in_flight{operation="update"}')
    of_requests = [metrics(running=number), metrics(waiting=number)]
    pages = [
        (answers.read_metrics, page) for page in of_requests + [f"{metrics()}vllm:{one} {number}\n" for one in more]
    ]
    pages += [(answers.read_drain, page) for page in [*of_requests, metrics(sample(at=number))]]
    for read, page in pages:
        with pytest.raises(EngineUnreachable, match="no number"):
            read(page, "u")


def test_a_line_of_a_million_characters_is_read_in_no_time():
    """X2: looking for its end anew at each label takes hours."""
    labels = 'sleep_state="awake",' * 50_000
    assert answers.read_metrics(f"{metrics()}vllm:engine_sleep_state{{{labels} 0.0\n", "u").paused == ""
    assert answers.read_metrics(f"{metrics()}vllm:engine_sleep_state{{{labels}}} 0.0\n", "u").paused == answers.ASLEEP


READ = (
    *("prompt_tokens_total", "generation_tokens_total", "kv_cache_usage_perc", "gpu_cache_usage_perc"),
    *("rl_weight_update_operations_in_flight", "external_prefix_cache_queries_total"),
)


def test_lines_that_are_read_are_the_only_ones_that_tell_anything():
    """R7: a page and its lines say the same."""
    more = [f"vllm:{name}{{a='b'}} 1.0\n" for name in READ]
    page = metrics(sample("a,b"), 'vllm:engine_sleep_state{sleep_state="awake"} 0.0\n', *more, running=1.0, waiting=2.0)
    lines = answers.METRICS.of(page.encode() + b'vllm:other{le="1"} 1.0\n')
    assert "other" not in lines
    assert answers.read_metrics(lines, "u") == answers.read_metrics(page, "u")
    assert answers.read_drain(lines, "u") == answers.read_drain(page, "u")


def test_numbers_of_thousands_of_digits_are_not_known():
    """X2: Python refuses to read them. Found by review."""
    text = metrics(sample()).replace('max_lora="4"', f'max_lora="{"9" * 5000}"')
    assert answers.read_metrics(text, "u").limits.max_loras is None
    with pytest.raises(EngineUnusable):
        answers.read_version(json.dumps({"version": "9" * 5000 + ".1.0"}).encode(), "u")


@pytest.mark.parametrize("body", [b"", b"\xff\xfe", b"[]", b'{"error": "text"}', b"[" * 100_000, b"x" * 10_000])
def test_any_body_is_told_in_one_short_line(body):
    outcome = answers.load_outcome(Reply(500, body))
    assert isinstance(outcome, Refused)
    assert 0 < len(outcome.message) <= 500
    assert len(outcome.message) == 500 or len(body) < 10_000, "as much of it as there is room for"
    assert "\n" not in outcome.message
    for own in (error(500), error(500, is_flat=True)):
        assert answers.load_outcome(own) == Refused("some text"), "the engine's own sentence is handed on"


@pytest.mark.parametrize(
    ("running", "waiting", "busy"), [("0.0", "0.0", False), ("1.0", "0.0", True), ("0.0", "2.0", True)]
)
def test_metrics_tell_process_load_and_limit(running, waiting, busy):
    found = answers.read_metrics(metrics(sample(), running=running, waiting=waiting), "http://e")
    assert (found.incarnation, found.is_busy, found.has_lora) == ("1.79525538183e+09", busy, True)
    assert found.limits.max_loras == 4


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        *(
            ({"version": version}, "")
            for version in ("0.10.0", "0.30.9", "0.31.0", "0.32.1.dev3+gabc", "0.33.0rc1", "1.0", "0.100.2")
        ),
        *(({"version": version}, "engine_unsupported") for version in ("0.9.2", "0.3", "0.1.dev1+g123", "dev", "")),
        *((page, "not_an_engine") for page in ({}, {"version": None}, {"version": 32}, [], "0.32.0")),
    ],
    ids=str,
)
def test_versions_that_are_driven_and_what_tells_none(page, reason):
    body = json.dumps(page).encode()
    if not reason:
        assert answers.read_version(body, "http://e") == page["version"]
        return
    with pytest.raises(EngineUnusable) as caught:
        answers.read_version(body, "http://e")
    assert caught.value.reason == reason


def test_who_refuses_us_is_told_the_engine_or_the_plugin_in_it():
    """What to do about it differs: the engine's key, or the plugin's store and who may call it."""
    refusal = Forbidden("swaps come from this host alone")
    error = {"message": str(refusal), "type": refusal.reason, "param": None, "code": refusal.status}
    by_plugin = answers.unauthorized("http://e", json.dumps({"error": error}).encode())
    assert "http://e: the plugin refuses us: " in str(by_plugin)
    for body in (b"", b"no", json.dumps({"error": error | {"type": "AuthError"}}).encode()):
        assert "refuses our key" in str(answers.unauthorized("http://e", body))


def test_a_path_has_one_check_name_and_another_path_another():
    assert check_name("/a") == check_name("/a") != check_name("/b")
    assert check_name("/a\udc80").startswith("loraplane-check-")


def test_the_newest_sample_tells_which_adapters_have_requests():
    """R7: samples stay when they are old, and their value is their time; without any, none ever had a request."""
    text = metrics(sample("a,b"), sample("b", "c/d", 5e9), sample(at=4.0), running=1.0)
    evidence = answers.read_drain(text, "http://e")
    assert (evidence.incarnation, evidence.waiting, evidence.running) == ("1.79525538183e+09", 0, 1)
    assert evidence.adapters == {"b", "c/d"}
    together = metrics(sample("a"), sample("b"))
    assert answers.read_drain(together, "http://e").adapters == {"a", "b"}, "those of the same time count together"
    assert answers.read_drain(metrics(), "http://e").adapters == frozenset()


def test_of_several_engines_the_counts_are_added_and_the_adapters_not_known():
    """R7: they overwrite each other's sample."""
    evidence = answers.read_drain(metrics(sample(), engines=2, waiting=1.0, running=2.0), "http://e")
    assert (evidence.waiting, evidence.running, evidence.adapters) == (2, 4, None)


@pytest.mark.parametrize("missing", ["vllm:num_requests_waiting{", "vllm:num_requests_running{", "# TYPE vllm:lora"])
def test_an_engine_that_does_not_say_gives_no_evidence(missing):
    """R7: what is not known keeps everything."""
    for text in (metrics().replace(missing, "other{"), "process_start_time_seconds 1.5"):
        with pytest.raises(EngineUnreachable, match="statistics"):
            answers.read_drain(text, "http://e")


BASE_CARD = {"id": "tiny", "parent": None, "root": "/models/tiny"}
CARD = {"id": "a", "parent": "tiny", "root": "/store/a"}


@pytest.mark.parametrize(("told", "length"), [(512, 512), (0, None), (True, None), ("9", None), (2**40, None)])
def test_a_listing_tells_the_longest_context(told, length):
    cards = [BASE_CARD | {"max_model_len": told}, BASE_CARD | {"id": "again"}]
    assert answers.read_listing(json.dumps({"data": cards}).encode()).max_model_len == length


@pytest.mark.parametrize(
    ("root", "path"),
    [
        ("/store/a/", "/store/a"),
        ("//store//a", "/store/a"),
        ("/./store/./a/.", "/store/a"),
        ("/store/x/../a", "/store/x/../a"),
        ("org/a/", "org/a/"),
        ("/", "/"),
    ],
)
def test_paths_in_a_listing_are_the_same_however_they_are_spelt(root, path):
    """R3 converge, R11: what is left of a link's target decides, and a name that is no path stays as it is."""
    told = json.dumps({"data": [BASE_CARD, CARD | {"root": root}]}).encode()
    assert answers.read_listing(told).adapters == {"a": path}


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"id": "a"},
        CARD,
        CARD | {"id": 1},
        CARD | {"id": "b", "root": ""},
        CARD | {"id": "b", "root": None},
        CARD | {"id": "tiny"},
    ],
)
def test_one_card_that_is_not_understood_makes_the_whole_listing_worthless(odd):
    """R3, R9: what cannot be read in full is not taken for what there is; nothing is planned from it."""
    with pytest.raises(EngineUnreachable):
        answers.read_listing(json.dumps({"data": [BASE_CARD, CARD, odd]}).encode())


@pytest.mark.parametrize(
    ("end", "reason", "remedy"),
    [("# EOF\n", "rust_frontend", "VLLM_USE_RUST_FRONTEND"), ("", "several_api_servers", "--api-server-count 1")],
)
def test_metrics_of_no_process_tell_whose_they_are(end, reason, remedy):
    text = metrics().replace("process_start_time_seconds", "other") + end
    with pytest.raises(EngineUnusable, match=remedy) as told:
        answers.read_metrics(text, "http://e")
    assert told.value.reason == reason
    with pytest.raises(EngineUnusable, match="has no process_start_time_seconds") as told:
        answers.read_metrics(text.replace("vllm:", "other:"), "http://e")
    assert told.value.reason not in {"rust_frontend", "several_api_servers"}


def test_the_activity_of_several_engines_is_their_sum_and_what_is_not_said_is_none():
    text = """
vllm:num_requests_running{engine="0"} 1.0
vllm:num_requests_running{engine="1"} 2.0
vllm:request_success_total{engine="0",finished_reason="stop"} 3.0
vllm:request_success_total{engine="0",finished_reason="length"} 4.0
vllm:generation_tokens_total{engine="0"} 1e3
"""
    assert answers.read_activity(text, "u") == EngineActivity(3, None, 7, None, 1000)
    assert answers.read_activity("", "u") == EngineActivity()
    with pytest.raises(EngineUnreachable):
        answers.read_activity('vllm:generation_tokens_total{engine="0"} 1e999', "u")
