"""Lenient view of a replica's status, for sidecars of any release. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise

from registry.model.messages import Plain
from registry.model.names import label_text
from registry.residency.standing import NOTHING_STANDS, StandingCounts
from registry.v1 import registry_pb2 as pb

_MAX_DEPTH = 32


def cell(value: object) -> str:
    """A value as people read it; "-" is nothing."""
    match value:
        case None | "" | []:
            return "-"
        case bool():
            return "yes" if value else "no"
        case list():
            return ", ".join(map(str, value))
        case _:
            return str(value)


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """A replica and its status; `status` is empty while it has not reported or cannot be read.

    `leaving`: it drains. `engine_url`: for routers, empty if it is that of the status. `host`: empty: it is not known.
    `withheld_engine_url` is told to no router, since the pool does not allow it.
    `missing`: it is expected and does not live; `last_seen` (RFC 3339) is when it was found gone, empty: a moment ago.
    `last_known`: of a missing one, what it told last: engine, host, version, revision, and a URL that answers no more;
    empty or 0: that is not known.
    `counts`: how many adapters it serves by residency; None: that is not known, or was not asked for.
    """

    name: str
    pool: str
    labels: dict[str, str]
    incarnation: str
    started_at: str
    status: Plain
    version: str = ""
    leaving: bool = False
    engine_url: str = ""
    host: str = ""
    withheld_engine_url: str = ""
    missing: bool = False
    last_seen: str = ""
    last_known: pb.MissingReplica | None = None
    counts: StandingCounts | None = None

    @property
    def router_url(self) -> str:
        """The engine's address as residency tells it to routers; "-": it is not known."""
        return self.engine_url or self.text("engine", "url")

    @property
    def shown_url(self) -> str:
        """The same for people; of one that is missing the last one that is known."""
        return cell(self.last_known.engine_url) if self.last_known else self.router_url

    @property
    def shown_engine(self) -> str:
        """Kind and version of its engine, as far as they are known."""
        if self.last_known is not None:
            return cell(self.last_known.engine)
        return f"{self.text('engine', 'kind')} {self.text('engine', 'version')}"

    @property
    def shown_revision(self) -> str:
        """Revision that it has followed."""
        known = self.last_known
        return cell(known.observed_revision or None) if known else self.text("observed_revision")

    @property
    def shown_host(self) -> str:
        return cell(self.last_known.host if self.last_known else self.host)

    @property
    def is_ready(self) -> bool:
        """True if it lives, and says so."""
        return self.status.get("ready") is True and not self.missing

    def text(self, *path: str) -> str:
        """The value at `path` of the status as text; "-" where there is none."""
        value: object = self.status
        for part in path:
            value = value.get(part) if isinstance(value, dict) else None
        return cell(value)

    def items(self, key: str) -> list[Plain]:
        """The entries of a list of the status, e.g. of ``failed``."""
        found = self.status.get(key)
        return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []

    def total(self, key: str) -> str:
        """Number of entries of a list in the status, those that it leaves out too; "-": there is no status."""
        count = self.status.get(f"{key}_count")
        return str(count if isinstance(count, int) else len(self.items(key))) if self.status else "-"

    def room(self, pool_limit: int) -> int:
        """Number of adapters that it can hold at once; 0: nothing says so. `pool_limit` 0: the pool has none."""
        limits = [self.text("engine", "limits", "max_cpu_loras"), str(pool_limit)]
        return min((int(one) for one in limits if one.isdecimal() and len(one) < 10 and int(one)), default=0)

    def wanted_since(self, revision: int, more: int) -> int:
        """Number of eager adapters that it is to hold, with so many more if it has not seen that revision yet."""
        counts = [self.text("served", "count"), self.total("pending"), self.total("failed")]
        known = sum(int(one) for one in counts if one.isdecimal() and len(one) < 10)
        seen = self.status.get("observed_revision")
        return known if isinstance(seen, int) and seen >= revision > 0 else known + more

    def resident(self) -> list[Plain]:
        """Lazy adapters that it has loaded since they were asked for: name, generation, last use."""
        lazy = self.status.get("lazy")
        found = lazy.get("resident") if isinstance(lazy, dict) else None
        return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []

    def as_dict(self) -> Plain:
        return {
            "name": self.name,
            "pool": self.pool,
            "labels": self.labels,
            "incarnation": self.incarnation,
            "started_at": self.started_at,
            "version": self.version or None,
            "leaving": self.leaving,
            "engine_url": None if self.router_url == "-" else self.router_url,
            "withheld_engine_url": self.withheld_engine_url or None,
            "status": self.status or None,
            **({"adapters": self.counts.as_dict()} if self.counts is not None else {}),
            **({"missing": True, "last_seen": self.last_seen or None, **self._told_last()} if self.missing else {}),
        }

    def _told_last(self) -> Plain:
        """Facts that one which is missing told last; nothing where none are known."""
        known = self.last_known
        fields = ("engine_url", "host", "observed_revision", "engine", "version")
        told = {field: value for field in fields if (value := getattr(known, field, None))}
        return {"last_known": told} if told else {}

    def seen_ago(self, now: datetime) -> str:
        """Time at which one that is missing was last seen, in words."""
        try:
            seconds = (now - datetime.fromisoformat(self.last_seen)).total_seconds()
        except (ValueError, TypeError):
            return "just gone"
        return f"last seen {span(max(0, int(seconds)))} ago"


