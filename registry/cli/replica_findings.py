"""What is wrong with one replica, from what it says of itself, read leniently: it may be of any release. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta

from registry.cli.finding import Finding, Part, error, warning
from registry.cli.replica_view import ReplicaView
from registry.cli.wire import Plain

_SKEW = timedelta(seconds=60)
_NAMED_AT_MOST = 5
_PLUGIN = "install the plugin in the engine's environment and start it with VLLM_PLUGINS=loraplane LORAPLANE_PLUGIN=1"
_LAZY = {
    "needs_plugin": f"{_PLUGIN}, and LORAPLANE_RESOLVER=PATH, the sidecar's --resolver-socket",
    "needs_socket": "start the sidecar with --resolver-socket PATH, the engine's LORAPLANE_RESOLVER",
    "no_room": "eager adapters fill the engine: raise its --max-cpu-loras, or apply some as load: lazy (--lazy)",
    "names_versioned": "apply them with load: eager, or loraplane pool update POOL --engine-names plain",
}
_OTHER_KINDS = frozenset({"sglang", "pegainfer", "dynamo"})
REMEDIES = {
    "source_not_allowed": "start the sidecar with --allow-source for that place, or apply another source",
    "source_missing": "put the files where the source says, or apply another one: loraplane apply",
    "signature_keys_missing": "start the sidecar with --signature-keys",
    "signature_missing": "sign the adapter with loraplane sign and apply it again",
    "unknown_credential": "define the credential in the sidecar's --credentials",
    "credential_not_bound": "name the source's prefix with the credential in the sidecar's --credentials",
    "engine_busy": "start the engine with a higher --max-loras, or install the plugin (VLLM_PLUGINS=loraplane)",
    "store_full": "start the sidecar with a larger --store-budget",
    "disk_full": "make room on the disk of --store",
    "adapter_unproven": "let nobody but its sidecar set adapters in that engine",
    "base_unknown": "give the pool its base model: loraplane pool update POOL --from DIR",
}


def replica_findings(replica: ReplicaView, now: datetime) -> Iterator[Finding]:
    """All that is wrong with a live replica. `now` is this machine's clock."""
    if not replica.status:
        yield _error(
            replica, "no_status", "it lives, but has not reported", "its sidecar's log and GET /readyz say why"
        )
        return
    if "observed_revision" not in replica.status:
        finding = f"its status cannot be read: {replica.text('note')}"
        yield _error(replica, "unreadable_status", finding, "upgrade: pip install the same loraplane on both sides")
        return
    yield from _as_a_whole(replica)
    yield from _names(replica)
    yield from _engine(replica)
    yield from _clock(replica, now)


def _as_a_whole(replica: ReplicaView) -> Iterator[Finding]:
    status, note = replica.status, replica.text("note")
    if status.get("held"):
        confirm = f"loraplane pool confirm-removals {replica.pool} --revision R, as it says"
        remedy = f"compare with loraplane get adapters; if it is right: {confirm}"
        yield _error(replica, "held", f"it does not follow etcd: {replica.text('held')}", remedy)
    elif status.get("stale"):
        yield _error(replica, "stale", "it does not reach etcd", "see that its --etcd is reachable from its host")
    if not _text(replica, "engine", "incarnation"):
        finding = f"its engine at {replica.text('engine', 'url')} is out of reach or cannot be driven: {note}"
        yield _error(replica, "engine_unreachable", finding, "start the engine, or correct the sidecar's --engine")
    elif not status.get("ready"):
        remedy = f"loraplane describe replica {replica.name} --pool {replica.pool}"
        yield _error(replica, "not_ready", f"it is not ready: {note}", remedy)


