"""What the plugin's answers mean to the driver."""

from __future__ import annotations

import json

import pytest

from sidecar.engines import plugin_calls as plugin
from sidecar.engines.driver import EngineUnreachable
from sidecar.engines.exchange import Lost, NotSent, Reply
from sidecar.observed import Done, Gone, NotThere, PathMissing, Refused, Transient, Unknown
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


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        ({"schema": 1, "capabilities": ["swap", "unload", "state", "more", 3]}, True),
        ({"schema": 2, "capabilities": ["swap", "unload", "state"]}, False),
        ({"schema": 1, "capabilities": ["swap"]}, False),
        ([], False),
    ],
)
def test_only_a_plugin_that_can_be_called_is_one(about, expected):
    assert plugin.is_usable(json.dumps(about).encode()) is expected
    assert not plugin.is_usable(b"<html>")


def test_both_sides_mean_the_same_routes():
    paths = {plugin.ABOUT_PATH, plugin.STATE_PATH, plugin.swap_call("x", "/a", "/b").path, plugin.unload_call("x").path}
    assert paths == {f"{PREFIX}/{name}" for name in ("plugin", "state", "swap", "unload")}
    assert plugin.SCHEMA == SCHEMA


def test_every_path_of_a_state_is_in_use():
    """R7 files-pinned: a state that cannot be read in full proves nothing."""
    state = {"schema": 1, "adapters": [{"path": "/a"}, {"path": "/b", "requests": 0}]}
    assert plugin.read_paths_in_use(json.dumps(state).encode()) == {"/a", "/b"}
    for bad in ({"schema": 2, "adapters": []}, {"schema": 1, "adapters": [{}]}, {}, 3):
        with pytest.raises(EngineUnreachable):
            plugin.read_paths_in_use(json.dumps(bad).encode())