def span(seconds: int) -> str:
    """So many seconds, in words."""
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def short_span(seconds: int) -> str:
    """A span in one unit, as ``3d``, and where it is less than ten of these in the next one, too: ``3d4h``."""
    for (size, unit), (part, of) in pairwise(((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))):
        whole, rest = divmod(seconds, size)
        if whole >= 10 or (whole and rest < part):
            return f"{whole}{unit}"
        if whole:
            return f"{whole}{unit}{rest // part}{of}"
    return f"{seconds}s"


def missing_view(pool: str, one: pb.MissingReplica) -> ReplicaView:
    """A replica that is expected and does not live."""
    labels = dict(sorted(one.labels.items()))
    return ReplicaView(one.name, pool, labels, "", "", {}, missing=True, last_seen=one.last_seen, last_known=one)


def replica_views(pool: str, found: pb.ListReplicasResponse) -> list[ReplicaView]:
    """The live replicas of a pool, and after them those that are expected and do not live."""
    return [*map(replica_view, found.replicas), *(missing_view(pool, one) for one in found.missing)]


def counted_views(views: Iterable[ReplicaView], counts: Mapping[str, StandingCounts]) -> list[ReplicaView]:
    """The same, each with its numbers: of one that no adapter stands to, none."""
    return [replace(one, counts=counts.get(one.name, NOTHING_STANDS)) for one in views]


def silent_on_uses(replicas: Iterable[ReplicaView]) -> list[str]:
    """Names of the replicas that live and do not tell uses: adapters whose ttl begins with one do not end meanwhile."""
    return sorted(one.name for one in replicas if not one.missing and not one.status.get("uses"))


def groups_told(groups: Iterable[pb.GroupPresence], *, lacking: bool) -> str:
    """Living replicas of each expected group, e.g. ``zone=b: 1 of 3``; `lacking`: only of those that lack some."""
    return ", ".join(
        f"{label_text(one.expected.labels)}: {one.live} of {one.expected.replicas}"
        for one in groups
        if not lacking or one.live < one.expected.replicas
    )


@dataclass(frozen=True, slots=True)
class Disagreement:
    """An adapter of which replicas found different files under one generation: digest to the replicas that have it."""

    name: str
    generation: str
    digests: dict[str, list[str]]

    def line(self) -> str:
        """The disagreement in one line, with the remedy."""
        found = "; ".join(f"{digest} on {', '.join(replicas)}" for digest, replicas in sorted(self.digests.items()))
        return (
            f"error: digests_differ: {self.name} generation {self.generation}: {found}; apply the digest that is meant"
        )

    def as_dict(self) -> Plain:
        return {"name": self.name, "generation": self.generation, "digests": self.digests}


def disagreements(replicas: Sequence[ReplicaView]) -> list[Disagreement]:
    """Facts about which the replicas of a pool differ."""
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for replica in replicas:
        for one in replica.items("found"):
            key = (str(one.get("name")), str(one.get("generation")))
            found.setdefault(key, {}).setdefault(str(one.get("digest")), []).append(replica.name)
    return [Disagreement(*key, digests) for key, digests in sorted(found.items()) if len(digests) > 1]


def replica_view(replica: pb.Replica) -> ReplicaView:
    """A replica's message as it is shown."""
    return ReplicaView(
        replica.name,
        replica.pool,
        dict(sorted(replica.labels.items())),
        replica.incarnation,
        replica.started_at,
        _status(replica.status_json),
        replica.version,
        replica.leaving,
        replica.engine_url,
        replica.host,
        replica.withheld_engine_url,
    )


def _status(text: str) -> Plain:
    try:
        status = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {"note": "its status is not JSON"}
    if not isinstance(status, dict):
        return {"note": "its status is not a JSON object"}
    return {"note": "its status is nested too deeply"} if _is_deep(status) else status


def _is_deep(value: object) -> bool:
    """True for what no sidecar of any release writes, and few programs can show."""
    level = [value]
    for _ in range(_MAX_DEPTH):
        nested = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        level = [inner for one in nested for inner in one]
    return bool(level)
