"""What the plugin's answers mean to the driver."""

from __future__ import annotations

import json
from functools import partial

import pytest

from registry.lora.coverage.findings import EngineEvidence
from sidecar.engines.driver import EngineUnreachable
from sidecar.engines.observed import (
    Done,
    EngineGone,
    EngineLimits,
    NoEffect,
    NotAsExpected,
    NotThere,
    PathMissing,
    Refused,
    Transient,
    Unknown,
)
from sidecar.engines.transport import Lost, NotSent, Reply
from sidecar.engines.vllm import plugin_calls as plugin
from sidecar.engines.vllm.plugin_calls import About, ChangeCount
from sidecar.vllm_plugin import server as errors
from sidecar.vllm_plugin.routes import PREFIX, SCHEMA


def error(status: int, reason: object) -> Reply:
    return Reply(status, json.dumps({"error": {"type": reason, "message": "m"}}).encode())


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (NotSent("m"), EngineGone),
        (Lost("m"), Unknown),
        (Reply(200, b"{}"), Done),
        (error(404, "not_loaded"), NotThere),
        (error(404, "path_missing"), PathMissing),
        (error(500, "refused"), Refused),
        (error(504, "deadline"), Unknown),
        (error(409, "conflict"), Transient),
        (error(503, "busy"), Transient),
        (Reply(404, b'{"detail": "Not Found"}'), Unknown),
        (Reply(502, b"<html>"), Unknown),
        (error(400, 3), Unknown),
    ],
)
def test_each_answer_has_one_meaning(answer, kind):
    assert isinstance(plugin.plugin_outcome(answer), kind)


def test_every_reason_that_the_plugin_has_is_understood():
    """Both sides are of this project, but not always of one version: what is not known is settled by listing."""
    reasons = {kind.reason: kind.status for kind in errors.PluginError.__subclasses__()}
    understood = {reason for reason, status in reasons.items() if not isinstance(outcome_of(status, reason), Unknown)}
    assert reasons.keys() - understood == {"invalid_argument", "deadline"}


def outcome_of(status: int, reason: str) -> object:
    return plugin.plugin_outcome(error(status, reason))


NEEDED = ["swap", "unload", "state"]
LIMITS = {"max_loras": 4, "max_cpu_loras": None, "max_lora_rank": 8}
TOLD = EngineLimits(max_loras=4, max_lora_rank=8)


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        ({"schema": 1, "capabilities": [*NEEDED, "more", 3]}, About()),
        ({"schema": 1, "capabilities": [*NEEDED, "uses", "resolve"]}, About(resolves=True, tells_uses=True)),
        ({"schema": 1, "capabilities": [*NEEDED, "uses", "changes"]}, About(tells_uses=True, tells_changes=True)),
        ({"schema": 1, "capabilities": NEEDED, "limits": LIMITS}, About(limits=TOLD)),
        ({"schema": 1, "capabilities": [*NEEDED, "coverage"]}, About(tells_coverage=True)),
        ({"schema": 1, "capabilities": NEEDED, "limits": {"max_loras": True, "more": 1}}, About()),
        ({"schema": 1, "capabilities": NEEDED, "limits": 3}, About()),
        ({"schema": 1, "capabilities": ["swap"]}, None),
        *(
            ({"schema": 1, "capabilities": NEEDED, "kv_connectors": told}, About(kv_connectors=found))
            for told, found in ((["Nixl", 3], ("Nixl",)), ([], ()), (None, None), ("Nixl", None))
        ),
    ],
)
def test_only_a_plugin_that_can_be_called_is_one(about, expected):
    """One of an earlier version, that tells no limits and resolves nothing, is one."""
    assert plugin.read_about(json.dumps(about).encode()) == expected


