"""What each command sends, whole, and how long it waits for what."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import Message

from registry.model.names import REPEATED_METADATA
from registry.v1 import registry_pb2 as pb
from tests.support.fake_admin import FakeAdmin


@pytest.fixture
def store(admin) -> FakeAdmin:
    """A service that knows one adapter and one replica."""
    one = pb.Replica(name="r1", pool="dev", status_json="{}")
    admin.answers |= {"GetAdapter": [ADAPTER], "GetPool": [POOL], "UpdatePool": [POOL], "GetReplica": [one]}
    admin.answers["ListReplicas"] = [pb.ListReplicasResponse(replicas=[pb.Replica(name="r1", pool="dev")])]
    admin.answers["ListAdapters"] = [pb.ListAdaptersResponse(adapters=[ADAPTER])]
    return admin


READ, WRITE, ROLLOUT = 10, 30, 300
ADAPTER = pb.Adapter(
    name="sql",
    pool="dev",
    tenant="default",
    generation=3,
    etag="7",
    spec=pb.AdapterSpec(
        source=pb.Source(uri="s3://b/sql", digest="sha256:" + "0" * 64, signature="c2ln"),
        load="eager",
        priority=2,
        labels={"team": "x", "tier": "1"},
        placement=pb.Placement(selector={"gpu": "a10"}),
    ),
)
GROUP = pb.ReplicaGroup(labels={"zone": "a"}, replicas=2)
LIMITS = {"max_rank": 16, "target_modules": ["q_proj"], "engine_hosts": ["vllm-0"], "expected_groups": [GROUP]}
POOL = pb.Pool(name="dev", base_models=["tiny"], etag="4", limits=pb.PoolLimits(**LIMITS))


def spec(**more: object) -> pb.AdapterSpec:
    """The spec of a plain record."""
    said: dict[str, object] = {"load": "eager", "source": pb.Source(uri="s3://b/sql"), "placement": pb.Placement()}
    prepare = pb.Prepare(remap="auto", vision="reject", dora="reject")
    return pb.AdapterSpec(**{**said, "prepare": prepare, **more})


def added(etag: str, of: pb.AdapterSpec, *, pool: str = "dev") -> pb.ApplyAdaptersRequest:
    upsert = pb.Adapter(name="sql", pool=pool, spec=of)
    changes = [pb.AdapterChange(upsert=upsert, etag=etag)]
    return pb.ApplyAdaptersRequest(pool=pool, changes=changes, request_id="q1")


def again(replica: str) -> pb.ApplyAdaptersRequest:
    changes = [pb.AdapterChange(update=pb.Adapter(name="sql"))]
    return pb.ApplyAdaptersRequest(pool="dev", changes=changes, request_id="q1", retry=True, retry_replica=replica)


def changed_spec(**more: object) -> pb.AdapterSpec:
    found = pb.AdapterSpec()
    found.CopyFrom(ADAPTER.spec)
    for name, value in more.items():
        found.ClearField(name)
        found.MergeFrom(pb.AdapterSpec(**{name: value}))
    return found


def pinned(digest: str) -> pb.AdapterSpec:
    return changed_spec(source=pb.Source(uri="s3://b/sql", digest=digest, signature="c2ln"))


def set_to(of: pb.AdapterSpec) -> pb.ApplyAdaptersRequest:
    upsert = pb.Adapter()
    upsert.CopyFrom(ADAPTER)
    upsert.spec.CopyFrom(of)
    return pb.ApplyAdaptersRequest(pool="dev", changes=[pb.AdapterChange(upsert=upsert, etag="7")], request_id="q1")


def deleted(*names: str, etag: str = "", pool: str = "dev") -> pb.ApplyAdaptersRequest:
    changes = [pb.AdapterChange(delete=name, etag=etag) for name in names]
    return pb.ApplyAdaptersRequest(pool=pool, changes=changes, request_id="q1")


DIGEST = "sha256:" + "1" * 64
SIGNATURE = "A" * 86 + "=="
OF_SQL = {"pool": "dev", "name": "sql", "request_id": "q1"}
OF_P = {"name": "p", "engine": "sglang", "engine_names": "versioned"}
ALL_LIMITS: dict[str, object] = {"max_rank": 8, "max_adapters": 9, "expected_replicas": 2, "target_modules": ["q_proj"]}
ALL_LIMITS |= {"require_signature": True, "require_digest": True, "engine_hosts": ["vllm-0"], "prove": "effect"}
ALL_LIMITS |= {"expected_groups": [pb.ReplicaGroup(labels={"zone": "b"}, replicas=3)]}
SENT: dict[str, Message] = {
    "add sql --source s3://b/sql": added("0", spec()),
    "add sql --source s3://b/sql --pool other --digest {DIGEST} --signature {SIGNATURE} --lazy --priority 4 "
    "--replicas 2 --on gpu=a10 --on zone=b --label team=x --credential c --replace": added(
        "",
        spec(
            source=pb.Source(uri="s3://b/sql", digest=DIGEST, signature=SIGNATURE),
            placement=pb.Placement(replicas=2, selector={"gpu": "a10", "zone": "b"}),
            load="lazy",
            priority=4,
            labels={"team": "x"},
            credentials="c",
        ),
        pool="other",
    ),
    "set sql --priority 0": set_to(changed_spec(priority=0)),
    "set sql --lazy": set_to(changed_spec(load="lazy")),
    "set sql --replicas 2": set_to(changed_spec(placement=pb.Placement(replicas=2, selector={"gpu": "a10"}))),
    "set sql --on gpu- --on zone=b": set_to(changed_spec(placement=pb.Placement(selector={"zone": "b"}))),
    "set sql --label team- --label new=1": set_to(changed_spec(labels={"tier": "1", "new": "1"})),
    "set sql --credential c": set_to(changed_spec(credentials="c")),
    "set sql --digest {DIGEST}": set_to(pinned(DIGEST)),
    "set sql --source s3://b/other": set_to(changed_spec(source=pb.Source(uri="s3://b/other"))),
    "label sql team=y tier-": added("7", changed_spec(labels={"team": "y"})),
    "retry adapter sql": again(""),
    "retry adapters sql --replica r1": again("r1"),
    "delete a b": deleted("a", "b"),
    "delete adapters a --etag 5 --pool other": deleted("a", etag="5", pool="other"),
    "rollback sql": pb.RollbackAdapterRequest(**OF_SQL),
    "rollback sql --to 2 --etag 5 --pool other": pb.RollbackAdapterRequest(
        **OF_SQL | {"pool": "other"}, to_generation=2, etag="5"
    ),
    "rollback sql --restored": pb.RollbackAdapterRequest(**OF_SQL, restored=True),
    "rollout promote sql": pb.PromoteRolloutRequest(**OF_SQL),
    "rollout promote sql --generation 4 --etag 5": pb.PromoteRolloutRequest(**OF_SQL, generation=4, etag="5"),
    "rollout abort sql": pb.AbortRolloutRequest(**OF_SQL),
    "rollout abort sql --generation 4 --etag 5": pb.AbortRolloutRequest(**OF_SQL, generation=4, etag="5"),
    "pool create p --base-model tiny": pb.CreatePoolRequest(
        pool=pb.Pool(name="p", base_models=["tiny"], limits=pb.PoolLimits()), request_id="q1"
    ),
    "pool create p --base-model tiny --base-model small --max-rank 8 --max-adapters 9 --expect 2 "
    "--expect-labels zone=b:3 --target-module q_proj --require-signature --require-digest --engine-host vllm-0 "
    "--prove effect --engine-kind sglang --engine-names versioned": pb.CreatePoolRequest(
        pool=pb.Pool(**OF_P, base_models=["tiny", "small"], limits=pb.PoolLimits(**ALL_LIMITS)), request_id="q1"
    ),
    "pool confirm-removals dev --revision 7": pb.ConfirmRemovalsRequest(name="dev", revision=7, request_id="q1"),
    "pool confirm-removals dev --revision 1 --etag 5": pb.ConfirmRemovalsRequest(
        name="dev", revision=1, etag="5", request_id="q1"
    ),
    "pool delete dev": pb.DeletePoolRequest(name="dev", request_id="q1"),
    "pool delete dev --etag 5": pb.DeletePoolRequest(name="dev", etag="5", request_id="q1"),
    "tenant set acme --max-adapters 0": pb.SetTenantRequest(tenant=pb.Tenant(name="acme"), request_id="q1"),
    "tenant set acme --max-adapters 3": pb.SetTenantRequest(
        tenant=pb.Tenant(name="acme", max_adapters=3), request_id="q1"
    ),
    "drain r1": pb.DrainReplicaRequest(pool="dev", name="r1", request_id="q1"),
    "undrain r1 --pool other": pb.DrainReplicaRequest(pool="other", name="r1", undrain=True, request_id="q1"),
    "replica forget r1 --pool other": pb.ForgetReplicaRequest(pool="other", name="r1"),
}


@pytest.mark.parametrize(
    ("line", "dry_run"), [*((line, False) for line in SENT), *((line, True) for line in SENT if "retry" not in line)]
)
def test_a_change_is_sent_as_it_was_said_and_nothing_else(cli, store, line, dry_run):
    """W7, W9: no flag is lost, and none that was not given is made up. W8: one with an id may be a repetition."""
    flags = [] if line.startswith("replica") else ["--request-id", "q1"]
    ran = cli(*line.format(DIGEST=DIGEST, SIGNATURE=SIGNATURE).split(), *flags, *(["--dry-run"] if dry_run else []))
    assert ran.code == 0, ran.err
    expected = type(SENT[line]).FromString(SENT[line].SerializeToString())
    expected.validate_only = dry_run
    assert [one for name, one in store.requests if not name.startswith(("Get", "List", "Watch"))] == [expected]
    assert store.asked("WatchRollout") == [], "nothing is waited for without --wait"
    metadata = [one for channel in store.channels for one in channel.metadata]
    assert ((REPEATED_METADATA,) in metadata) is bool(flags)


UPDATES = {
    "--base-model small": (["base_models"], {"base_models": ["small"]}, {}),
    "--engine-kind sglang": (["engine"], {"engine": "sglang"}, {}),
    "--engine-names versioned": (["engine_names"], {"engine_names": "versioned"}, {}),
    "--max-rank 0": (["limits.max_rank"], {}, {"max_rank": 0}),
    "--max-adapters 3": (["limits.max_adapters"], {}, {"max_adapters": 3}),
    "--target-module k_proj": (["limits.target_modules"], {}, {"target_modules": ["k_proj"]}),
    "--engine-host vllm-1": (["limits.engine_hosts"], {}, {"engine_hosts": ["vllm-1"]}),
    "--expect 3": (["limits.expected_replicas"], {}, {"expected_replicas": 3}),
    "--require-signature": (["limits.require_signature"], {}, {"require_signature": True}),
    "--require-digest": (["limits.require_digest"], {}, {"require_digest": True}),
    "--max-rank 16": (["base_models"], {}, {}),
    "--no-require-digest": (["base_models"], {}, {}),
}


@pytest.mark.parametrize("flags", UPDATES)
def test_an_update_of_a_pool_touches_what_is_named_alone(cli, store, flags):
    """W4 etag: at the etag that was read; whoever names what is so already changes nothing else either."""
    mask, fields, limits = UPDATES[flags]
    assert cli("pool", "update", "dev", *flags.split(), "--request-id", "q1").code == 0
    [request] = store.asked("UpdatePool")
    expected = pb.Pool()
    expected.CopyFrom(POOL)
    for whole, values in ((expected, fields), (expected.limits, limits)):
        for name, value in values.items():
            if isinstance(value, list):
                getattr(whole, name)[:] = value
            else:
                setattr(whole, name, value)
    assert (list(request.update_mask.paths), request.pool) == (mask, expected)
    assert (request.request_id, request.validate_only) == ("q1", False)


WAITED = {
    "add sql --source s3://b/sql": 1,
    "set sql --priority 9": 1,
    "rollback sql": 3,
    "rollout promote sql": 3,
    "rollout abort sql": 3,
}
HALF = pb.Rollout(
    name="sql", generation=3, replicas=[pb.RolloutReplica(state=pb.RolloutReplica.SERVING), pb.RolloutReplica()]
)
FAILED = pb.Rollout(name="sql", generation=3, done=True, failure="replicas_failed")


def test_sources_are_looked_at_for_half_a_minute(cli, store, manifest, monkeypatch):
    """Together, before anything is sent; --look-seconds 0 not at all."""
    monkeypatch.delenv("LORAPLANE_LOOK_SECONDS")
    given: list[float] = []

    def look(seen: list[tuple[Any, Any]], _pools: Any, _reader: Any, seconds: float, *, force: bool) -> list[Any]:
        given.append(seconds)
        return [change for change, _ in seen]

    monkeypatch.setattr("registry.cli.source_reader.look_at_all", look)
    path = manifest("sql", source={"uri": "s3://b/sql"})
    for line in ("add sql --source s3://b/a", "set sql --source s3://b/a", f"apply -f {path}", f"diff -f {path}"):
        assert (cli(*line.split()).code, cli(*line.split(), "--look-seconds", "0").code) == (0, 0)
        assert cli(*line.split(), "--look-seconds", "7").code == 0
    assert given == [30.0, 7.0] * 4


# Of each command what its connections wait for, in the order in which they are opened.
WAITS = [
    *((f"get {kind}", [READ]) for kind in ("adapters", "pools")),
    *((line, [READ]) for line in ("describe pool dev", "history sql", "export", "events", "backup b.jsonl", "doctor")),
    *((line, [READ, WRITE]) for line in ("label sql a=x", "retry adapter sql", "delete sql", "set sql --priority 3")),
    ("add sql --source s3://b/sql", [READ, WRITE]),
    ("delete sql --ignore-not-found", [READ, READ, WRITE]),
    *((line, [WRITE]) for line in ("rollback sql", "rollout promote sql", "rollout abort sql", "replica forget r1")),
    *((line, [WRITE]) for line in ("drain r1", "undrain r1")),
    *((f"{verb} -f adapters.yaml", [WRITE]) for verb in ("apply", "diff")),
    *((f"pool {line}", [WRITE]) for line in ("create dev --base-model tiny", "update dev --max-rank 8", "delete dev")),
    *((line, [WRITE]) for line in ("pool confirm-removals dev --revision 7", "tenant set acme --max-adapters 3")),
    ("rollout sql", [READ, ROLLOUT]),
    ("add sql --source s3://b/sql --wait", [READ, WRITE, ROLLOUT]),
    ("rollback sql --wait", [WRITE, ROLLOUT]),
]


@pytest.mark.parametrize("line", [*WAITED, "rollout sql", "apply -f adapters.yaml"])
def test_all_replicas_are_waited_for_unless_fewer_suffice(cli, store, manifest, line):
    """R9 status-truth: one that serves it is no reason to say that all do. In a dry run nothing is waited for."""
    manifest("sql")
    wait = [] if line == "rollout sql" else ["--wait"]
    if line in WAITED:
        assert (cli(*line.split(), "--dry-run", *wait).code, store.asked("WatchRollout")) == (0, [])
        assert cli(*line.split(), *wait).code == 0
        expected = pb.WatchRolloutRequest(pool="dev", name="sql", generation=WAITED[line])
        assert store.asked("WatchRollout") == [expected], "of the generation that was made"
    store.answers["WatchRollout"] = [[HALF, FAILED]]
    assert (cli(*line.split(), *wait).code, cli(*line.split(), *wait, "--min-ready", "1").code) == (7, 0)


def waits(admin: FakeAdmin) -> list[int]:
    """How long each connection waits, and then what is left for a rollout; a little of it may be gone already."""
    found: list[int] = []
    for channel in admin.channels:
        whole = [READ, WRITE, ROLLOUT, 1000]
        given = [next(one for one in whole if seconds <= one) for seconds in channel.timeouts if seconds != 5.0]
        found += dict.fromkeys(given)
    admin.channels.clear()
    return found


@pytest.mark.parametrize(("line", "expected"), WAITS)
def test_what_only_reads_gives_up_sooner_than_what_changes(cli, store, manifest, monkeypatch, line, expected):
    """A change waits 30 s, a rollout 300 s, what is only asked 10 s: so long an outage is passed over."""
    monkeypatch.setattr("registry.client.transport.TRY_SECONDS", 10_000.0)
    monkeypatch.delenv("LORAPLANE_TIMEOUT")
    manifest("sql")
    ran = cli(*line.split())
    assert (ran.code, waits(store)) == (4 if line == "doctor" else 0, expected), ran.err
    ran = cli(*line.replace("b.jsonl", "c.jsonl").split(), "--timeout", "1000")
    assert ran.code == (4 if line == "doctor" else 0), ran.err
    assert {*waits(store)} == {1000}, "who says how long is waited for so long by every call"
