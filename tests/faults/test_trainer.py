"""Training jobs on a real fleet: versions that are kept, answers that prove theirs, and jobs that end once."""

from __future__ import annotations

import os
import sys

import pytest

from tests.faults.trainer_hour import (
    BUDGET_BYTES,
    GROWN_SHARE,
    HISTORY_KEPT,
    Measures,
    deletions,
    most_history,
    play,
    report,
    training,
)

SEED, SECONDS = int(os.environ.get("SEED", "7")), float(os.environ.get("MINUTES", "0")) * 60


@pytest.mark.skipif("MINUTES" not in os.environ, reason="training jobs are played by make trainer")
async def test_kept_versions_are_served_and_prove_themselves_and_jobs_end_once(three, tmp_path):
    """R25 ends-once, R26 answered-by, R3, R12, R13, R16, and all that loraplane-verify checks."""
    async with training(tmp_path, three, SEED) as one:
        measures = Measures()
        try:
            await play(one, measures, seconds=SECONDS)
        finally:
            sys.stdout.write("\n".join(["", report(one, measures), *one.wrong[:10], *one.unserved[:20]]) + "\n")
        assert one.answers["proven"] > SECONDS
        assert (one.wrong, one.unserved) == ([], [])
        assert deletions(one) == {job.name: 1 for job in one.jobs}
        assert most_history(one) <= HISTORY_KEPT
        assert measures.store_bytes <= BUDGET_BYTES
        # etcd keeps the audit of all that was changed, for 30 days.
        ours = {who: share for who, share in measures.grown().items() if not who.startswith("etcd")}
        assert all(share < GROWN_SHARE for share in ours.values()), ours
