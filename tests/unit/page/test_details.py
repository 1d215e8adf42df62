"""Details of one adapter or replica, each part as far as the caller's role allows it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from starlette.requests import Request

from registry.access.control import AccessControl
from registry.access.principal import operator
from registry.admin.page import details
from registry.admin.page.details import DetailPages
from registry.admin.rpc.calls import CallContext, permit
from registry.model.errors import RegistryError
from registry.model.status import Failed
from registry.runtime.clock import Deadline
from registry.v1 import registry_pb2 as pb
from tests.support.admin import change_set, put
from tests.support.played_admin import Served, served
from tests.support.played_etcd import play
from tests.unit.admin.test_models import fleet

ACCESS = """apiVersion: loraplane/v1
kind: Access
authentication: {certificateNames: [commonName]}
bindings:
  - {role: security, users: [root]}
  - {role: viewer, users: [acme], tenants: [acme]}
  - {role: auditor, users: [acme], tenants: [acme]}
  - {role: viewer, users: [plain], tenants: ["*"]}
  - {role: router, users: [router]}
"""


@served
async def test_an_adapter_has_its_generations_and_its_audit_the_newest_first(served):
    """Who changed it to what: old and new stand in the specs of two generations."""
    await fleet(served, "p")
    await served.call("ApplyAdapters", change_set(put("acme/A", "file:///v2"), pool="p"))
    told = (await served.page("/page/adapter?pool=p&name=acme/a")).json()
    assert told["adapter"]["spec"]["source"]["uri"] == "file:///v2"
    assert [one["generation"] for one in told["history"]["entries"]] == [2, 1]
    assert told["history"]["entries"][0]["updated_by"] == "anonymous"
    actions = [one["action"] for entry in told["audit"]["entries"] for one in entry["changes"]]
    assert (actions, told["audit"]["partial"]) == (["updated", "created"], False)


@served
async def test_of_a_long_audit_the_newest_entries_are_told(served, monkeypatch):
    """R16 bounded: after so many reads it says that there may be newer ones."""
    monkeypatch.setattr(details, "_AT_ONCE", 2)
    monkeypatch.setattr(details, "MAX_ENTRIES", 3)
    await served.make_pool("p")
    for number in range(5):
        await served.call("ApplyAdapters", change_set(put("a", f"file:///v{number}"), pool="p"))
    told = (await served.page("/page/adapter?pool=p&name=a")).json()["audit"]
    assert (len(told["entries"]), told["partial"]) == (3, False)
    assert "v4" in told["entries"][0]["changes"][0]["after_json"]
    monkeypatch.setattr(details, "_READS", 1)
    assert (await served.page("/page/adapter?pool=p&name=a")).json()["audit"]["partial"] is True


@served
async def test_a_replica_has_its_status(served):
    replicas = (await fleet(served, "p"))["p"]
    failed = Failed(name="acme/A", generation=1, reason="BAD", message="<m>", attempts=1, retry_at=None)
    await replicas.says("r1", served.etcd.store.revision, failed=[failed])
    told = (await served.page("/page/replica?pool=p&name=r1")).json()
    assert (told["name"], told["status"]["failed"][0]["message"]) == ("r1", "<m>")


@pytest.mark.parametrize(
    ("path", "status", "field"),
    [
        ("/page/adapter", 400, "pool"),
        ("/page/adapter?pool=p", 400, "name"),
        ("/page/adapter?pool=a%20b&name=a", 400, "pool"),
        ("/page/adapter?pool=p&name=a%2Fb%2Fc", 400, "name"),
        ("/page/adapter?pool=p&name=none", 404, "name"),
        ("/page/replica?pool=p&name=none", 404, "name"),
        ("/page/replica?name=none", 400, "pool"),
        ("/page/replica?pool=p&name=a%2Fb", 400, "name"),
    ],
)
@served
async def test_what_is_asked_for_wrongly_is_named(served, path, status, field):
    await served.make_pool("p")
    reply = await served.page(path)
    assert (reply.status_code, reply.json()["error"]["field"]) == (status, field)


def test_each_part_is_told_as_the_role_allows(tmp_path):
    """A2 deny-by-default: the same decision as of the API's methods, for each part."""
    file = tmp_path / "access.yaml"
    file.write_text(ACCESS)

    async def scene(etcd: Any) -> None:
        served = Served(etcd)
        await fleet(served, "p")
        access = AccessControl(file, lambda: datetime(2026, 1, 1, tzinfo=UTC))
        by_method = {name: lambda request, call, name=name: called(served, name, request, call) for name in METHODS}
        pages = DetailPages(by_method, permit, lambda: datetime(2026, 1, 1, tzinfo=UTC))
        seen = {}
        for who in ("acme", "plain", "router"):
            for name in ("acme/A", "other/b"):
                query = f"pool=p&name={name}".encode()
                request = Request({"type": "http", "query_string": query, "headers": []})
                principal = operator(who)
                call = CallContext("/page/adapter", principal, Deadline.of(5), who, "c", grant=access.grant(principal))
                try:
                    body = bytes((await pages.adapter(request, call)).body).decode()
                except RegistryError as error:
                    seen[who, name] = error.reason.value
                else:
                    seen[who, name] = f"audit {'refused' not in body.partition('audit')[2]}"
        assert seen == {
            ("acme", "acme/A"): "audit True",
            ("acme", "other/b"): "PERMISSION_DENIED",
            ("plain", "acme/A"): "audit False",
            ("plain", "other/b"): "audit False",
            ("router", "acme/A"): "PERMISSION_DENIED",
            ("router", "other/b"): "PERMISSION_DENIED",
        }

    play(scene)


METHODS = ("GetAdapter", "ListAdapterHistory", "ListAudit", "GetReplica")


async def called(served: Served, method: str, request: Any, _: CallContext) -> Any:
    """The answer of a service that lets everybody in: who is asked is decided before it."""
    assert isinstance(request, pb.GetAdapterRequest | pb.ListAdapterHistoryRequest | pb.ListAuditRequest)
    return await served.call(method, request)
