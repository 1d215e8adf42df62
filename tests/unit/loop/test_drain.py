"""When an artifact may be let go of, look by look and under virtual time."""

from __future__ import annotations

import pytest

from sidecar.engines.driver import check_name
from sidecar.engines.observed import DrainEvidence, EngineFacts, Observed
from sidecar.loop.drain import EVIDENCE_GAP_SECONDS, DrainTracker

GRACE = 100.0
GAP = EVIDENCE_GAP_SECONDS


def owns(path: str) -> str | None:
    return path.removeprefix("/s/") if path.startswith("/s/") else None


class Played:
    """A retention, an engine's listing, and a clock."""

    def __init__(self, *leased: str) -> None:
        self.drain_tracker = DrainTracker(GRACE, owns)
        self.leased = set(leased)
        self.listing: dict[str, str] = {}
        self.uses: set[tuple[str, str]] = set()
        self.incarnation = "e1"
        self.now = 0.0

    def look(self) -> set[str]:
        facts = EngineFacts("vllm", "0.32.0", "http://e", self.incarnation)
        return self.drain_tracker.look(Observed(facts, ("base",), self.listing), self.uses, self.leased, now=self.now)

    def ask(
        self,
        *,
        waiting: int = 0,
        running: int = 0,
        adapters: frozenset[str] | None = frozenset(),
        paths: frozenset[str] | None = None,
    ) -> None:
        evidence = DrainEvidence(self.incarnation, waiting, running, adapters, paths)
        self.drain_tracker.testify(evidence, asked_at=self.now, now=self.now)

    def released(self) -> frozenset[str]:
        return self.drain_tracker.proven()

    def pass_grace(self) -> None:
        self.now += GRACE


@pytest.fixture
def unloaded() -> Played:
    """X was served as x, and is not listed any more."""
    played = Played()
    played.look()
    played.leased, played.listing = {"X"}, {"x": "/s/X", "y": "/s/Y", "foreign": "/elsewhere"}
    assert played.look() == {"Y"}  # the engine has it, and nobody leased it
    played.listing = {"y": "/s/Y"}
    played.look()
    return played


def test_let_go_after_the_grace_and_two_proofs(unloaded):
    """R7 files-pinned."""
    unloaded.pass_grace()
    unloaded.ask()
    assert not unloaded.released()
    unloaded.now += GAP
    unloaded.ask()
    assert unloaded.released() == {"X"}


def test_a_request_under_the_name_of_a_proof_counts(unloaded):
    """R7: a client may have found that name in the one listing which had it, and no look of ours did."""
    unloaded.pass_grace()
    for _ in range(2):
        unloaded.now += GAP
        unloaded.ask(running=1, adapters=frozenset({check_name("/s/X")}))
    assert not unloaded.released()


def test_proofs_within_the_grace_count_for_nothing(unloaded):
    """R7: a request may be on its way into the engine for a while."""
    assert not unloaded.drain_tracker.is_due(unloaded.now)
    for _ in range(3):
        unloaded.now += GAP
        unloaded.ask()
    unloaded.now = GRACE
    assert unloaded.drain_tracker.is_due(unloaded.now)
    unloaded.ask()
    assert not unloaded.released()


def test_proofs_too_close_together_are_one(unloaded):
    unloaded.pass_grace()
    for _ in range(3):
        unloaded.ask()
        unloaded.now += GAP / 4
    assert not unloaded.released()


@pytest.mark.parametrize(
    "evidence",
    [
        {"waiting": 1},
        {"running": 1, "adapters": None},
        {"running": 1, "adapters": frozenset({"x"})},
        {"running": 2, "adapters": frozenset({"x", "y"})},
    ],
)
def test_whatever_may_be_a_request_of_it_starts_the_proof_anew(unloaded, evidence):
    """R7, fault 24: which adapters queued requests are for is not known."""
    unloaded.pass_grace()
    for _ in range(2):
        unloaded.ask()
        unloaded.now += GAP
        unloaded.ask(**evidence)
        unloaded.now += GAP
    unloaded.ask()
    assert not unloaded.released()
    unloaded.now += GAP
    unloaded.ask()
    assert unloaded.released() == {"X"}


def test_requests_of_others_do_not_keep_it(unloaded):
    unloaded.pass_grace()
    unloaded.ask(running=3, adapters=frozenset({"y"}))
    unloaded.now += GAP
    unloaded.ask(running=3, adapters=frozenset({"y"}))
    assert unloaded.released() == {"X"}


@pytest.mark.parametrize(("paths", "is_released"), [({"/s/Y", "/elsewhere"}, True), ({"/s/X"}, False)])
def test_where_the_engine_tells_paths_they_alone_count(unloaded, paths, is_released):
    """R7: after a swap its name is in every sample, and requests wait that are not of it."""
    unloaded.pass_grace()
    for _ in range(2):
        unloaded.ask(waiting=3, running=1, adapters=frozenset({"x"}), paths=frozenset(paths))
        unloaded.now += GAP
    assert (unloaded.released() == {"X"}) is is_released


