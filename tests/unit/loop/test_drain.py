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

    def asked(self, times: int = 2, **evidence: object) -> set[str]:
        """What may be let go of after so many questions, with a gap between them."""
        for _ in range(times):
            self.ask(**evidence)  # type: ignore[arg-type]
            self.now += GAP
        return set(self.drain_tracker.proven())

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


@pytest.fixture
def idle(unloaded) -> Played:
    """As `unloaded`, and the grace is over."""
    unloaded.pass_grace()
    return unloaded


def test_let_go_after_the_grace_and_two_proofs(idle):
    """R7 files-pinned."""
    assert idle.asked(1) == set()
    assert idle.asked(1) == {"X"}


def test_proofs_within_the_grace_count_for_nothing(unloaded):
    """R7: a request may be on its way into the engine for a while."""
    assert not unloaded.drain_tracker.is_due(unloaded.now)
    unloaded.asked(3)
    unloaded.now = GRACE
    assert unloaded.drain_tracker.is_due(unloaded.now)
    assert unloaded.asked(1) == set()


def test_proofs_too_close_together_are_one_and_two_take_less_than_half_a_minute(idle):
    """R7, in numbers: a request that was on its way is seen by then; files that nobody reads go the same minute."""
    for _ in range(3):
        idle.ask()
        idle.now += GAP / 4
    assert idle.drain_tracker.proven() == set()
    assert 2.0 < GAP <= 20.0


@pytest.mark.parametrize(("began", "seconds"), [(GRACE - 1.0, 2.0), (GRACE + GAP + 0.1, GAP)], ids=["grace", "gap"])
def test_what_an_engine_says_late_is_of_the_moment_at_which_it_was_asked(unloaded, began, seconds):
    """R7: it may have looked at once, and answered only after the grace, or long after it was asked the last time."""
    unloaded.now = GRACE + GAP
    if began > GRACE:
        unloaded.ask()
    said = DrainEvidence("e1", 0, 0, frozenset())
    unloaded.drain_tracker.testify(said, asked_at=began, now=began + seconds)
    unloaded.now = GRACE + GAP + seconds
    assert unloaded.drain_tracker.proven() == set()
    unloaded.ask()
    assert (unloaded.drain_tracker.proven() == {"X"}) is (began > GRACE)


@pytest.mark.parametrize(
    "evidence",
    [
        {"waiting": 1},
        {"running": 1, "adapters": None},
        {"running": 1, "adapters": frozenset({"x"})},
        {"running": 2, "adapters": frozenset({"x", "y"})},
        {"running": 1, "adapters": frozenset({check_name("/s/X")})},  # a client may have found that name
    ],
)
def test_whatever_may_be_a_request_of_it_starts_the_proof_anew(idle, evidence):
    """R7, fault 24: which adapters queued requests are for is not known."""
    for _ in range(2):
        idle.asked(1)
        idle.asked(1, **evidence)
    assert idle.asked(1) == set()
    assert idle.asked(1) == {"X"}


@pytest.mark.parametrize(
    ("evidence", "is_released"),
    [
        ({"running": 3, "adapters": frozenset({"y"})}, True),
        ({"waiting": 3, "running": 1, "adapters": {"x"}, "paths": frozenset({"/s/Y", "/elsewhere"})}, True),
        ({"waiting": 3, "running": 1, "adapters": {"x"}, "paths": frozenset({"/s/X"})}, False),
    ],
    ids=["others", "paths of others", "its path"],
)
def test_requests_of_others_do_not_keep_it_and_where_paths_are_told_they_alone_count(idle, evidence, is_released):
    """R7: after a swap its name is in every sample, and requests wait that are not of it."""
    assert idle.asked(**evidence) == ({"X"} if is_released else set())


def test_the_name_that_it_had_keeps_it_also_where_another_has_it_now(unloaded):
    """R7: after a swap, requests of the old weights run under the name of the new ones."""
    unloaded.listing["x"] = "/s/X2"
    unloaded.look()
    unloaded.pass_grace()
    assert unloaded.asked(3, running=1, adapters=frozenset({"x"})) == set()


@pytest.mark.parametrize("is_listed", [True, False])
def test_what_is_listed_or_planned_again_waits_the_grace_anew(idle, is_listed):
    """R7."""
    idle.asked()
    if is_listed:
        idle.listing["z"] = "/s/X"
    else:
        idle.uses = {("z", "/s/X")}
    idle.look()
    assert idle.drain_tracker.proven() == set()
    idle.listing.pop("z", None)
    idle.uses = set()
    idle.look()
    idle.now += GRACE / 2
    assert idle.asked(1) == set()


def test_another_engine_process_has_to_be_proven_anew(idle):
    """R7: also what the last process let go of."""
    idle.asked()
    idle.incarnation = "e2"
    idle.look()
    assert idle.drain_tracker.proven() == set()
    idle.pass_grace()
    assert idle.asked() == {"X"}


@pytest.mark.parametrize("is_other", [True, False])
def test_an_answer_that_is_missing_or_another_process_s_starts_the_proof_anew(idle, is_other):
    idle.asked(1)
    if is_other:
        idle.drain_tracker.testify(DrainEvidence("e2", 0, 0, None), asked_at=idle.now, now=idle.now)
    else:
        idle.drain_tracker.doubt()
    idle.now += GAP
    assert idle.asked(1) == set()


SOMEBODY = {"running": 1, "adapters": frozenset({"somebody"})}


def test_what_was_leased_before_we_came_needs_an_engine_without_requests_of_any_adapter():
    """R7: nobody knows by which name its requests run."""
    played = Played("X")
    played.look()
    played.pass_grace()
    assert played.asked(3, **SOMEBODY) == set()
    assert played.asked(running=1) == {"X"}


@pytest.mark.parametrize("is_new_process", [True, False])
def test_whose_names_are_known_is_not_taken_for_inherited(is_new_process):
    """R16: of an engine that came while we watched, and of what left it and was used under a name of ours since."""
    played = Played("X")
    played.look()
    if is_new_process:
        played.incarnation = "e2"
    else:
        played.leased = set()
        played.look()
        played.leased, played.listing = {"X"}, {"x": "/s/X"}
        played.look()
        played.listing = {}
    played.look()
    played.pass_grace()
    assert played.asked(**SOMEBODY) == {"X"}


def test_each_path_that_is_in_use_is_looked_at_once_however_much_is_idle():
    """X2: a thousand new versions leave a thousand idle at once, and the event loop has a lease to keep."""
    asked = list[str]()
    tracker, names = DrainTracker(GRACE, lambda path: asked.append(path) or owns(path)), range(100)
    facts = EngineFacts("vllm", "0.32.0", "http://e", "e1")
    tracker.look(Observed(facts, ("base",)), (), {f"X{name}" for name in names}, now=0.0)
    paths = frozenset(f"/s/X{name}" for name in names if name)
    for at in (GRACE, GRACE + GAP):
        asked.clear()
        tracker.testify(DrainEvidence("e1", 0, 0, frozenset(), paths), asked_at=at, now=at)
        assert sorted(asked) == sorted(paths)
    assert tracker.proven() == {"X0"}
