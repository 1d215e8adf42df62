"""The public package: its names, two classes that are one, and what programs are told, to the last field."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from pathlib import Path

import pytest

import loraplane
from loraplane import AsyncRegistry, Registry, RegistryError
from registry.client.adapters import (
    AdapterHistory,
    AdapterListing,
    AnsweredBy,
    Canaries,
    FoldedAdapters,
    RegisteredAdapter,
    adapter_of,
    history_of,
    strategy_of,
)
from registry.client.address import Tls, check_address
from registry.client.fleet.rolling import waiting_of
from registry.client.fleet.values import (
    ChangedValue,
    FleetReplica,
    RecordedEvent,
    RegisteredPool,
    TenantQuota,
    event_of,
    pool_of,
    replica_of,
    replicas_of,
    tenant_of_wire,
)
from registry.client.residency import AdapterResidency, Follower, Residence, State, WantedResidence
from registry.model import errors
from registry.model.errors import InvalidArgument, Reason
from registry.model.records import Canary, Strategy
from registry.v1 import registry_pb2 as pb

METHODS = [
    *("abort", "apply", "audit", "create_pool", "delete_pool", "disable", "drain", "enable", "events"),
    *("forget", "get", "get_pool"),
    *("get_replica", "history", "list", "pools", "promote", "publish", "replicas", "residency", "retry", "rollback"),
    *("set_quota", "tenants", "undrain", "update_pool", "wait", "wait_served", "watch", "watch_audit", "withdraw"),
]
# How the connection itself is ended differs, as it does in the standard library.
OWN = {"aclose", "close"}


def methods(kind: type) -> list[str]:
    return sorted(name for name in dir(kind) if not name.startswith("_") and name not in OWN)


def test_both_classes_have_the_same_methods():
    assert methods(Registry) == methods(AsyncRegistry) == METHODS


@pytest.mark.parametrize("name", METHODS)
def test_a_method_takes_and_says_the_same_in_both(name):
    """Each parameter, and what it raises; of the one that is to go no more is said than that."""
    plain, asynchronous = getattr(Registry, name), getattr(AsyncRegistry, name)
    parameters, told = inspect.signature(plain).parameters, inspect.getdoc(plain) or ""
    assert (parameters, told) == (inspect.signature(asynchronous).parameters, inspect.getdoc(asynchronous))
    if name != "wait_served":
        assert [one for one in [*parameters][1:] if f"\n    {one}: " not in told] == []
        assert ("timeout_seconds" in told, "\nRaises:\n" in told) == (True, True)


def test_it_re_exports_the_client_and_the_errors_and_nothing_else():
    body = ast.parse(Path(loraplane.__file__).read_text()).body[1:]
    *imports, names = body
    modules = {one.module for one in imports if isinstance(one, ast.ImportFrom)}
    assert all(module == "registry.model.errors" or str(module).startswith("registry.client.") for module in modules)
    assert isinstance(names, ast.Assign)
    assert len(imports) == len(modules)
    assert sorted(loraplane.__all__) == sorted(one.name for each in imports for one in each.names)
    kinds = {kind.__name__ for kind in RegistryError.__subclasses__() if kind.__module__ == errors.__name__}
    assert (kinds <= set(loraplane.__all__), Path(loraplane.__file__).with_name("py.typed").exists()) == (True, True)


SOURCE = pb.Source(uri="s3://a/3/", digest="sha256:3")
SPEC = pb.AdapterSpec(source=SOURCE, base_model="base", load="lazy", labels={"team": "bi"}, priority=5)
ABOUT = {"name": "acme/A", "pool": "p", "tenant": "acme", "generation": 3, "etag": "17", "updated_at": "then"}
HALTED = pb.CanaryRollout(stable_generation=0, halted="why")
WIRE = pb.Adapter(**ABOUT, updated_by="alice", request_id="q", spec=SPEC, rollout=HALTED)
ADAPTER = RegisteredAdapter(
    *("acme/A", "p", "acme", 3, "s3://a/3/", "sha256:3", "base", "lazy", 5, {"team": "bi"}),
    *("17", "then", "alice", "q", 0, "why"),
)
BARE = RegisteredAdapter("", "", "", 0, "", "", "", "eager", 0, {}, "", "", "", "", None, "")


def test_an_adapter_has_each_of_its_fields():
    """What is not said is empty, and nobody can change what was told. A history has all of its generations; canaries
    begin a rollout as a record does.
    """
    assert (adapter_of(WIRE), adapter_of(pb.Adapter())) == (ADAPTER, BARE)
    restored = adapter_of(pb.Adapter(restored_by=pb.Restoration(principal="mallory", at="then")))
    assert (restored.restored_by, restored.restored_at) == ("mallory", "then")
    ends = adapter_of(pb.Adapter(spec=pb.AdapterSpec(ttl_seconds=60), expires_at="then"))
    assert (ends.ttl_seconds, ends.expires_at) == (60, "then")
    keeps = adapter_of(pb.Adapter(spec=pb.AdapterSpec(keep=3), kept_generations=[8, 7]))
    assert (keeps.keep, keeps.kept_generations) == (3, (8, 7))
    assert adapter_of(pb.Adapter(scaled=pb.ScaledReplicas(replicas=3))).scaled_replicas == 3
    with pytest.raises(TypeError):
        adapter_of(WIRE).labels["x"] = "y"  # type: ignore[index] # which is what is tried
    history = pb.ListAdapterHistoryResponse(generations=[WIRE, pb.Adapter()], unreadable=[2, 1])
    assert history_of(history) == AdapterHistory((ADAPTER, BARE), (2, 1))
    assert strategy_of(Canaries(3)) == pb.Strategy(canary_replicas="3", promote="auto", max_failures=0, soak_seconds=60)
    told, recorded = Canaries(2), Strategy(canary=Canary(replicas=2))
    for name in ("promote", "max_failures", "soak_seconds"):
        assert getattr(told, name) == getattr(recorded, name), "by whichever way a rollout is begun"


def test_a_replica_of_a_pool_is_told_with_each_of_its_fields():
    """R9: what it serves, what it is to serve, and how it stands to both."""
    said = {"replica": "r1", "engine_url": "http://r1", "labels": {"zone": "a"}, "model": "a@3", "generation": 3}
    said |= {"reason": "earlier_generation", "loaded": True, "last_used": "then"}
    wanted = {"wanted_generation": 4, "wanted_state": pb.RolloutReplica.PENDING, "wanted_reason": "staging"}
    part = pb.Residence(**said, **wanted, state=pb.RolloutReplica.SERVING)
    one = pb.AdapterResidency(name="A", generation=4, load="eager", replicas=[part, pb.Residence()], note="n")
    told = Follower().take(pb.WatchResidencyResponse(adapters=[one], snapshot=True, revision=9))
    assert told is not None
    serving = Residence(**said, state=State.SERVING, wanted=WantedResidence(4, State.PENDING, "staging"))
    other = Residence("", "", {}, "", 0, State.UNKNOWN, "", loaded=False, last_used="")
    assert dict(told.adapters) == {"a": AdapterResidency("A", 4, "eager", (serving, other), "n")}
    assert (told.revision, told.adapters["a"].serving) == (9, (serving,))


@pytest.mark.parametrize(
    ("state", "known"),
    [
        *((pb.RolloutReplica.PENDING, State.PENDING), (pb.RolloutReplica.SERVING, State.SERVING)),
        *((pb.RolloutReplica.FAILED, State.FAILED), (pb.RolloutReplica.UNKNOWN, State.UNKNOWN)),
        *((0, State.UNKNOWN), (99, State.UNKNOWN)),
    ],
)
def test_each_state_is_told_by_its_name(state, known):
    """R9: one that only a later release knows is none in which requests may come."""
    one = pb.AdapterResidency(name="a", replicas=[pb.Residence(state=state, wanted_state=state)])
    told = Follower().take(pb.WatchResidencyResponse(adapters=[one], snapshot=True))
    assert told is not None
    (part,) = told.adapters["a"].replicas
    assert part.state is known
    assert part.wanted == (WantedResidence(0, known, "") if state else None)


def take(follower: Follower, *names: str, **fields: object) -> list[str] | None:
    adapters = [pb.AdapterResidency(name=name) for name in names]
    told = follower.take(pb.WatchResidencyResponse(adapters=adapters, **fields))
    return None if told is None else sorted(told.adapters)


def test_a_snapshot_in_parts_replaces_what_was_before_it_once():
    """R9: with the last of its parts, and only then."""
    follower = Follower()
    assert take(follower, "a", "b", snapshot=True) == ["a", "b"]
    assert take(follower, "c", snapshot=True, more=True) is None
    assert take(follower, "d", snapshot=True, more=True) is None
    assert take(follower, "e", snapshot=True) == ["c", "d", "e"]
    assert take(follower, "F", gone=["c"], more=True) is None
    assert (take(follower, gone=["d", "nothing"]), take(follower, "g", snapshot=True)) == (["e", "f"], ["g"])
    assert take(follower, "h", more=True) is None
    assert take(follower, "i", snapshot=True) == ["i"]


@pytest.mark.parametrize("seconds", [0, 1, 0.0, 30.5])
def test_seconds_in_the_place_of_it_still_mean_to_wait(seconds):
    assert [waiting_of(wait, 9.0) for wait in (True, False)] == [(True, 9.0), (False, 9.0)]
    with pytest.warns(DeprecationWarning, match="use timeout_seconds"):
        assert waiting_of(seconds, 9.0) == (True, seconds)


@pytest.mark.parametrize(
    ("tls", "is_on", "is_right"),
    [
        *((Tls(), False, True), (Tls(ca=Path("a")), True, True), (Tls(Path("a"), Path("c"), Path("k")), True, True)),
        *((Tls(cert=Path("c")), True, False), (Tls(key=Path("k")), True, False)),
    ],
)
def test_a_certificate_has_its_key(tls, is_on, is_right):
    assert bool(tls) is is_on
    if is_right:
        files = tls.files()
        assert (files.ca, files.certificate, files.key) == (tls.ca, tls.cert, tls.key)
    else:
        with pytest.raises(InvalidArgument) as told:
            tls.files()
        assert told.value.field == "tls"


def test_files_of_tls_may_be_named_by_text():
    """As docs/litellm.md does; the empty text of a variable that is not set names none."""
    assert Tls("a", "c", "k") == Tls(Path("a"), Path("c"), Path("k"))
    assert Tls(ca="a").files().ca == Path("a")
    assert not Tls("", "", "")


@pytest.mark.parametrize(
    ("address", "is_one"),
    [
        *((one, True) for one in ("h:1", "10.0.0.1:65535", "[::1]:7600", "dns:admin", "unix:/run/a", "ipv4:1.2.3.4:5")),
        *((one, True) for one in ("dns:///admin:7600", "admin.svc:7600")),
        *((one, False) for one in ("h", "h:", ":1", "h:123456", "h:a", "http://h:1", "a b:1", "h:1/", "file:a")),
    ],
)
def test_an_address_is_one_that_grpc_finds(address, is_one):
    if is_one:
        check_address(address)
        return
    with pytest.raises(InvalidArgument, match="is not HOST:PORT") as refused:
        Registry(address)
    assert (refused.value.reason, refused.value.field) == (Reason.INVALID_FIELD, "address")


def told(*names: str, **fields: object) -> pb.WatchAdaptersResponse:
    events = [pb.AdapterEvent(put=pb.Adapter(name=name)) for name in names]
    return pb.WatchAdaptersResponse(events=events, revision=5, **fields)


def test_a_watch_is_folded_into_whole_listings():
    """A snapshot replaces all; what cannot be read is named, until it can be, or is gone."""
    folded = FoldedAdapters()
    assert folded.take(told("b", snapshot=True, more=True)) is None
    first = folded.take(told("A", snapshot=True))
    assert first is not None
    assert ([one.name for one in first.adapters], first.unreadable, first.revision) == (["A", "b"], (), 5)
    lost = [pb.AdapterEvent(deleted="b"), pb.AdapterEvent(unreadable="a"), pb.AdapterEvent(deleted="none")]
    assert folded.take(pb.WatchAdaptersResponse(events=lost, revision=6)) == AdapterListing((), ("a",), 6)
    again = folded.take(told("A"))
    assert again is not None
    assert (len(again.adapters), again.unreadable) == (1, ())
    assert folded.take(told("B", more=True)) is None
    other = folded.take(told("c", snapshot=True))
    assert other is not None
    assert [one.name for one in other.adapters] == ["c"], "also where a change was told in part before"


def test_fleets_are_told_with_each_of_their_fields():
    """R9: also of what says nothing; the URL that a pool does not allow is not told, wherever it stands."""
    limits = {"max_rank": 8, "max_adapters": 9, "expected_replicas": 2, "require_digest": True}
    wire = pb.Pool(name="p", base_models=["b"], engine_names="versioned", etag="7", limits=pb.PoolLimits(**limits))
    pool = RegisteredPool(
        "p", ("b",), "vllm", "versioned", 8, 9, 2, require_digest=True, require_signature=False, etag="7"
    )
    assert (pool_of(wire), pool_of(pb.Pool()).max_rank) == (pool, None)
    status = '{"engine": {"url": "http://e"}}'
    about = {"name": "r", "pool": "p", "labels": {"zone": "a"}, "version": "1", "host": "h", "started_at": "then"}
    live = replica_of(pb.Replica(**about, leaving=True, status_json=status))
    assert live == FleetReplica(**about, leaving=True, engine_url="http://e", status={"engine": {"url": "http://e"}})
    withheld = pb.Replica(status_json=status, withheld_engine_url="http://e")
    assert [replica_of(one).engine_url for one in (withheld, pb.Replica(), pb.Replica(engine_url="u"))] == ["", "", "u"]
    for said in ("{", "[]", "null", '{"engine": null}', '{"engine": {"url": 7}}', "[" * 100_000):
        odd = replica_of(pb.Replica(name="r", status_json=said))
        assert (odd.name, odd.engine_url, isinstance(odd.status, Mapping)) == ("r", "", True), said
    last = pb.ListReplicasResponse(missing=[pb.MissingReplica(name="m")], lacking=2)
    listing = replicas_of([pb.ListReplicasResponse(replicas=[pb.Replica(name="r")]), last])
    assert ([one.name for one in listing.replicas], listing.missing, listing.lacking) == (["r"], ("m",), 2)
    assert tenant_of_wire(pb.Tenant(name="t", adapters=1, etag="3")) == TenantQuota("t", 1, None, "3")
    change = {"at": "t", "principal": "a", "request_id": "q", "method": "m", "kind": "adapter", "name": "n"}
    values = [pb.ChangedValue(path="load", before_json='"eager"', after_json='"lazy"')]
    wire = pb.RecordedChange(**change, action="updated", generation=2, fields=["load"], note="why", values=values)
    told = (ChangedValue("load", '"eager"', '"lazy"'),)
    assert event_of(wire) == RecordedEvent(
        **change, action="updated", generation=2, fields=("load",), note="why", values=told
    )


DIGEST = "sha256:" + "d" * 64


@pytest.mark.parametrize("name", ["x-loraplane-adapter", "X-Loraplane-Adapter"])
def test_an_answer_says_which_version_made_it(name):
    """R26 answered-by: as clients of HTTP spell headers."""
    headers = {"content-type": "text/plain", name: f"acme/sql@12 {DIGEST}"}
    assert AnsweredBy.of(headers) == AnsweredBy("acme/sql", 12, DIGEST)


@pytest.mark.parametrize(
    "told", ["", "acme/sql", f"acme/sql@0 {DIGEST}", "acme/sql@1 sha256:0", f"a@{'9' * 30} {DIGEST}"]
)
def test_what_is_no_proof_proves_nothing(told):
    assert AnsweredBy.of({"x-loraplane-adapter": told}) is None
    assert AnsweredBy.of({}) is None
