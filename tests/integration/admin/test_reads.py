"""Pages of a listing on a real etcd that goes on, and forgets."""

from __future__ import annotations

from grpc import StatusCode

from registry.v1 import registry_pb2 as pb
from tests.support.admin import change_set, drop, put, refusal
from tests.support.etcd import compact


async def test_pages_show_one_revision_until_it_is_compacted(ledger, admin):
    """R9: whatever happens meanwhile; then it is said to start again."""
    await admin.stub.ApplyAdapters(change_set(*(put(f"a{i}") for i in range(5))))
    request = pb.ListAdaptersRequest(pool="p", page_size=2, filter="name=a*")
    first = page = await admin.stub.ListAdapters(request)
    later = await admin.stub.ApplyAdapters(change_set(drop("a2"), put("a3", "file:///other"), put("a9")))
    names = [one.name for one in first.adapters]
    while page.next_page_token:
        request.page_token = page.next_page_token
        page = await admin.stub.ListAdapters(request)
        assert page.revision == first.revision
        names += [one.name for one in page.adapters]
    assert names == ["a0", "a1", "a2", "a3", "a4"]
    await compact(ledger.client, later.revision)
    request.page_token = first.next_page_token
    told = await refusal(admin.stub.ListAdapters(request))
    assert (told.code, told.reason) == (StatusCode.FAILED_PRECONDITION, "REVISION_COMPACTED")


async def test_a_page_token_fits_only_the_request_that_it_came_from(admin):
    await admin.stub.ApplyAdapters(change_set(put("a1"), put("a2")))
    token = (await admin.stub.ListAdapters(pb.ListAdaptersRequest(pool="p", page_size=1))).next_page_token
    nobodys = "WzEsIDIsIDNd"
    for call in (
        admin.stub.ListAdapters(pb.ListAdaptersRequest(pool="p", page_token=nobodys)),
        admin.stub.ListPools(pb.ListPoolsRequest(page_token=token)),
        admin.stub.ListAdapters(pb.ListAdaptersRequest(pool="p", filter="name=a*", page_token=token)),
    ):
        told = await refusal(call)
        assert (told.code, told.reason, told.field) == (StatusCode.INVALID_ARGUMENT, "INVALID_PAGE_TOKEN", "page_token")
