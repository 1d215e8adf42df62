"""Nothing that an engine may read ever disappears, whatever happens in whatever order; and what may go, goes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from registry.runtime.failpoints import Point
from tests.properties.loop.host_world import GRACE, HostWorld, Request
from tests.support.examples import examples
from tests.support.memory_folder import memory_folder

REPLICAS = 2
names, replicas = st.sampled_from(["a", "b"]), st.integers(0, REPLICAS - 1)


class Keeping(RuleBasedStateMachine):
    """Sidecars plan, call and keep; engines are asked, restart and fall silent; processes are killed at any step."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = memory_folder()
        self.world = HostWorld(Path(self.folder.name), REPLICAS)

    def _converge(self, number: int) -> None:
        """Plans and all their calls, as a loop does that nobody disturbs; the last plan has none."""
        for _ in range(2):
            self.world.run(number, lambda replica: replica.plan())
            while self.world.replicas[number].calls:
                self.world.run(number, lambda replica: replica.call())
        self.world.check()

    @rule(number=replicas, name=names, source=st.integers(0, 2))
    def serve(self, number, name, source):
        self.world.replicas[number].desired[name] = self.world.ref(source)
        self._converge(number)

    @rule(number=replicas, name=names, source=st.integers(0, 2))
    def desire(self, number, name, source):
        self.world.replicas[number].desired[name] = self.world.ref(source)

    @rule(number=replicas, name=names)
    def drop(self, number, name):
        self.world.replicas[number].desired.pop(name, None)
        self._converge(number)

    @rule(number=replicas)
    def plan(self, number):
        self.world.run(number, lambda replica: replica.plan())

    @rule(number=replicas)
    def call(self, number):
        self.world.run(number, lambda replica: replica.call())

    @rule(number=replicas)
    def keep(self, number):
        self.world.run(number, lambda replica: replica.lease_collector._review())
        self.world.run(number, self.world.remove_all_that_may_go)

    @rule(number=replicas)
    def long_quiet(self, number):
        """Time enough for whatever may go to go; requests take as long as they like."""
        for _ in range(4):
            self._converge(number)
            self.world.pass_time(GRACE / 2 + 1)
            self.keep(number)

    @rule(seconds=st.sampled_from([1.0, 6.0, 30.0, GRACE + 1]))
    def wait(self, seconds):
        self.world.pass_time(seconds)

    @rule(number=replicas, name=names, state=st.sampled_from(["coming", "queued", "running"]))
    def ask(self, number, name, state):
        engine = self.world.replicas[number].engine
        if name in engine.cards:
            engine.requests.append(Request(name, engine.cards[name], self.world.now, state))

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

    @rule(point=st.sampled_from([point for point in Point if point.startswith(("staging.", "removal."))]))
    def die_next(self, point):
        self.world.dies_at = point

    @invariant()
    def nothing_disappeared(self):
        """R7 files-pinned, R4 digest-true."""
        self.world.check()

    def teardown(self):
        self.world.close()
        self.folder.cleanup()


search = examples(100, stateful_step_count=25)


def test_nothing_that_an_engine_may_read_disappears():
    """R7 files-pinned, R12 crash-only, fault 24."""
    run_state_machine_as_test(Keeping, settings=search)


def serve(world: HostWorld, wanted: dict[str, int], number: int = 0) -> None:
    world.replicas[number].desired = {name: world.ref(source) for name, source in wanted.items()}
    for _ in range(2):
        world.run(number, lambda replica: replica.plan())
        while world.replicas[number].calls:
            world.run(number, lambda replica: replica.call())
        world.check()


def keep_for(world: HostWorld, seconds: float) -> None:
    for _ in range(int(seconds / 6)):
        world.run(0, lambda replica: replica.plan())
        world.pass_time(6.0)
        world.run(0, lambda replica: replica.lease_collector._review())
        world.run(0, world.remove_all_that_may_go)
        world.check()


@pytest.mark.parametrize("is_restarted", [False, True])
def test_what_may_go_goes(tmp_path, is_restarted):
    """R16 bounded: an adapter that was deleted leaves the disk, also where its sidecar was killed meanwhile."""
    world = HostWorld(tmp_path, REPLICAS)
    serve(world, {"a": 0, "b": 1})
    (kept,) = {path for name, path in world.replicas[0].engine.cards.items() if name == "b"}
    serve(world, {"b": 1})
    if is_restarted:
        world.restart_sidecar(0)
    keep_for(world, 2 * GRACE)
    assert [str(path) for path in (tmp_path / "store" / "adapters").iterdir()] == [kept]
    world.close()
