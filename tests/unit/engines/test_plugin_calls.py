"""What the plugin's answers mean to the driver."""

from __future__ import annotations

import json

import pytest

from sidecar.engines import plugin_calls as plugin
from sidecar.engines.driver import EngineUnreachable
from sidecar.engines.exchange import Lost, NotSent, Reply
from sidecar.engines.plugin_calls import About
from sidecar.observed import Done, EngineLimits, Gone, NotThere, PathMissing, Refused, Transient, Unknown
from sidecar.vllm_plugin import errors
from sidecar.vllm_plugin.routes import PREFIX, SCHEMA


def error(status: int, reason: object) -> Reply:
    return Reply(status, json.dumps({"error": {"type": reason, "message": "m"}}).encode())


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (NotSent("m"), Gone),
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
        ({"schema": 1, "capabilities": NEEDED, "limits": LIMITS}, About(limits=TOLD)),
        ({"schema": 1, "capabilities": NEEDED, "limits": {"max_loras": True, "more": 1}}, About()),
        ({"schema": 1, "capabilities": NEEDED, "limits": 3}, About()),
        ({"schema": 2, "capabilities": NEEDED}, None),
        ({"schema": 1, "capabilities": ["swap"]}, None),
        ([], None),
    ],
)
def test_only_a_plugin_that_can_be_called_is_one(about, expected):
    """One of an earlier version, that tells no limits and resolves nothing, is one."""
    assert plugin.read_about(json.dumps(about).encode()) == expected
    assert plugin.read_about(b"<html>") is None


@pytest.mark.parametrize(
    ("body", "ages"),
    [
        ({"schema": 1, "last_used": {"a": 0.5, "b": 3}}, {"a": 0.5, "b": 3.0}),
        ({"schema": 1, "last_used": {}}, {}),
        ({"schema": 1, "last_used": {"a": 0.5, "b": -1}}, {}),
        ({"schema": 1, "last_used": {"a": True}}, {}),
        ({"schema": 1, "last_used": {"a": "now"}}, {}),
        ({"schema": 2, "last_used": {"a": 1}}, {}),
        ([], {}),
    ],
)
def test_ages_are_taken_whole_or_not_at_all(body, ages):
    """None known is no harm: an adapter of unknown age is not unloaded for it."""
    assert plugin.read_last_used(json.dumps(body).encode()) == ages
    assert plugin.read_last_used(b"") == {}


def test_both_sides_mean_the_same_routes_and_schema():
    calls = {plugin.swap_call("x", "/a", "/b").path, plugin.unload_call("x").path}
    paths = {plugin.ABOUT_PATH, plugin.STATE_PATH, plugin.USES_PATH, *calls}
    assert paths == {f"{PREFIX}/{name}" for name in ("plugin", "state", "uses", "swap", "unload")}
    about = {"schema": SCHEMA, "capabilities": ["swap", "unload", "state"]}
    assert plugin.read_about(json.dumps(about).encode()) == plugin.About()


def test_every_path_of_a_state_is_in_use():
    """R7 files-pinned: a state that cannot be read in full proves nothing."""
    state = {"schema": 1, "adapters": [{"path": "/a"}, {"path": "/b", "requests": 0}]}
    assert plugin.read_paths_in_use(json.dumps(state).encode()) == {"/a", "/b"}
    for bad in ({"schema": 2, "adapters": []}, {"schema": 1, "adapters": [{}]}, {}, 3):
        with pytest.raises(EngineUnreachable):
            plugin.read_paths_in_use(json.dumps(bad).encode())
