"""What a whole reconciler says of adapters and pools that it cannot serve, and when it looks again."""

from __future__ import annotations

from functools import partial

from registry.cli.main import run
from registry.model.records import PoolLimits, PoolSpec
from sidecar.artifacts.examiner import EXAMINER, ExaminationLimits
from sidecar.artifacts.signing.signatures import read_keys, read_signature_policy
from tests.support.adapters import write_costly_adapter
from tests.support.records import POOL
from tests.support.rig import running_rig
from tests.support.signing import make_ec_key, make_key
from tests.support.waiting import eventually
from tests.unit.model.test_signature_policy import policy_text


async def test_an_adapter_whose_examination_was_ended_is_told_and_costs_nothing_else(tmp_path, monkeypatch):
    """R8, R16, X2: for good, in the status, by its reason; beside it everything is served."""
    monkeypatch.setattr(EXAMINER, "_limits", ExaminationLimits(processor_seconds=1))
    async with running_rig(tmp_path) as rig:
        write_costly_adapter(rig.sources / "bad")
        rig.desire(1, bad="bad", good="good")

        def is_told() -> bool:
            failed = [(one.name, one.reason, one.attempts, one.retry_at) for one in rig.status.failed]
            return failed == [("bad", "examination_failed", 1, None)] and set(rig.engine.cards) == {"good"}

        await eventually(lambda: bool(rig.statuses) and is_told())


async def test_what_was_refused_is_looked_at_anew_with_new_keys(tmp_path):
    """R8: without a restart, and without a change of its record."""
    keys = tmp_path / "keys.yaml"
    public = make_key(tmp_path)[1]
    keys.write_text("team: |\n" + "".join(f"  {line}\n" for line in public.splitlines()))
    async with running_rig(tmp_path) as rig:
        limits = PoolLimits(require_signature=True)
        rig.set_pool(PoolSpec(name=POOL, base_models=["tiny"], limits=limits))
        rig.desire(1, a="a")
        await eventually(lambda: rig.statuses and rig.reasons() == {"a": "signature_keys_missing"})
        rig.store.trust.follow(keys, read_keys, rig.store.trust.signatures.use)
        rig.mailbox.wake()
        await eventually(lambda: rig.reasons() == {"a": "signature_missing"})


async def test_a_policy_of_the_host_holds_whatever_the_pool_says_and_a_bundle_is_noticed(tmp_path):
    """A3 no-self-loosening, R8, R21 proven-here: nothing is loaded before somebody who counts signed the files."""
    file, key, (private, public) = tmp_path / "policy.yaml", tmp_path / "key.pem", make_ec_key()
    key.write_bytes(private)
    rules = [{"tenants": ["default"], "signers": ["release"], "bind": ["name"]}]
    file.write_bytes(policy_text(rules, keys={"release": public}, authorities={}))
    async with running_rig(tmp_path) as rig:
        signatures = rig.store.trust.signatures
        rig.store.trust.follow(file, read_signature_policy, partial(signatures.enforce, pool=POOL))
        rig.set_pool(PoolSpec(name=POOL, base_models=["tiny"], limits=PoolLimits(require_signature=False)))
        rig.desire(1, a="a")
        await eventually(lambda: rig.statuses and rig.reasons() == {"a": "bundle_missing"})
        assert rig.calls("load") == []
        assert run(["sign", str(rig.sources / "a"), "--key", str(key), "--name", "a"]) == 0
        await rig.served(1, "a")
        file.write_text("rules: [")
        rig.store.trust.refresh()
        rig.mailbox.wake()
        await eventually(lambda: "file_not_taken" in {one.reason for one in rig.status.warnings})
        assert set(rig.engine.cards) == {"a"}


async def test_a_replica_whose_pool_does_not_exist_is_not_ready(tmp_path):
    """R9 status-truth: what it is to serve, nobody can say; it says what is wrong until there is such a pool."""
    async with running_rig(tmp_path) as rig:
        there = rig.mailbox.snapshot.pool
        rig.set_pool(None)
        rig.desire(1, a="a")
        await eventually(lambda: rig.statuses and "loraplane pool create" in rig.status.note)
        assert not rig.status.ready
        rig.set_pool(there)
        await eventually(lambda: rig.status.ready)
        rig.set_pool(None)
        await eventually(lambda: not rig.status.ready)


async def test_a_sidecar_whose_sources_hang_ends_when_it_is_told(hand, engine, sidecar):
    """R12, X3: no thread that waits for a mount is ended by anything; who restarts it would have to wait as well."""
    sidecar.change("stuck")
    await hand.pool()
    await hand.put(hand.record("a", "v1"))
    sidecar.program.start()

    async def is_staging() -> bool:
        return [one["reason"] for one in (await sidecar.status())["pending"]] == ["staging"]

    await eventually(is_staging)
    assert sidecar.program.stop() == 0
