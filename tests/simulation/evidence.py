"""What sidecars may act upon: what is kept (R12) or proven (R21), fresh evidence (R7), no list in doubt (R15).

And after what pause they may try again (R8).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field

from registry.model.names import PROOF_PREFIX
from sidecar.engines.transport import PostRequest
from sidecar.loop.drain import EVIDENCE_GAP_SECONDS
from tests.simulation.artifacts import source_of
from tests.simulation.disk import kept_revision
from tests.simulation.engines import SHOW_PATH, EngineHost
from tests.simulation.history import has
from tests.simulation.loop import State, current_process_name
from tests.simulation.sidecars import GRACE_SECONDS
from tests.simulation.world import World

# So often an engine may be asked for the same in so long, though it refuses it each time.
MOST_TRIES, TRIES_SECONDS = 8, 10.0
# And what is wrong for good may be read so often in so long: twice for each name that has it, and when it is asked for.
MOST_READS, READS_SECONDS = 4, 60.0


@dataclass
class Evidence:
    """Follows what sidecars do, each time asking what they did it upon."""

    world: World
    _tries: dict[tuple[object, ...], list[float]] = field(default_factory=lambda: defaultdict(list))
    _reads: dict[tuple[object, ...], list[float]] = field(default_factory=lambda: defaultdict(list))

    def on_call(self, host: EngineHost, request: PostRequest) -> None:
        """Each request to an engine as it is sent."""
        self.r12_on_disk(host)
        self.r8_paced(host, request)
        self.r15_held(host, request)
        self.r23_same_base(host, request)

    def r23_same_base(self, host: EngineHost, request: PostRequest) -> None:
        """Nothing is loaded into an engine that has another base model, once it was looked at since it began."""
        if not host.has_other_base or host.listed_at <= self._began(host):
            return
        if "lora_path" in request.body:
            self.world.checks.violated(f"R23 {host.replica} loads {request.body['lora_name']} into another base model")

    def _began(self, host: EngineHost) -> float:
        """When the engine that runs was started."""
        samples = self.world.checks.samples[host.replica]
        return next((one.at for one in reversed(samples) if one.what == "start"), 0.0)

    def r15_held(self, host: EngineHost, request: PostRequest) -> None:
        """Nothing is unloaded for what is merely missing from a list of another place, or of a store that went back."""
        name, path = str(request.body["lora_name"]), host.listing.get(str(request.body["lora_name"]), "")
        replica = next((one for one in self.world.replicas if one.engine is host), None)
        if replica is None or replica.doubts is None or name.startswith(PROOF_PREFIX):
            return
        if replica.doubts.until <= self.world.store.revision or self.world.checks.removals_confirmed:
            return
        self.world.told["R15"] += 1
        if "lora_path" not in request.body and self.world.checks.is_due(host, name, path, replica.doubts.moments):
            self.world.checks.violated(f"R15 {host.replica} unloads {name}, which nobody was seen to delete")

    def r21_proven_here(self, host: EngineHost, path: str) -> None:
        """No engine is given files that its sidecar has not proven since it started."""
        self.world.told["R21"] += 1
        if host.store.owns(path) is not None and not host.store.is_proven(path):
            self.world.checks.violated(
                f"R21 {host.replica} gives its engine {source_of(path)}, which it has not proven"
            )

    def r12_on_disk(self, host: EngineHost) -> None:
        """Nothing is acted upon that a restart would not find: each change of the records was written down before.

        The first list of all is acted upon while it is written, since there is nothing that it could undo.
        """
        replica = next((one for one in self.world.replicas if one.engine is host), None)
        kept = None if replica is None else kept_revision(replica.place.state)
        if replica is None or kept is None:
            return
        self.world.told["R12"] += 1
        planned = self.world.checks.planned[replica.name]
        changes = [number for number, _ in self.world.checks.oracle.moments if kept < number <= planned]
        if changes and not self.world.restores:
            self.world.checks.violated(f"R12 {replica.name} acts upon {planned}, and has {kept} on its disk")

    def r8_paced(self, host: EngineHost, request: PostRequest) -> None:
        """What an engine refuses is not asked of it again and again by one process of a sidecar for one generation."""
        name, path = str(request.body["lora_name"]), str(request.body.get("lora_path") or "")
        if request.path == SHOW_PATH or path not in host.refused[host.incarnation]:
            return
        self.world.told["R8"] += 1
        checks, source = self.world.checks, source_of(path)
        wanted = [one for moment in checks.oracle.at(checks.planned[host.replica]) for one in moment.wanted.values()]
        is_proof = name.startswith(PROOF_PREFIX)
        meant = frozenset(one.newest for one in wanted if (has(one, source) if is_proof else one.name == name))
        tries = self._tries[current_process_name(), host.process.name, name, path, meant]
        tries.append(_now())
        recent = [at for at in tries if at > _now() - TRIES_SECONDS]
        if len(recent) > MOST_TRIES:
            told = f"{len(recent)} times in {TRIES_SECONDS:g} s"
            checks.violated(f"R8 {host.replica} tries {name} from {source} {told}")

    def r8_read_anew(self, host: EngineHost, source: str) -> None:
        """What is wrong for good is not read whole again and again: it waits until it is changed.

        Another process has to learn it anew, and so has whoever is to serve something else meanwhile: by another
        record, or since replicas come and go.
        """
        self.world.told["R8 wrong for good"] += 1
        checks, replica = self.world.checks, host.replica
        since = checks.planned[replica], frozenset(checks.live.get(replica) or ())
        reads = self._reads[current_process_name(), source, *since]
        reads.append(_now())
        recent = [at for at in reads if at > _now() - READS_SECONDS]
        if len(recent) > MOST_READS:
            self.world.checks.violated(
                f"R8 {host.replica} reads {source}, which is wrong for good, {len(recent)} times in {READS_SECONDS:g} s"
            )

    def r7_asked_after(self, host: EngineHost, path: str) -> None:
        """Evidence that files are out of use is never older than the question: asked twice, the grace after they went.

        It may be of an earlier process of the sidecar, which gave up its lease by it. Of an engine that began since it
        needs none: that has had none of them.
        """
        began = self._began(host)
        until = self.world.checks.listed_until(host.replica, path)
        if host.engine is None or host.process.state is not State.RUNS or not until or began > until:
            return
        self.world.told["R7"] += 1
        asked = [at for at in host.evidence if at >= until + GRACE_SECONDS]
        if not asked or asked[-1] - asked[0] < EVIDENCE_GAP_SECONDS:
            told = f"listed until {until:.3f}, and asked since only at {asked}"
            self.world.checks.violated(f"R7 {host.replica} removes {source_of(path)}, {told}")


def _now() -> float:
    return asyncio.get_running_loop().time()