def test_the_name_that_it_had_keeps_it_also_where_another_has_it_now(unloaded):
    """R7: after a swap, requests of the old weights run under the name of the new ones."""
    unloaded.listing["x"] = "/s/X2"
    unloaded.look()
    unloaded.pass_grace()
    for _ in range(3):
        unloaded.ask(running=1, adapters=frozenset({"x"}))
        unloaded.now += GAP
    assert not unloaded.released()


@pytest.mark.parametrize("is_listed", [True, False])
def test_what_is_listed_or_planned_again_waits_the_grace_anew(unloaded, is_listed):
    """R7."""
    unloaded.pass_grace()
    unloaded.ask()
    unloaded.now += GAP
    unloaded.ask()
    if is_listed:
        unloaded.listing["z"] = "/s/X"
    else:
        unloaded.uses = {("z", "/s/X")}
    unloaded.look()
    assert not unloaded.released()
    unloaded.listing.pop("z", None)
    unloaded.uses = set()
    unloaded.look()
    unloaded.now += GRACE / 2
    unloaded.ask()
    assert not unloaded.released()


def test_another_engine_process_has_to_be_proven_anew(unloaded):
    """R7: also what the last process let go of."""
    unloaded.pass_grace()
    unloaded.ask()
    unloaded.now += GAP
    unloaded.ask()
    unloaded.incarnation = "e2"
    unloaded.look()
    assert not unloaded.released()
    unloaded.pass_grace()
    unloaded.ask()
    unloaded.now += GAP
    unloaded.ask()
    assert unloaded.released() == {"X"}


@pytest.mark.parametrize("is_other", [True, False])
def test_an_answer_that_is_missing_or_another_process_s_starts_the_proof_anew(unloaded, is_other):
    unloaded.pass_grace()
    unloaded.ask()
    unloaded.now += GAP
    if is_other:
        unloaded.drain_tracker.testify(DrainEvidence("e2", 0, 0, None), asked_at=unloaded.now, now=unloaded.now)
    else:
        unloaded.drain_tracker.doubt()
    unloaded.now += GAP
    unloaded.ask()
    assert not unloaded.released()


def test_what_was_leased_before_we_came_needs_an_engine_without_requests_of_any_adapter():
    """R7: nobody knows by which name its requests run."""
    played = Played("X")
    played.look()
    played.pass_grace()
    for _ in range(3):
        played.ask(running=1, adapters=frozenset({"somebody"}))
        played.now += GAP
    assert not played.released()
    for _ in range(2):
        played.ask(running=1, adapters=frozenset())
        played.now += GAP
    assert played.released() == {"X"}


def test_an_engine_that_came_while_we_watched_has_no_names_that_we_do_not_know():
    played = Played("X")
    played.look()
    played.incarnation = "e2"
    played.look()
    played.pass_grace()
    for _ in range(2):
        played.ask(running=1, adapters=frozenset({"somebody"}))
        played.now += GAP
    assert played.released() == {"X"}


def test_nothing_is_remembered_of_what_is_not_leased_any_more(unloaded):
    """R16 bounded."""
    unloaded.leased, unloaded.listing = set(), {}
    unloaded.look()
    assert not unloaded.drain_tracker._idle
    assert not unloaded.drain_tracker._names


def test_evidence_is_asked_for_twice_within_half_a_minute():
    """R7, in numbers: a request that was on its way is seen by then; files that nobody reads go the same minute."""
    played = Played()
    played.look()
    played.leased = {"X"}
    played.look()
    played.pass_grace()
    played.ask()
    played.now += 2.0
    played.ask()
    assert not played.released()
    played.now += 20.0
    played.ask()
    assert played.released() == {"X"}


def test_one_that_is_idle_for_long_is_due_though_another_is_not():
    played = Played()
    played.look()
    played.leased = {"X"}
    played.look()
    played.now = GRACE / 2
    played.leased = {"X", "Y"}
    played.look()
    assert not played.drain_tracker.is_due(played.now)
    played.now = GRACE
    assert played.drain_tracker.is_due(played.now)
    played.ask()
    played.now += GAP
    played.ask()
    assert played.released() == {"X"}, "the other has been idle for half of the grace"


def test_what_left_the_engine_before_is_no_longer_taken_for_inherited():
    """R16: once it is used under a name that we gave it, that name is all that it has."""
    played = Played("X")
    played.look()
    played.leased = set()
    played.look()
    played.leased, played.listing = {"X"}, {"x": "/s/X"}
    played.look()
    played.listing = {}
    played.look()
    played.pass_grace()
    for _ in range(2):
        played.ask(running=1, adapters=frozenset({"somebody"}))
        played.now += GAP
    assert played.released() == {"X"}
