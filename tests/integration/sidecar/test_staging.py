"""A staging that goes wrong in a way that nobody foresaw, in a whole reconciler."""

from __future__ import annotations

from sidecar.artifacts.types import ArtifactRef, Staged
from tests.support.rig import running_rig
from tests.support.waiting import eventually


async def test_a_fault_of_ours_over_one_adapter_ends_nothing_else(tmp_path, monkeypatch):
    """R8 isolation: it is told by its name and tried again; what else is desired is served, now and later."""
    async with running_rig(tmp_path) as rig:
        ensure = rig.store.ensure

        async def breaking(ref: ArtifactRef) -> Staged:
            if ref.uri.endswith("/bad"):
                raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")
            return await ensure(ref)

        monkeypatch.setattr(rig.store, "ensure", breaking)
        rig.desire(1, bad="bad", good="good")

        def is_told() -> bool:
            assert rig.statuses
            failed = {one.name: (one.reason, one.retry_at is not None) for one in rig.status.failed}
            return failed == {"bad": ("internal_error", True)} and set(rig.engine.cards) == {"good"}

        await eventually(is_told)
        rig.desire(2, bad="bad", good="good", later="later")
        await eventually(lambda: set(rig.engine.cards) == {"good", "later"})
        monkeypatch.undo()
        rig.desire(3, bad="bad", good="good")
        await rig.served(3, "bad", "good")
