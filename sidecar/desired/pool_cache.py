"""Pool cache: a replica's knowledge of its pool, in memory, on disk, in force.

The watchers of etcd change it. What is to be acted upon is in the journal before it is in the mailbox, so that whoever
is killed in between, and restarts without etcd, does not go back in time (guarantees R1 and R12).
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

import structlog

from registry.model.errors import RegistryError
from registry.model.keys import Keys
from registry.model.records import PoolSpec
from sidecar.desired.informer import DesiredState, Informer
from sidecar.desired.journal import Journal, Restored
from sidecar.desired.last_good import GoodRecord
from sidecar.desired.mailbox import Mailbox, Snapshot
from sidecar.desired.packing import Packing
from sidecar.desired.placement import Members
from sidecar.desired.removal_guard import ListCandidate, StoreId
from sidecar.desired.snapshot import (
    AdaptersChanged,
    GenerationsServed,
    GoodAdopted,
    MembersChanged,
    PoolChanged,
    SnapshotBase,
)
from sidecar.metrics import OBSERVED_REVISION

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Booting:
    """Nothing was ever followed. The first list will be."""


@dataclass(frozen=True, slots=True)
class Following:
    """The informer's state is etcd's. The watch goes on from its revision."""


@dataclass(frozen=True, slots=True)
class Holding:
    """The informer's state stays in force. A list that differs too much is held, and kept up to date."""

    candidate: ListCandidate


@dataclass(frozen=True, slots=True)
class Relisting:
    """The informer's state stays in force until a list tells whether its store is still the same.

    `is_begun`: the watch that runs begins with that list; otherwise it has to end first.
    """

    is_begun: bool


WatcherState = Booting | Following | Holding | Relisting


class PoolCache:
    """One replica's knowledge of its pool. One event loop changes it.

    Attributes:
        pool: its name.
        mailbox: has what is in force.
        journal: has all of it on disk, but for a moment.
        informer: folds the adapters' records.
        packing: has them take less memory.
        pool_record: the pool's record in force, as it stands in etcd, so that a restart has it; None: there is none.
        members: the live replicas that were in force last, so that a restart has them.
        store: etcd's store that all this is of, so that another one is told from it.
        state: whether that store may be followed, so that the next watch begins where it has to.
        is_written: False while a list that is followed is not on disk, so that nothing is acted upon meanwhile.
    """

    def __init__(self, keys: Keys, pool: str, mailbox: Mailbox, journal: Journal) -> None:
        self._pool_key = keys.pool(pool)
        self.pool = pool
        self.mailbox = mailbox
        self.journal = journal
        self.informer = Informer(pool)
        self.packing = Packing(self.informer)
        self.pool_record: bytes | None = None
        self.members: Members = {}
        self.store = StoreId()
        self.state: WatcherState = Booting()
        self.is_written = True

    @property
    def placed(self) -> AbstractSet[str]:
        """Name keys of what this replica served, and others may be to serve."""
        state = self.informer.state
        keys = self.informer.memory.keys if state.tally.with_terms else ()
        return {key for key in keys if (one := state.adapters.get(key)) is not None and one.terms is not None}

    @property
    def is_doubted(self) -> bool:
        """True while it is not known whether etcd's store may be followed."""
        return isinstance(self.state, Holding | Relisting)

    def note_served(self, generations: Iterable[tuple[str, int]]) -> None:
        """Notes what this replica serves, see `Informer.note_served`."""
        state = self.informer.state
        if news := self.informer.note_served(generations):
            self.journal.append(GenerationsServed(state.revision, news))
            self._post_renewed(state)

    def adopt(self, key: str, good: GoodRecord) -> None:
        """Notes what others serve, see `Informer.adopt`."""
        state = self.informer.state
        self.informer.adopt(key, good)
        self.journal.append(GoodAdopted(state.revision, key, good))
        self._post_renewed(state)

    def _post_renewed(self, before: DesiredState) -> None:
        # While nothing is to be acted upon yet, the state comes in force with the rest.
        if self.informer.state is not before and self.mailbox.snapshot.desired is not None and self.is_written:
            self.post(self.mailbox.snapshot)

    def post(self, snapshot: Snapshot) -> None:
        """Puts the informer's state in force, together with what else the snapshot says."""
        state = self.informer.state
        self.mailbox.post(replace(snapshot, desired=state))
        OBSERVED_REVISION.set(state.revision)
        self.packing.wake()

    def with_pool(self, snapshot: Snapshot, value: bytes | None) -> Snapshot:
        """The snapshot with this record; one that cannot be read leaves the last good one in force (guarantee R14)."""
        try:
            pool = None if value is None else PoolSpec.parse(value)
        except RegistryError as error:
            _log.error("pool_record_refused", reason=error.reason, error=error.message)
            return replace(snapshot, pool_refusal=f"the pool's record cannot be followed: {error.message}")
        self.pool_record = value
        if value is None:
            _log.warning("pool_absent", key=self._pool_key.decode(), remedy="loraplane pool create, or another --pool")
        return replace(snapshot, pool=pool, pool_read=True, pool_refusal="")

    def restore(self) -> None:
        """Takes up the snapshot on disk, without acting upon it yet. Raises SnapshotUnread."""
        if (restored := self.journal.restore(self.pool)) is None:
            _log.info("snapshot_absent", pool=self.pool)
            return
        self._fold_restored(restored)
        self.mailbox.post(replace(self.mailbox.snapshot, members=self.members or None))
        state = self.informer.state
        _log.info("snapshot_restored", revision=state.revision, adapters=state.count)

    def forget(self) -> None:
        """Does without the snapshot on disk, which is set aside: it could not be taken up."""
        self.journal.set_aside()
        self.store, self.state = StoreId(), Booting()
        self.informer.restore(0, {})
        self.pool_record, self.members = None, {}
        self.mailbox.post(Snapshot())

    def _fold_restored(self, restored: Restored) -> None:
        base = restored.base
        self.store = StoreId(base.cluster_id, base.epoch)
        self.state = Relisting(is_begun=False) if base.is_doubted else Following()
        self.informer.restore(base.revision, base.records, base.last_good)
        self.members = base.members
        if base.pool_record is not None:
            self._restore_pool(base.pool_record)
        for entry in restored.entries:
            match entry:
                case AdaptersChanged(revision, events):
                    self.informer.apply(revision, events)
                case PoolChanged(value):
                    self._restore_pool(value)
                case MembersChanged(come, gone):
                    staying = {name: one for name, one in self.members.items() if name not in gone}
                    self.members = staying | {one.replica: one for one in come}
                case GenerationsServed(revision, generations):
                    self.informer.advance(revision)
                    self.informer.note_served(generations)
                case GoodAdopted(revision, key, good):
                    self.informer.advance(revision)
                    self.informer.adopt(key, good)

    def _restore_pool(self, value: bytes | None) -> None:
        self.mailbox.post(self.with_pool(self.mailbox.snapshot, value))

    async def rewrite(self) -> None:
        """Writes all of it anew, in place of a journal that has grown or says something else."""
        await self.journal.settle()
        await self.write_base()

    async def write_base(self, *, is_list: bool = False) -> None:
        """Writes all of it once the journal is settled; `is_list`: see `Journal.rewrite`."""
        informer, store = self.informer, self.store
        base = SnapshotBase(
            self.pool,
            store.cluster_id,
            informer.state.revision,
            pool_record=self.pool_record,
            records=dict(informer.raw),
            epoch=store.epoch,
            is_doubted=self.is_doubted,
            members=self.members,
            last_good=informer.memory.whole,
        )
        await self.journal.rewrite(base, is_list=is_list)
