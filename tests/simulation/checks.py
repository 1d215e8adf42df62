"""What must hold at every moment of a simulation, whatever fails. Each violation names its guarantee."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from registry.etcd3.ops import Event
from registry.model.keys import Keys
from registry.model.names import PROOF_PREFIX, name_key
from registry.model.status import ReplicaStatus, presence_of
from sidecar.desired.mailbox import Mailbox
from sidecar.engines.transport import PostRequest
from sidecar.plan.types import KeptAdapter, Plan, RoundReport, ServedAdapter
from sidecar.vllm_plugin.protocol import Answer, Resolved, Unresolved
from tests.simulation.artifacts import is_good, is_refused, source_of
from tests.simulation.engines import BASE, SHOW_PATH, EngineHost
from tests.simulation.history import Members, Moment, Oracle, served_hashes
from tests.simulation.loop import current_process, current_process_name
from tests.simulation.sidecars import GRACE_SECONDS, IDLE_SECONDS

# A status may be as old as the longest call of the loop that writes it, and its way to etcd.
TRUTH_SECONDS = 120.0
# A swap's unload and load are sent together, and each may take so long.
PUT_BACK_SECONDS = 60.0
# The call that is made while the replica id is lost.
OWNER_SECONDS = 1.0
# What an engine says of its adapters' last use is so old when a call is made.
LOOK_SECONDS = 1.0
# Within so long a sidecar says that its engine is out of reach, or generates nothing; and how often that is looked at.
AWAY_SECONDS = 10.0
STALLED_SECONDS = 30.0
OVERSIGHT_SECONDS = 0.5
# What is said of a record that cannot be followed, whose last good one may be served all the same.
REFUSED_RECORD = {"unreadable_record", "future_schema", "key_mismatch"}


@dataclass(frozen=True)
class Sample:
    """What an engine listed from a moment on, after what happened to it."""

    at: float
    what: str
    incarnation: str
    listing: dict[str, str]


@dataclass
class Checks:
    """Follows everything, by hooks."""

    keys: Keys
    pool: str
    log: Callable[[str], None]
    oracle: Oracle = field(init=False)
    violations: list[str] = field(default_factory=list)
    applied: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    followed: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    planned: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    live: dict[str, Members | None] = field(default_factory=dict)
    samples: dict[str, list[Sample]] = field(default_factory=lambda: defaultdict(list))
    on_violation: Callable[[str], None] = lambda _text: None
    on_sent: Callable[[EngineHost, PostRequest], None] = lambda _host, _request: None
    on_given: Callable[[EngineHost, str], None] = lambda _host, _path: None
    on_wrong: Callable[[EngineHost, str], None] = lambda _host, _source: None
    on_removed: Callable[[EngineHost, str], None] = lambda _host, _path: None
    on_round: Callable[[str, Mailbox, RoundReport], None] = lambda _replica, _mailbox, _report: None
    on_work: Callable[[str, str], None] = lambda _replica, _name: None
    calls: int = 0
    removals_confirmed: bool = False
    blank: set[str] = field(default_factory=set)
    replicas: set[str] = field(default_factory=set)
    owned: dict[str, float] = field(default_factory=dict)
    lost: dict[str, float] = field(default_factory=dict)
    said_ready: dict[str, bool] = field(default_factory=dict)
    _presence: dict[str, str] = field(default_factory=dict)
    _swaps: dict[str, dict[str, tuple[int, Members | None]]] = field(default_factory=lambda: defaultdict(dict))
    _proves_since: dict[object, float] = field(default_factory=lambda: defaultdict(lambda: float("inf")))
    _newest: dict[str, Plan] = field(default_factory=dict)
    _decided: dict[str, dict[str, tuple[int, Members | None]]] = field(default_factory=lambda: defaultdict(dict))
    _served: dict[str, dict[str, set[tuple[str, int]]]] = field(default_factory=lambda: defaultdict(dict))
    _served_since: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    _bad_since: dict[tuple[str, str], tuple[object, object, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.oracle = Oracle(self.keys.adapters(self.pool))

    def violated(self, text: str) -> None:
        """Notes that a guarantee does not hold."""
        self.log(f"VIOLATED {text}")
        self.violations.append(f"{_now():.3f} s: {text}")
        self.on_violation(text)

    def on_commit(self, revision: int, events: tuple[Event, ...]) -> None:
        """Each revision of etcd."""
        self.oracle.take(revision, events)
        prefix = self.keys.statuses(self.pool)
        for event in events:
            if event.kv is not None and event.key.startswith(prefix):
                self._check_status(ReplicaStatus.parse(event.kv.value))
            if event.key.startswith(self.keys.replicas(self.pool)):
                self._note_owner(event)

    def _note_owner(self, event: Event) -> None:
        """Until when a clone has owned its replica id; presence names its owner."""
        key = event.key.decode()
        former = self._presence.pop(key, "")
        if former:
            self.owned[former] = _now()
        presence = None if event.kv is None else presence_of(event.kv.value)
        if presence is not None:
            self._presence[key] = presence.owner.removeprefix("host of ")
            self.owned[self._presence[key]] = float("inf")

    def on_lost_disk(self, replica: str, revision: int) -> None:
        """Each loss of all that a replica knows, until it follows something again; `revision` is the store's."""
        self.blank.add(replica)
        self._served_since[replica].clear()
        self.on_store(revision)

    def on_power_cut(self, replica: str, kept_until: float) -> None:
        """Each loss of what a replica noted since then."""
        kept = {name: since for name, since in self._served_since[replica].items() if since <= kept_until}
        self._served_since[replica] = kept

    def on_store(self, revision: int) -> None:
        """Each store that stands at a revision below what was applied, maybe: R1 asks no more of who knows nothing.

        Where no store was set back, what was applied counts over the loss too: a first list must not be an old one.
        """
        for replica in self.blank:
            self.applied[replica] = min(self.applied[replica], revision)

    def on_log(self, process: str, event: str) -> None:
        """Each line of a log."""
        if event == "part_failed":
            self.violated(f"X2 a part of {process} failed")
        if event == "replica_id_taken":
            self.lost[process.rpartition(".")[0]] = _now()

    def on_report(self, replica: str, mailbox: Mailbox, report: RoundReport) -> None:
        """Each round of a sidecar, before the calls of its plan. R1 and R2."""
        self.said_ready[replica] = report.situation.ready
        self.on_round(replica, mailbox, report)
        desired = mailbox.snapshot.desired
        if desired is None:
            return
        self.followed[replica] = desired.count
        self.blank.discard(replica)
        if desired.revision < self.applied[replica] and not self.removals_confirmed:
            self.violated(f"R1 {replica} went back from {self.applied[replica]} to {desired.revision}")
        self.applied[replica] = desired.revision
        if all(desired.state_hash != moment.state_hash for moment in self.oracle.at(desired.revision)):
            self.violated(f"R2 {replica} at {desired.revision} is not what history replays to")
        plan = report.situation.plan
        if plan is not None and plan.revision != report.situation.revision:
            self.violated(f"R9 {replica} speaks of {report.situation.revision} by a plan made from {plan.revision}")
        if plan is not None:
            self.planned[replica] = plan.revision
            self.live[replica] = mailbox.snapshot.members
        if plan is not None and plan is not self._newest.get(replica):  # it is reported again while the engine is away
            self._newest[replica] = plan
            self._note_given_away(replica, plan)
            self._note_served(replica, plan)
            self._decided[replica] |= {call.name: (plan.revision, self.live[replica]) for call in plan.calls}

    def _note_given_away(self, replica: str, plan: Plan) -> None:
        """What is placed on others need not be remembered: they may serve several generations meanwhile.

        So a replica may lack a last good generation of what comes back to it (sidecar/desired/last_good.py).
        """
        for moment in self.oracle.at(plan.revision):
            share = moment.share(replica, self.live[replica])
            placed = (moment.wanted.get(name_key(name)) for name in list(self._served_since[replica]))
            for one in placed:
                if one is not None and one.is_eager and one.name not in share:
                    self._served_since[replica].pop(one.name, None)

    def _note_served(self, replica: str, plan: Plan) -> None:
        """The sources that a replica served last, each with the life of its name.

        Among them is what its engine answers with while that is not what is followed: it may have been given that just
        before a change of the record, and have been looked at after that alone.
        """
        known: tuple[ServedAdapter | KeptAdapter, ...] = (*plan.served, *plan.residents, *plan.kept)
        for one in known:
            if not one.generation:
                continue  # nobody knows what it is
            found = self.oracle.made_of(name_key(one.name), one.generation, plan.revision)
            if found != self._served[replica].get(one.name) or one.name not in self._served_since[replica]:
                self._served_since[replica][one.name] = _now()
            self._served[replica][one.name] = found

    def _is_last_good(self, host: EngineHost, name: str, source: str, moments: list[Moment]) -> bool:
        """True if this replica served that last of a name that has lived since, or all but its canaries serve it."""
        lives = self._lives(host, name)
        for moment in moments:
            wanted = moment.wanted.get(name_key(name))
            is_due = any(name in moment.share(host.replica, among) for among in lives)
            stable = wanted.stable.source if wanted is not None and wanted.stable is not None else ""
            if is_due and (source == stable or source in self.last_good(host.replica, name, moment)):
                return True
        return False

    def last_good(self, replica: str, name: str, moment: Moment) -> set[str]:
        """The sources that a replica served last under a name, of the life that the name has at a moment."""
        made = moment.made.get(name_key(name))
        return {source for source, life in self._served[replica].get(name, ()) if life == made}

    def remembers(self, replica: str, name: str) -> bool:
        """Whether a replica has on its disk what it served last under a name; else others may tell it, in time."""
        return name in self._served_since[replica]

    def on_answer(self, host: EngineHost, mailbox: Mailbox, name: str, answer: Answer) -> None:
        """Each answer to an engine's question, as it is given: R4, R6, R13, by the state that the replica follows."""
        replica, path = host.replica, answer.path if isinstance(answer, Resolved) else ""
        self.log(f"{replica} asked for {name}: {source_of(path) or answer}")
        desired = mailbox.snapshot.desired
        if desired is None:
            return
        moments = self.oracle.at(desired.revision)
        lazy = [moment.lazy().get(name) for moment in moments]
        if path:
            self.on_given(host, path)
        if path and not any(self._may_answer(host, name, source_of(path), moment) for moment in moments):
            self.violated(f"R4 {replica} tells that {name} is {source_of(path)}, at {desired.revision} {lazy}")
        elif answer in {Unresolved("unknown_adapter"), Unresolved("not_lazy")} and all(
            version is not None for version in lazy
        ):
            self.violated(f"R3 {replica} tells {answer} of {name}, which is lazy at {desired.revision}")

    def _may_answer(self, host: EngineHost, name: str, source: str, moment: Moment) -> bool:
        """True if it is what a lazy adapter is to be, or while that fails what this replica served of it last."""
        newest = moment.lazy().get(name)
        if newest is None or newest.source == source:
            return newest is not None
        is_failing = not is_good(newest.source, host.replica) or newest.source in host.store.failing
        return is_failing and source in self.last_good(host.replica, name, moment)

    def on_call(self, host: EngineHost, request: PostRequest) -> None:
        """Each request to an engine as it is sent: R5, R6, no wrong unload, no second load while one is unsettled."""
        # What an engine refuses is tried again for as long as it is desired.
        self.calls += not is_refused(source_of(str(request.body.get("lora_path") or "")), host.store.replica)
        name, path = str(request.body["lora_name"]), request.body.get("lora_path")
        if request.path != SHOW_PATH:
            self._check_owner(host, None if path is None else name)
        if host.replica not in self.replicas:
            return
        self.log(f"{host.replica} {'unload' if path is None else 'load'} {name} {source_of(str(path or ''))}")
        self.on_sent(host, request)
        self.on_work(host.replica, name)
        moments = self._moments(host.replica, name, path)
        if path is not None and not host.store.has(str(path)):
            self.violated(f"R7 {host.replica} loads {name} from {source_of(str(path))}, whose files are gone")
        if name.lower() == BASE:
            self.violated(f"R5 {host.replica} touches the name of the base model")
        if path is None:
            self._check_unload(host, name, moments)
        else:
            self.on_given(host, str(path))
            self._check_load(host, name, str(path), moments)

    def _moments(self, replica: str, name: str, path: object) -> list[Moment]:
        """What calls may be made by: the newest plan, and the one that the call or a swap that goes on is of.

        A call that was begun is sent only when the engine has said that it is not paused, and has proven the adapter:
        there may be newer plans by then, which leave its name alone until it has ended.
        """
        swaps = self._swaps[replica]
        if name.startswith(PROOF_PREFIX):
            if path is None:
                swaps.pop(name, None)
            else:
                swaps.setdefault(name, (self.planned[replica], self.live[replica]))
        revisions = {self.planned[replica], *(at for at, _ in self._begun(replica, name))}
        return [moment for revision in revisions for moment in self.oracle.at(revision)]

    def _begun(self, replica: str, name: str) -> list[tuple[int, Members | None]]:
        return [*self._swaps[replica].values(), *filter(None, [self._decided[replica].get(name)])]

    def _lives(self, host: EngineHost, name: str) -> list[Members | None]:
        """Who lived, by the newest plan and by those of what was begun."""
        return [self.live[host.replica], *(among for _, among in self._begun(host.replica, name))]

    def on_twice(self, host: EngineHost, names: set[str]) -> None:
        """Each request to an engine while one of the same sidecar for the same name is not answered."""
        self.violated(f"R19 {host.replica} makes two calls at once for {sorted(names)}")

    def on_engine_state(
        self, replica: str, sidecar: object, spell: object, *, is_away: bool, is_stalled: bool, is_other: bool
    ) -> None:
        """Each look at an engine and its sidecar, None while that does not run: R18, and of another base model R23.

        `spell` is another one each time the engine has run, be it between two looks.
        """
        for rule, what, is_bad, seconds in (
            ("R18", "away", is_away, AWAY_SECONDS),
            ("R18", "stalled", is_stalled, STALLED_SECONDS),
            ("R23", "of another base model", is_other, AWAY_SECONDS),
        ):
            who, spell_then, since = self._bad_since.get((replica, what), (None, None, _now()))
            if sidecar is None or sidecar is not who:
                self.said_ready.pop(replica, None)
            if not is_bad or sidecar is None or sidecar is not who or spell != spell_then:
                self._bad_since[replica, what] = (sidecar, spell, _now())
            elif _now() - since > seconds + OVERSIGHT_SECONDS and self.said_ready.get(replica, False):
                self.violated(f"{rule} {replica} is ready though its engine is {what} for {_now() - since:.1f} s")

    def _check_owner(self, host: EngineHost, loaded: str | None) -> None:
        """R10: who was told that the replica id is another's calls no engine, but for the swap or call that runs."""
        lost_at, process = self.lost.get(host.replica, float("inf")), current_process_name()
        if loaded is not None and loaded.startswith(PROOF_PREFIX):
            self._proves_since[process] = _now()
        swaps = self._proves_since[process] <= lost_at and any(name.startswith(PROOF_PREFIX) for name in host.listing)
        if lost_at < _now() - OWNER_SECONDS and self.owned.get(host.replica, 0.0) < lost_at and not swaps:
            self.violated(f"R10 {host.replica} calls its engine, and was told at {lost_at:.3f} that its id is taken")

    def _check_load(self, host: EngineHost, name: str, path: str, moments: list[Moment]) -> None:
        """A load is of what is desired under that name, of its proof before a swap, or puts back what a swap took."""
        source = source_of(path)
        lives = self._lives(host, name)
        names = {name for moment in moments for among in lives for name in moment.may_load(source, host.replica, among)}
        is_fit = bool(names) if name.startswith(PROOF_PREFIX) else name in names
        is_fit = is_fit or self._is_last_good(host, name, source, moments)
        if not is_fit and not self._is_put_back(host, name, source, moments):
            told = f"not its share at {self.planned[host.replica]} among {sorted(lives[0] or ())}"
            rule = "R4" if any(name_key(name) in moment.wanted for moment in moments) else "R6"
            self.violated(f"{rule} {host.replica} loads {name} from {source}, {told}")

    def _is_put_back(self, host: EngineHost, name: str, source: str, moments: list[Moment]) -> bool:
        """True if it is what was listed a moment ago, or what is due of that until others serve it: no canary's."""
        if name in host.listing:
            return False
        recent = self._recent(host.replica, PUT_BACK_SECONDS)
        before = {source_of(sample.listing[name]) for sample in recent if name in sample.listing}
        due = {(one.stable or one.newest).source for moment in moments if (one := moment.wanted.get(name_key(name)))}
        return source in before or (bool(before) and source in due)

    def _check_unload(self, host: EngineHost, name: str, moments: list[Moment]) -> None:
        path = host.listing.get(name)
        if path is None or name.startswith(PROOF_PREFIX):
            return
        if host.store.owns(path) is None:
            self.violated(f"R11 {host.replica} unloads {name}, which it did not load")
        elif self.is_due(host, name, path, moments) and not self._is_of_former_life(host, name, path, moments):
            self.violated(f"R6 {host.replica} unloads {name} though it is desired at {self.planned[host.replica]}")
        elif (idle_seconds := self._idle_seconds(host, name, path, moments)) < IDLE_SECONDS - _look_seconds():
            self.violated(f"R6 {host.replica} unloads {name}, which is lazy and was used {idle_seconds:.3f} s ago")

    def _is_of_former_life(self, host: EngineHost, name: str, path: str, moments: Sequence[Moment]) -> bool:
        """Whether it was served before the name was deleted and made anew, of a source that cannot be read now.

        Only that source tells that the new adapter is the same again.
        """
        source = source_of(path)
        is_known = any(source in self.last_good(host.replica, name, moment) for moment in moments)
        return source in host.store.failing and not is_known

    def is_due(self, host: EngineHost, name: str, path: str, moments: Sequence[Moment]) -> bool:
        """Whether a replica is to serve under that name what the path holds, at each of these moments."""
        lives = self._lives(host, name)
        return all(_is_due(moment, host.replica, live, name, path) for moment in moments for live in lives)

    def _idle_seconds(self, host: EngineHost, name: str, path: str, moments: list[Moment]) -> float:
        """How long nobody has used a lazy adapter that is desired as it is loaded, where anybody can tell and cares."""
        lazy = [moment.lazy().get(name) for moment in moments]
        if (
            host.engine is None
            or host.engine.plugin is None
            or any(one is None or one.source != source_of(path) for one in lazy)
        ):
            return float("inf")
        idle_seconds = host.engine.cards.ages().get(name, float("inf"))
        # What was used after it was asked cannot be known.
        return float("inf") if _now() - idle_seconds > host.listed_at - LOOK_SECONDS else idle_seconds

    def on_engine(self, host: EngineHost, what: str, name: str, path: str) -> None:
        """Each change of an engine as it takes effect."""
        if what in {"start", "stop"}:
            self.log(f"{host.replica} engine {what}")
        elif what == "load":
            self.log(f"{host.replica} loaded {name} {source_of(path)}")
        self.samples[host.replica].append(Sample(_now(), what, host.incarnation, host.listing))

    def on_removal(self, host: EngineHost, path: str) -> None:
        """R7: what vanishes is read by nobody, and nobody saw it listed for the grace."""
        self.log(f"{host.replica} removes {source_of(path)}")
        self.on_removed(host, path)
        if host.engine is not None and path in host.engine.needed:
            self.violated(f"R7 {host.replica} removes {source_of(path)}, which its engine lists or still has to serve")
        elif self.listed_until(host.replica, path) > _now() - GRACE_SECONDS:
            self.violated(f"R7 {host.replica} removes {source_of(path)}, which was listed a moment ago")

    def listed_until(self, replica: str, path: str) -> float:
        """When an engine of that replica listed the path last; 0: never."""
        end = _now()
        for sample in reversed(self.samples[replica]):
            if path in sample.listing.values():
                return end
            end = sample.at
        return 0.0

    def _check_status(self, status: ReplicaStatus) -> None:
        """R9: what a status says of the served set was listed in that incarnation, and not long ago."""
        replica = status.replica
        if self._presence.get(self.keys.replica(self.pool, replica).decode(), replica) != replica:
            return  # a clone speaks of its own engine
        said = (status.served.count, status.served.hash)
        self.log(f"{replica} status at {status.observed_revision} ready={status.ready} served={said[0]}")
        self.on_work(replica, "")
        if not status.engine.incarnation or not status.observed_revision:
            return
        moments = self.oracle.at(status.observed_revision)
        # A source that is read anew for a new generation is not served yet although its old path is listed and fits.
        others = {entry.name for entry in status.pending}
        others |= {entry.name for entry in status.failed if entry.reason not in REFUSED_RECORD}
        for sample in self._recent(replica, TRUTH_SECONDS):
            if sample.incarnation != status.engine.incarnation:
                continue
            listing = {name: path for name, path in sample.listing.items() if name not in others}
            if any(said in served_hashes(moment, replica, listing) for moment in moments):
                return
        self.violated(f"R9 {replica} says that it serves {said[0]} at {status.observed_revision}, which was never so")

    def _recent(self, replica: str, seconds: float) -> Iterator[Sample]:
        """What the engine listed within so long, the newest first; the oldest may have begun before."""
        end = _now()
        for sample in reversed(self.samples[replica]):
            if end < _now() - seconds:
                return
            yield sample
            end = sample.at


def _look_seconds() -> float:
    """How old may be what a sidecar saw of its engine: one that was paused goes on with what it saw before."""
    lately = _now() - LOOK_SECONDS
    return LOOK_SECONDS + sum(until - since for since, until in current_process().paused if until > lately)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _is_due(moment: Moment, replica: str, live: Members | None, name: str, path: str) -> bool:
    """Whether the replica is to serve under that name what the path holds."""
    version = moment.share(replica, live).get(name)
    return version is not None and version.source == source_of(path)
