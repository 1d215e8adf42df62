"""Nothing that an engine may read ever disappears, whatever happens in whatever order; and what may go, goes."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from sidecar.artifacts import removal
from sidecar.artifacts.steps import RemovalStep, Step
from sidecar.observed import Observed
from sidecar.retention import Retention
from tests.support.kept import GRACE, HostWorld, MakeRetention, Request

REPLICAS = 2
names, replicas = st.sampled_from(["a", "b"]), st.integers(0, REPLICAS - 1)


class Keeping(RuleBasedStateMachine):
    """Sidecars plan, call and keep; engines are asked, restart and fall silent; processes are killed at any step."""

    make_retention: MakeRetention = Retention

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(dir="/dev/shm")
        self.world = HostWorld(Path(self.folder.name), REPLICAS, type(self).make_retention)

    @rule(number=replicas, name=names, source=st.integers(0, 2))
    def desire(self, number, name, source):
        self.world.replicas[number].desired[name] = self.world.ref(source)

    @rule(number=replicas, name=names)
    def drop(self, number, name):
        self.world.replicas[number].desired.pop(name, None)

    @rule(number=replicas)
    def plan(self, number):
        self.world.run(number, lambda replica: replica.plan())

    @rule(number=replicas)
    def call(self, number):
        self.world.run(number, lambda replica: replica.call())

    @rule(number=replicas)
    def converge(self, number):
        """A plan, and all its calls."""
        self.world.run(number, lambda replica: replica.plan())
        while self.world.replicas[number].calls:
            self.world.run(number, lambda replica: replica.call())

    @rule(number=replicas)
    def keep(self, number):
        self.world.run(number, lambda replica: replica.keeper._review())

    @rule(number=replicas)
    def remove(self, number):
        self.world.run(number, self.world.remove_all_that_may_go)

    @rule(number=replicas)
    def long_quiet(self, number):
        """Time enough for whatever may go to go, with requests that take as long as they like."""
        for _ in range(4):
            self.world.run(number, lambda replica: replica.plan())
            self.world.pass_time(GRACE / 2 + 1)
            self.world.run(number, lambda replica: replica.keeper._review())
        self.world.run(number, self.world.remove_all_that_may_go)

    @rule(seconds=st.sampled_from([1.0, 6.0, 30.0, GRACE + 1]))
    def wait(self, seconds):
        self.world.pass_time(seconds)

    @rule(number=replicas, name=names)
    def ask(self, number, name):
        engine = self.world.replicas[number].engine
        if name in engine.cards:
            engine.requests.append(Request(name, engine.cards[name], self.world.now))

    @rule(number=replicas, which=st.integers(0, 5))
    def advance_request(self, number, which):
        requests = self.world.replicas[number].engine.requests
        if which < len(requests):
            later = {"coming": "queued", "queued": "running"}
            if requests[which].state in later:
                requests[which].state = later[requests[which].state]
            else:
                del requests[which]

    @rule(number=replicas)
    def restart_engine(self, number):
        self.world.replicas[number].engine.restart()

    @rule(number=replicas)
    def restart_sidecar(self, number):
        self.world.restart_sidecar(number)

    @rule(number=replicas, is_silent=st.booleans())
    def silence(self, number, is_silent):
        self.world.replicas[number].engine.is_silent = is_silent

    @rule(step=st.sampled_from([*Step, *RemovalStep]))
    def die_next(self, step):
        self.world.dies_at = step

    @invariant()
    def nothing_disappeared(self):
        """R7 files-pinned, R4 digest-true."""
        self.world.check()

    def teardown(self):
        self.world.close()
        self.folder.cleanup()


search = settings(max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def test_nothing_that_an_engine_may_read_disappears():
    """R7 files-pinned, R12 crash-only, fault 24."""
    run_state_machine_as_test(Keeping, settings=search)


class Impatient(Retention):
    """Lets go of what is not listed at the moment."""

    def is_due(self, now: float) -> bool:
        return True

    def proven(self) -> frozenset[str]:
        return frozenset(self._idle)


class Credulous(Retention):
    """Waits for the grace, and believes that nothing is queued then."""

    def proven(self) -> frozenset[str]:
        return frozenset(self._idle) if all(idle.clear_at is not None for idle in self._idle.values()) else frozenset()

    def testify(self, evidence, *, asked_at, now) -> None:
        for idle in self._idle.values():
            idle.clear_at = now if self._is_old(idle, asked_at) else None


class Forgetful(Retention):
    """Takes a name that another artifact has now for that one's."""

    def _known_names(self, artifact: str) -> frozenset[str]:
        return frozenset()


class Blind(Retention):
    """Does not know what a plan is about to load."""

    def look(self, observed: Observed, uses, leased, *, now: float) -> set[str]:
        return super().look(observed, (), leased, now=now)


@pytest.mark.parametrize("eager", [Impatient, Credulous, Forgetful])
def test_a_keeper_that_is_too_eager_would_be_found_out(eager):
    """The check of R7 can fail: each shortcut that was tempting makes files disappear under an engine."""

    class TooEager(Keeping):
        make_retention = eager

    with pytest.raises(AssertionError, match="vanished"):
        run_state_machine_as_test(TooEager, settings=settings(search, max_examples=400))


def test_a_removal_that_does_not_ask_for_leases_would_be_found_out(monkeypatch):
    """The check of R7 can fail."""
    monkeypatch.setattr(removal, "may_be_read", lambda *_: False)
    monkeypatch.setattr(removal, "everybodys_leases", lambda *_: set())
    with pytest.raises((AssertionError, FileNotFoundError)):
        run_state_machine_as_test(Keeping, settings=search)