@pytest.mark.parametrize(
    ("read", "told", "found"),
    [
        (plugin.read_requests, {"requests": {"a": 5, "b": 0}}, {"a": 5, "b": 0}),
        (plugin.read_requests, {"requests": {}}, {}),
        (partial(plugin.read_requests, kind="in_flight"), {"requests": {}, "in_flight": {"a": 2}}, {"a": 2}),
        (partial(plugin.read_requests, kind="in_flight"), {"requests": {"a": 5}}, None),
        (plugin.read_requests, {"last_used": {"a": 1}}, None),
        *((plugin.read_requests, {"requests": {"a": odd}}, None) for odd in (True, -1, 2**53, 1.5)),
        (plugin.read_last_used, {"last_used": {"a": 0.5, "b": 3}}, {"a": 0.5, "b": 3.0}),
        (plugin.read_last_used, {"last_used": {}}, {}),
        *(
            (plugin.read_last_used, {"last_used": {"a": 1.5, "b": odd}}, None)
            for odd in (10**400, 1e300, float("inf"), float("nan"), -1, True, "1", None)
        ),
        (plugin.read_changes, {"incarnation": "a", "changes": 3, "last_used": {}}, ChangeCount("a", 3)),
        (plugin.read_changes, {"incarnation": "a", "last_used": {}}, None),
        (plugin.read_changes, {"incarnation": 7, "changes": 3}, None),
        (plugin.read_changes, {"incarnation": "a", "changes": "3"}, None),
        (
            partial(plugin.read_proven, kind="no_effect"),
            {"no_effect": ["/a", 3, "/b"], "as_expected": ["k"]},
            {"/a", "/b"},
        ),
        (partial(plugin.read_proven, kind="as_expected"), {"no_effect": ["/a"], "as_expected": ["k", 3]}, {"k"}),
        *((partial(plugin.read_proven, kind="no_effect"), odd, set()) for odd in ({"no_effect": "/a"}, {})),
        (plugin.read_unexpected, {"unexpected": {"l": "m" * 600, "n": 3}}, {"l": "m" * 512}),
        *((plugin.read_unexpected, odd, {}) for odd in ({"unexpected": ["l"]}, {})),
    ],
)
def test_what_a_page_tells_is_taken_whole_or_not_at_all(read, told, found):
    """X2, R25: a plugin of an earlier release does not tell it; that nothing was used is another matter."""
    assert read(json.dumps({"schema": 1, **told}).encode()) == found


COVERAGE: dict[str, object] = {
    "schema": 1,
    "architecture": "A",
    "applied": ["a.{0-3}.q", "b"],
    "taken": ["q"],
    "renames": [{"x": "y"}, {}, {}],
}


def test_coverage_is_taken_whole_or_not_at_all():
    """R22 applied-whole: half of it would refuse what the engine applies."""
    told = EngineEvidence("vllm 0.32.0", "A", ("a.{0-3}.q", "b"), ("q",), (("x", "y"),))
    assert plugin.read_coverage(json.dumps(COVERAGE).encode(), "0.32.0") == told
    for wrong in (
        {"schema": 2},
        {"renames": None},
        {"applied": [3]},
        {"taken": "q"},
        {"applied": ["a.{0-99999}.{0-99999}"]},
        {"applied": ["a.{0-9999999}"]},
        {"renames": [{"a": 3}, {}, {}]},
    ):
        assert plugin.read_coverage(json.dumps(COVERAGE | wrong).encode(), "0.32.0") is None
    assert plugin.read_coverage(b"<html>", "0.32.0") is None


def test_both_sides_mean_the_same_routes_and_schema():
    calls = {plugin.swap_call("x", "/a", "/b").path, plugin.unload_call("x").path}
    told = {plugin.ABOUT_PATH, plugin.STATE_PATH, plugin.USES_PATH, plugin.COVERAGE_PATH, plugin.CHANGES_PATH}
    names = ("plugin", "state", "uses", "coverage", "changes", "swap", "unload")
    assert told | calls == {f"{PREFIX}/{name}" for name in names}
    about = {"schema": SCHEMA, "capabilities": ["swap", "unload", "state"]}
    assert plugin.read_about(json.dumps(about).encode()) == plugin.About()


def test_every_path_of_a_state_is_in_use():
    """R7 files-pinned: a state that cannot be read in full proves nothing."""
    state = {"schema": 1, "adapters": [{"path": "/a"}, {"path": "//b/", "requests": 0}]}
    assert plugin.read_paths_in_use(json.dumps(state).encode()) == {"/a", "/b"}
    for bad in ({"schema": 2, "adapters": []}, {"schema": 1, "adapters": [{}]}, {}, 3):
        with pytest.raises(EngineUnreachable):
            plugin.read_paths_in_use(json.dumps(bad).encode())