def _names(replica: ReplicaView) -> Iterator[Finding]:
    for reason, names in _by_reason(replica.items("failed")):
        remedy = REMEDIES.get(reason, f"loraplane describe replica {replica.name} --pool {replica.pool} says why")
        yield _error(replica, "adapters_failed", f"it cannot serve {_told(names)}: {reason}", remedy)
    for reason, names in _by_reason(replica.items("pending")):
        if reason == "over_capacity":
            remedy = f"raise the engine's --max-cpu-loras, or loraplane pool update {replica.pool} --max-adapters"
            yield _error(replica, reason, f"there is no room for {_told(names)}", remedy)
        else:
            remedy = f"wait, or follow one with loraplane rollout {names[0]} --pool {replica.pool}"
            yield _warning(replica, "adapters_pending", f"it does not serve {_told(names)} yet: {reason}", remedy)
    if replica.status.get("omitted"):
        finding = f"its status leaves out {replica.text('omitted')} names that it does not serve"
        remedy = f"mend those that loraplane describe replica {replica.name} --pool {replica.pool} names first"
        yield _error(replica, "names_omitted", finding, remedy)
    for reason, names in _by_reason(replica.items("warnings")):
        remedy = REMEDIES.get(reason, f"loraplane describe replica {replica.name} --pool {replica.pool} says why")
        yield _warning(replica, reason, f"it warns of {_told(names)}: {reason}", remedy)


def _engine(replica: ReplicaView) -> Iterator[Finding]:
    yield from _lazy(replica)
    swap, kind = _text(replica, "engine", "swap"), _text(replica, "engine", "kind")
    if _text(replica, "engine", "names") == "versioned":
        return  # a name's weights are never replaced
    versioned = f"loraplane pool update {replica.pool} --engine-names versioned"
    if swap == "pipelined":
        reason, remedy = ("swap_has_gap", versioned) if kind in _OTHER_KINDS else ("plugin_absent", _PLUGIN)
        yield _warning(replica, reason, "requests may fail while a version is replaced", remedy)
    elif swap == "refused":
        finding = f"new versions behind a name are refused by {kind} {replica.text('engine', 'version')}"
        remedy = versioned if kind in _OTHER_KINDS else f"upgrade vLLM: pip install 'vllm>=0.31', or {versioned}"
        yield _error(replica, "engine_unsupported", finding, remedy)


def _lazy(replica: ReplicaView) -> Iterator[Finding]:
    lazy = replica.status.get("lazy")
    if not isinstance(lazy, dict) or not lazy.get("count") or lazy.get("servable"):
        return
    reason = str(lazy.get("reason"))
    if reason != "not_ready":  # which is a finding of its own
        finding = f"it cannot serve the {lazy['count']} lazy adapters of its pool: {reason}"
        yield _error(replica, "lazy_not_servable", finding, _LAZY.get(reason, _PLUGIN))


def _clock(replica: ReplicaView, now: datetime) -> Iterator[Finding]:
    for text in (_text(replica, "updated_at"), replica.started_at):
        when = _time(text)
        if when is not None and when > now + _SKEW:
            ahead = int((when - now).total_seconds())
            finding = f"its clock is {ahead} s ahead of the one here"
            yield _warning(replica, "clock_skew", finding, "set both clocks: timedatectl set-ntp true")
            return


def _time(text: str) -> datetime | None:
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return None
    return when if when.tzinfo else when.replace(tzinfo=UTC)


def _text(replica: ReplicaView, *path: str) -> str:
    text = replica.text(*path)
    return "" if text == "-" else text


def _by_reason(items: Iterable[Plain]) -> list[tuple[str, list[str]]]:
    """Names by reason, both as they are found."""
    found: dict[str, list[str]] = {}
    for one in items:
        found.setdefault(str(one.get("reason")), []).append(str(one.get("name") or "all adapters"))
    return list(found.items())


def _told(names: Sequence[str]) -> str:
    more = len(names) - _NAMED_AT_MOST
    return ", ".join(names[:_NAMED_AT_MOST]) + (f" and {more} more" if more > 0 else "")


def _error(replica: ReplicaView, reason: str, finding: str, remedy: str) -> Finding:
    return error(Part.REPLICA, f"{replica.pool}/{replica.name}", reason, finding, remedy)


def _warning(replica: ReplicaView, reason: str, finding: str, remedy: str) -> Finding:
    return warning(Part.REPLICA, f"{replica.pool}/{replica.name}", reason, finding, remedy)
