"""A sidecar's story: what stands in etcd of its pool, and its log."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from registry.model.status import EngineStatus, Served
from registry.tools.verify.history import Violation
from registry.transactions.changes import Remove, Upsert
from sidecar.plan.types import ServedAdapter
from sidecar.report.status import served_hash
from tests.support.changes import KEYS, POOL, Author, applying, creating
from tests.support.checkers.index import HistoryIndex
from tests.support.checkers.replay import check_replicas
from tests.support.checkers.replicas import EngineListing
from tests.support.memory_etcd import MemoryEtcd
from tests.support.residency_world import replica_status
from tests.unit.verify.conftest import steps_of

GRACE_SECONDS = 600.0


def path_of(digit: str) -> str:
    """Where the store has the artifact that is made of the digest of so many digits."""
    return f"/store/adapters/sha256-{digit * 64}"


def engine(incarnation: str = "e1", names: str = "plain") -> EngineStatus:
    return EngineStatus(kind="sim", version="1", url="u", base_models=["base"], incarnation=incarnation, names=names)


def served(*adapters: tuple[str, int, str]) -> Served:
    """As the sidecar itself says it; by name, generation and the digit of the digest."""
    told = tuple(ServedAdapter(name, generation, f"sha256:{digit * 64}") for name, generation, digit in adapters)
    return Served(count=len(told), hash=served_hash(told))


@dataclass
class Story:
    """Revision 1 makes the pool. Lines of the log are dated by `now`, in unix seconds."""

    author: Author = field(default_factory=lambda: Author(MemoryEtcd(revision=0)))
    lines: list[dict[str, Any]] = field(default_factory=list)
    now: float = 1_000_000.0

    def __post_init__(self) -> None:
        self.author.change(creating())

    def write(self, *changes: Upsert | Remove) -> int:
        """A change of desired state; its revision."""
        self.author.change(applying(*changes))
        return self.author.etcd.revision

    def log(self, event: str, **fields: Any) -> None:
        stamp = datetime.fromtimestamp(self.now, UTC).isoformat().replace("+00:00", "Z")
        self.lines.append({"event": event, "timestamp": stamp, **fields})

    def start(self, **fields: Any) -> None:
        self.log("started", **{"pool": POOL, "replica": "r1", "store": "s", "grace_seconds": GRACE_SECONDS} | fields)

    def look(self, incarnation: str = "e1", *, whole: bool = False, **adapters: str | None) -> None:
        """Names that came, with the digit of their artifact; None: that are gone."""
        told = {name: digit and path_of(digit) for name, digit in adapters.items()}
        self.log("engine_listed", incarnation=incarnation, whole=whole, adapters=told, more=False)

    def say(self, at: int, **fields: Any) -> int:
        """A status that speaks of revision `at`, and the line of its log; the revision that it was written at."""
        status = replica_status("r1", at, engine=engine()).model_copy(update=fields)
        revision = self.author.etcd.put(KEYS.status(POOL, "r1"), status.to_bytes())
        self.log("status_written", revision=revision, updated_at=status.updated_at)
        return revision

    def index(self) -> HistoryIndex:
        return HistoryIndex(KEYS).replay(steps_of(self.author))

    def found(self, *listings: EngineListing) -> list[Violation]:
        return check_replicas(self.index(), POOL, [("r1.log", self.lines)], listings)[0]

    def check(self, *listings: EngineListing) -> tuple[list[str], Counter[str]]:
        """The guarantees that do not hold, and how much was compared."""
        findings, counts = check_replicas(self.index(), POOL, [("r1.log", self.lines)], listings)
        return [one.guarantee for one in findings], counts