def proof(told: object) -> Reply:
    return Reply(200, json.dumps({"schema": 1, "proof": told, "message": "m"}).encode())


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (proof("no_effect"), NoEffect("m")),
        (proof("not_finite"), NoEffect("m")),
        (proof("not_as_expected"), NotAsExpected("m")),
        *((proof(told), Done()) for told in ("effect", "later", "unknown", "newer", 3)),
        (Reply(200, b"<html>"), Done()),
        (Lost("m"), Done()),
        (NotSent("m"), Done()),
        (error(503, "busy"), Done()),
        (Reply(404, b"{}"), Done()),
        *((error(500, reason), Done()) for reason in ("path_missing", "refused", "forbidden")),
    ],
)
def test_only_a_proof_speaks_against_a_load(answer, outcome):
    """R22, R18: what was put off or did not come about holds nothing up, and the load itself says why not."""
    assert plugin.proof_outcome(answer) == outcome


def test_nothing_is_sent_to_a_plugin_that_is_not_expected():
    assert plugin.prove_call("/a", "").body == {"lora_path": "/a"}
    assert plugin.prove_call("/a", "{}").body == {"lora_path": "/a", "expect": "{}"}


@pytest.mark.parametrize(
    ("change", "is_taken"),
    [
        ({"applied": ["n" * 512]}, True),
        ({"applied": ["n" * 513]}, False),
        ({"architecture": "n" * 513}, False),
        ({"applied": ["n"] * 4000, "taken": ["m"] * 95}, True),
        ({"applied": ["n"] * 4000, "taken": ["m"] * 96}, False),
        ({"renames": [dict.fromkeys(map(str, range(64)), "m"), {}, {}]}, True),
        ({"renames": [dict.fromkeys(map(str, range(65)), "m"), {}, {}]}, False),
        ({"applied": ["n" * 512] * 63 + ["n" * 511]}, True),
        ({"applied": ["n" * 512] * 64}, False),
        ({"renames": [{"k": "n" * 513}, {}, {}]}, False),
    ],
    ids=lambda value: f"{value}"[:40],
)
def test_coverage_is_believed_as_far_as_a_status_has_room_for_it(change, is_taken):
    """R16 bounded, X2: at each bound, and one beyond it."""
    told = {"schema": 1, "architecture": "A", "applied": [], "taken": [], "renames": [{}, {}, {}]} | change
    assert (plugin.read_coverage(json.dumps(told).encode(), "0.32.0") is not None) is is_taken


def test_what_strangers_may_write_is_believed_up_to_its_bounds():
    """R16 bounded, X2: no age of thirty years, no number that is none to others, no endless sentence."""

    def used(age: object) -> dict[str, float] | None:
        return plugin.read_last_used(json.dumps({"schema": 1, "last_used": {"a": age}}).encode())

    assert (used(1e9), used(0), used(1_000_000_001)) == ({"a": 1e9}, {"a": 0.0}, None)

    most = json.dumps({"schema": 1, "requests": {"a": 2**53 - 1}}).encode()
    assert plugin.read_requests(most) == {"a": 9_007_199_254_740_991}
    about = {"schema": 1, "capabilities": ["swap", "unload", "state"]}
    for count in (16, 17):
        found = plugin.read_about(json.dumps(about | {"kv_connectors": ["c" * 600] * count}).encode())
        assert found is not None
        assert found.kv_connectors == (("c" * 512,) * 16 if count == 16 else None)
    body = json.dumps({"schema": 1, "proof": "no_effect", "message": "m" * 600}).encode()
    assert plugin.proof_outcome(Reply(200, body)) == NoEffect("m" * 512)


@pytest.mark.parametrize(
    "read",
    [
        plugin.read_about,
        plugin.read_last_used,
        plugin.read_requests,
        partial(plugin.read_proven, kind="no_effect"),
        plugin.read_unexpected,
        plugin.read_changes,
        lambda body: plugin.read_coverage(body, "1"),
    ],
)
def test_a_page_of_a_later_schema_says_nothing(read):
    """Of which nobody knows here what it means."""
    page = {"capabilities": ["swap", "unload", "state"], "incarnation": "i", "changes": 1}
    page |= {"last_used": {"a": 1.0}, "requests": {"a": 1}, "no_effect": ["/a"], "as_expected": ["k"]}
    page |= {"unexpected": {"k": "m"}, "architecture": "A", "applied": [], "taken": [], "renames": [{}, {}, {}]}
    assert read(json.dumps({"schema": 1} | page).encode())
    assert not any(map(read, (b"", b"[]", b"<html>")))
    for schema in (0, 2, "1", None):
        assert not read(json.dumps({"schema": schema} | page).encode())
