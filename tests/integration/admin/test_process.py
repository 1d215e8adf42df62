"""``loraplane-admin`` as a process: flags, waiting for etcd, signals, logs."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import grpc
import pytest

from registry.v1 import registry_pb2 as pb
from registry.v1 import registry_pb2_grpc
from tests.support.admin import AdminProgram, admin_program, change_set, put
from tests.support.etcd import make_cluster
from tests.support.processes import Program
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

POOL = pb.CreatePoolRequest(pool=pb.Pool(name="p", base_models=["b"]))


@asynccontextmanager
async def reached(service: AdminProgram) -> AsyncIterator[Any]:
    """A stub of it, once it is ready."""
    await eventually(service.is_ready)
    async with grpc.aio.insecure_channel(service.address) as channel:
        yield registry_pb2_grpc.AdapterRegistryStub(channel)


async def test_waits_serves_and_stops(tmp_path):
    """etcd is down at start: it says so once and comes up; SIGTERM ends it with 0; each change is logged."""
    cluster = make_cluster(tmp_path / "etcd")
    service = admin_program(tmp_path, cluster.endpoints, "/t")
    service.program.start()
    try:
        await eventually(lambda: [one for one in service.program.logged() if one["event"] == "not_ready"])
        cluster.start()
        async with reached(service) as stub:
            await stub.CreatePool(POOL)
            reply = await stub.ApplyAdapters(change_set(put("acme/a"), request_id="r1"))
        assert service.program.stop() == 0
    finally:
        service.program.kill()
        cluster.stop()
    logged = service.program.logged()
    events = [one["event"] for one in logged]
    said = [one.get("reason") for one in logged if one["event"] in {"not_ready", "ready"}]
    assert all(one != other for one, other in pairwise(said))
    assert events[-2:] == ["stopping", "stopped"]
    (change,) = [one for one in logged if one.get("request_id") == "r1"]
    assert (change["event"], change["revision"], change["principal"]) == ("change_settled", reply.revision, "anonymous")


async def test_a_call_in_flight_is_finished(etcd, tmp_path):
    """Graceful stop: SIGTERM in the middle of many calls; those that were taken are carried out and answered."""
    numbers = count()
    await eventually(lambda: are_finished(etcd, tmp_path / str(next(numbers))))


async def are_finished(etcd, folder: Path) -> bool:
    """True if all but few calls were carried out. Where a machine takes longer than the grace, it has to cut some."""
    service = admin_program(folder, etcd.endpoints, f"{etcd.prefix}/{folder.name}")
    service.program.start()
    try:
        async with reached(service) as stub:
            await stub.CreatePool(POOL)
            calls = [stub.ApplyAdapters(change_set(put(f"acme/n{i}"))) for i in range(30)]
            await calls[0]
            service.program.signal(signal.SIGTERM)
            codes = [await call.code() for call in calls]
        assert service.program.wait() == 0
    finally:
        service.program.kill()
    assert set(codes) <= {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
    return codes.count(grpc.StatusCode.OK) >= 20


async def test_killed_between_commit_and_reply(etcd, ledger, admin, tmp_path):
    """Fault 36, W1, W3, W8: whoever is asked again with the same id gives the reply that was never sent."""
    async with Proxy(etcd.cluster.members[0].client_port) as proxy:
        service = admin_program(tmp_path, [proxy.endpoint], etcd.prefix)
        service.program.start()
        try:
            async with reached(service) as stub:
                await stub.ApplyAdapters(change_set(put("acme/a")))
                before = await ledger.revision()
                proxy.hold_replies()
                request = change_set(put("acme/a", "file:///a/v2"), request_id="once")
                call = stub.ApplyAdapters(request, timeout=60)

                async def is_committed() -> bool:
                    return await ledger.revision() > before

                await eventually(is_committed)
                await eventually(lambda: proxy.held)
                service.program.kill()
                assert await call.code() is grpc.StatusCode.UNAVAILABLE
        finally:
            service.program.kill()
    committed = await ledger.revision()
    reply = await admin.stub.ApplyAdapters(request)
    assert (reply.revision, reply.results[0].outcome) == (committed, pb.AdapterResult.UPDATED)
    assert await ledger.revision() == committed
    await ledger.check()


@pytest.mark.parametrize(
    ("flag", "value", "says"),
    [
        ("--tls-cert", "x.pem", "--tls-cert and --tls-key go together"),
        ("--listen", "0.0.0.0:0", "--listen 0.0.0.0:0: anybody may read and change everything there"),
        ("--frob", "x", "unrecognized arguments: --frob x; see loraplane-admin --help"),
        ("--http", None, "Address already in use"),
    ],
)
def test_a_wrong_flag_is_one_line_and_exit_code_2(etcd, tmp_path, flag, value, says):
    """Those of tests/unit/admin/test_settings.py too; without a value the port is etcd's."""
    given = {"--listen": "127.0.0.1:0", "--http": "127.0.0.1:0", flag: value or etcd.endpoints[0]}
    command = [part for pair in given.items() for part in pair]
    program = Program("registry.admin.main", command, tmp_path / "log", {"LORAPLANE_ETCD": etcd.endpoints[0]})
    program.start()
    code, said = program.wait(), program.log.read_text()
    (line,) = said.splitlines()
    assert (code, line.startswith("loraplane-admin: "), says in line) == (2, True, True), said
