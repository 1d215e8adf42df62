"""top: what replicas and adapters are doing, from their sidecars; and a drain that is waited for."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import grpc
import pytest

from registry.cli.commands import replicas as of_replicas
from registry.cli.commands import top
from registry.cli.failure import CliError, CommandFailure, Exit
from registry.cli.session import Session
from registry.cli.sidecars import SidecarAccess
from registry.cli.views.replica_view import missing_view
from registry.cli.views.top import adapter_rows, replica_row
from registry.client.address import Tls
from registry.model.errors import Reason
from registry.v1 import registry_pb2 as pb
from tests.support.fake_admin import FakeAdmin, Refusal
from tests.unit.cli.conftest import Time
from tests.unit.cli.test_events import sidecar

ENGINE = {"running": 1, "waiting": 2, "requests": 30, "prompt_tokens": 400, "generation_tokens": 5000}
SQL = {"name": "sql", "loaded": True, "last_used_seconds": 7.5, "requests": 40, "loads": 1, "swaps": 2, "evictions": 0}
LAW = {"name": "law", "loaded": False, "last_used_seconds": None, "loads": 1, "swaps": 0, "evictions": 1}


def said(replica: str = "r1", **parts: Any) -> bytes:
    calls = {"load": {"count": 4, "seconds": 2.0}, "unload": {"count": 1, "seconds": 1.0}}
    whole = {"schema": 1, "replica": replica, "incarnation": f"of {replica}", "engine": ENGINE, "calls": calls}
    return json.dumps({**whole, "adapters": [LAW, SQL], **parts}).encode()


def replica(name: str, http: object = None) -> pb.Replica:
    status = json.dumps({} if http is None else {"http": http})
    return pb.Replica(name=name, pool="dev", incarnation=f"of {name}", status_json=status)


def replicas(admin: FakeAdmin, *found: pb.Replica, gone: str = "") -> None:
    missing = [pb.MissingReplica(name=gone)] if gone else []
    admin.answers["ListReplicas"] = [pb.ListReplicasResponse(replicas=found, missing=missing)]


def test_what_each_replica_and_each_adapter_does(cli, admin):
    """Sidecars are asked where their statuses say; the engine's figures are of the engine, averages of the calls."""
    other = said("r2", engine=None, calls={}, adapters=[SQL | {"last_used_seconds": 3.0, "requests": 2, "loads": 5}])
    with sidecar(said(), path="/activity") as one, sidecar(other, path="/activity") as two:
        replicas(admin, replica("r1", one), replica("r2", two))
        ran, table, wide = cli("-o", "json", "top"), cli("top"), cli("-o", "wide", "top")
    first, second = ran.json["replicas"]
    calls = {"loads": 4, "load_seconds": 0.5, "swaps": 0, "swap_seconds": None}
    assert first == {"name": "r1", "loaded": 1, **ENGINE, **calls, "served": 0, "wanted": 0}
    assert (second["loaded"], second["requests"], second["loads"], second["load_seconds"]) == (1, None, 0, None)
    sql, law = ran.json["adapters"]
    used = {"last_used_seconds": 3.0, "requests": 42, "loads": 6, "swaps": 4, "evictions": 0}
    assert sql == {"name": "sql", "replicas": ["r1", "r2"], **used}
    assert (law["replicas"], law["last_used_seconds"], law["requests"], law["evictions"]) == ([], None, None, 1)
    assert wide.lines[1] == "r1 0/0 1 1 2 30 400 5000 4 0 0.5 -"
    assert (ran.code, ran.json["unreached"], table.err, table.lines[1]) == (0, {}, "", "r1 0/0 1 1 2 30 400 5000 4 0")
    assert table.lines[5:] == ["sql r1, r2 42 3 s ago 6 4 0", "law - - - 1 0 1"]


def test_who_is_not_reached_is_told_in_one_line(cli, admin):
    """A loopback address in a status leads elsewhere from another host: whoever answers there is not believed. If
    nobody is reached it fails; sidecars that are named are asked alone.
    """
    with sidecar(said("r9"), path="/activity") as elsewhere, sidecar(said("r1"), path="/activity") as here:
        found = [replica("r1", here), replica("r2", elsewhere), replica("old"), replica("odd", ["\x1b"])]
        replicas(admin, *found, gone="r5")
        ran = cli("-o", "json", "top")
        table = cli("top")
    assert (ran.code, [one["name"] for one in ran.json["replicas"]]) == (0, ["r1"])
    assert set(ran.json["unreached"]) == {"r2", "old", "odd", "r5"}
    assert table.err.startswith("note: not reached: ")
    assert (table.err.count("\n"), "\x1b" in table.err) == (1, False)
    for why in (f"another process answers at {elsewhere}", "does not say where", "r5 (it does not live)"):
        assert why in table.err
    admin.requests.clear()
    with sidecar(said(), path="/activity") as one:
        ran = cli("top", "--sidecar", one, "-o", "name")
    assert (ran.code, ran.out.splitlines(), admin.requests, cli("top", "--sidecar", "r1").code) == (0, ["r1"], [], 2)
    replicas(admin, replica("r1"))
    ran = cli("top")
    assert (ran.code, ran.out, ran.err.count("\n")) == (6, "", 1)
    assert "SIDECAR_UNAVAILABLE: not reached: r1 (its status" in ran.err
    gone = replace(missing_view("dev", pb.MissingReplica(name="r1")), status={"http": "127.0.0.1:1"})
    with pytest.raises(CliError, match="it does not live"):  # whatever it said last: another may listen there now
        top.activity_of(gone, 1.0, SidecarAccess(Tls()))


@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_who_answers_a_byte_at_a_time_holds_nobody_up(cli, admin, begun):
    """X2, X3 given-back: a status says where its sidecar listens; with each byte in time it would keep the command."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as thread:
        dripping = thread.submit(_drip, server, begun, ended)
        replicas(admin, replica("r1", f"127.0.0.1:{server.getsockname()[1]}"))
        try:
            for timeout in ("1", "5", "30"):  # in a second not even the admin service may come to answer
                ran = cli("top", "--timeout", timeout)
                if "not reached" in ran.err:
                    break
        finally:
            ended.set()
            with contextlib.suppress(OSError):  # else it would wait for one who never came
                server.shutdown(socket.SHUT_RDWR)
    assert (ran.code, dripping.result(), "not reached: r1" in ran.err) == (6, True, True)


def _drip(server: socket.socket, begun: bytes, ended: threading.Event) -> bool:
    """Whether the other side left before a minute was over."""
    connection, _ = server.accept()
    with connection, contextlib.suppress(OSError):
        connection.sendall(begun)
        for _ in range(600):
            if ended.wait(0.1):
                return True
            connection.sendall(b"x")
        return False
    return True


@pytest.mark.parametrize(
    "parts",
    [
        {"engine": 1, "calls": [], "adapters": 7},
        {"engine": {"running": -1, "requests": True, "waiting": 1e999}, "calls": {"load": 3}, "adapters": [1, {}]},
        {"engine": {"requests": 2**70}, "calls": {"load": {"count": "x", "seconds": None}}},
        {"adapters": [{"name": "a\x1b", "loaded": "yes", "last_used_seconds": float("nan"), "loads": -3}]},
    ],
)
def test_odd_answers_are_nothing(cli, admin, parts):
    """X2: what another program answers ends no command, and has no power over the terminal."""
    with sidecar(said(**parts), path="/activity") as one:
        ran = cli("top", "--sidecar", one)
        shown = cli("-o", "json", "top", "--sidecar", one).json
    assert (ran.code, "\x1b" in ran.out, shown["replicas"][0]["waiting"] in {None, 2}) == (0, False, True)
    assert all(one["loads"] >= 0 for one in shown["adapters"])


@pytest.mark.parametrize(("flags", "seconds"), [([], 5.0), (["--timeout", "9"], 9.0)])
def test_no_sidecar_is_waited_for_without_end(cli, admin, monkeypatch, flags, seconds):
    """One that is stopped answers nothing, ever."""
    monkeypatch.delenv("LORAPLANE_TIMEOUT")
    waited: list[float] = []

    def ask(_address: object, _path: str, timeout_seconds: float, _shown: object) -> object:
        waited.append(timeout_seconds)
        return json.loads(said())

    monkeypatch.setattr("registry.cli.commands.top.ask_sidecar", ask)
    assert (cli("top", "--sidecar", "127.0.0.1:1", *flags).code, waited) == (0, [seconds])
    connect = Mock(side_effect=CliError(CommandFailure(Exit.UNAVAILABLE, Reason.ADMIN_UNAVAILABLE, "away")))
    monkeypatch.setattr(Session, "client", connect)
    assert (cli("top", *flags).code, connect.call_args.args) == (6, (seconds if flags else top.READ_SECONDS,))


@pytest.mark.parametrize(
    ("calls", "loads", "seconds"),
    [
        *(({"count": 3, "seconds": 2}, 3, 0.667), ({"count": 3, "seconds": 0}, 3, 0.0), ({"count": 3}, 3, None)),
        *(({"count": 0, "seconds": 2}, 0, None), ({"seconds": 2}, 0, None), ("odd", 0, None)),
        ({"count": 3, "seconds": -1}, 3, None),
    ],
)
def test_what_a_call_takes_on_average(calls, loads, seconds):
    row = replica_row({"replica": "r1", "calls": {"load": calls, "swap": {"count": 2, "seconds": 1.0}}})
    assert (row.loads, row.load_seconds, row.swaps, row.swap_seconds) == (loads, seconds, 2, 0.5)
    counts = {0: 0, 3: 3, -1: None, 2**63: None, 2**63 - 1: 2**63 - 1, 1.5: None}
    assert {one: replica_row({"engine": {"requests": one}}).requests for one in counts} == counts
    assert replica_row({"engine": {"requests": True}}).requests is None, "X2: whatever answers there"
    assert [replica_row({"engine": one, "adapters": []}).loaded for one in (ENGINE, None)] == [0, None], "not known"


def test_adapters_come_the_last_used_first_and_then_by_name():
    """Those of which nobody says when are last."""

    def says(replica: str, *found: tuple[str, float | None]) -> dict[str, Any]:
        listed = [{"name": name, "last_used_seconds": seconds, "loaded": True} for name, seconds in found]
        return {"replica": replica, "adapters": [*listed, "odd"]}

    rows = adapter_rows([says("r1", ("z", None), ("b", 5), ("a", None), ("c", 9)), says("r2", ("c", 1), ("d", 5))])
    told = [f"{one.name} {' '.join(one.replicas)} {one.last_used_seconds}" for one in rows]
    assert told == ["c r1 r2 1.0", "b r1 5.0", "d r2 5.0", "a r1 None", "z r1 None"]
    assert (rows[0].requests, rows[0].loads, rows[0].evictions) == (None, 0, 0)
    assert (adapter_rows([{"adapters": {}}]), replica_row({"adapters": 7}).loaded) == ([], None)


@pytest.fixture
def draining(admin, monkeypatch) -> Any:
    """A replica that drains, whose sidecar says in turn what it is needed for; and a clock that goes on by itself."""
    time = Time()
    monkeypatch.setattr(of_replicas, "time", time)
    admin.answers["GetReplica"] = [pb.Replica(name="r1", pool="dev")]

    def lay_down(*needs: tuple[str, str] | None) -> Time:
        left = list(needs)

        def activity(_replica: object, _seconds: float, _shown: object) -> Any:
            need = left.pop(0) if len(left) > 1 else left[0]
            return {"drain": dict(zip(("reason", "needed"), need, strict=True))} if need else {}

        monkeypatch.setattr(of_replicas, "activity_of", activity)
        return time

    return lay_down


DRAIN = ("drain", "r1", "--pool", "dev", "--wait")


def test_a_drain_is_waited_for_until_nothing_is_needed_there(cli, draining, admin):
    """R20 drain, W9 dry-run: one that is only tried would never end; programs get one object."""
    needs = (None, ("takeover", "1 of 3 are not served elsewhere"), ("nothing", "all is served elsewhere"))
    time = draining(*needs)
    ran = cli(*DRAIN, "--timeout", "60")
    assert (ran.code, ran.out.splitlines()[-1], time.pauses) == (0, "replica r1: all is served elsewhere", [1.0, 1.0])
    draining(*needs)
    assert cli("-o", "json", *DRAIN, "--timeout", "60").json["changed"] is True
    admin.requests.clear()
    assert (cli(*DRAIN, "--dry-run").code, admin.asked("GetReplica")) == (0, [])


@pytest.mark.parametrize(("flags", "seconds"), [(["--timeout", "60"], 60), ([], 300)])
@pytest.mark.parametrize(
    ("need", "code", "told"),
    [
        (("takeover", "1 of 3 waits"), 6, "DEADLINE_EXCEEDED: replica r1 drains, and after {} s: 1 of 3 waits"),
        (("nobody", "no other can"), 7, "ROLLOUT_FAILED: replica r1 drains, and after {} s: no other can"),
        (None, 6, "its sidecar has not received that yet"),
    ],
)
def test_a_drain_that_goes_on_says_why(cli, draining, monkeypatch, need, code, told, flags, seconds):
    monkeypatch.delenv("LORAPLANE_TIMEOUT")
    time = draining(need)
    ran = cli(*DRAIN, *flags)
    assert (ran.code, told.format(seconds) in ran.err, time.now) == (code, True, seconds)


def test_a_replica_that_is_gone_has_drained_and_one_that_cannot_be_asked_for_has_not(cli, admin):
    none = Refusal(grpc.StatusCode.NOT_FOUND, "REPLICA_NOT_FOUND", "none")
    denied = Refusal(grpc.StatusCode.PERMISSION_DENIED, "ETCD_PERMISSION", "not yours")
    admin.answers["GetReplica"] = [replica("r1"), none, denied]
    ran = cli(*DRAIN)
    assert (ran.code, "does not say where its sidecar listens; it drains" in ran.err) == (6, True)
    assert cli(*DRAIN).out.endswith("replica r1 is gone\n")
    ran = cli(*DRAIN)
    assert (ran.code, "not yours" in ran.err, "is gone" in ran.out) == (4, True, False)
    with sidecar(said("r9"), path="/activity") as elsewhere:
        admin.answers["GetReplica"] = [replica("r1", elsewhere)]
        assert "SIDECAR_UNAVAILABLE: another process answers" in cli(*DRAIN, "--timeout", "3").err
