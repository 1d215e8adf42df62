"""Findings about one replica of any release, from its status. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta

from registry.cli.doctor.findings import CheckedPart, DoctorFinding, error, expiry, named, warning
from registry.cli.views.replica_view import ReplicaView
from registry.model.messages import Plain

_SKEW = timedelta(seconds=60)
_PLUGIN = "install the plugin in the engine's environment and start it with VLLM_PLUGINS=loraplane LORAPLANE_PLUGIN=1"
_LAZY = {
    "needs_plugin": f"{_PLUGIN}, and LORAPLANE_RESOLVER=PATH, the sidecar's --resolver-socket",
    "needs_socket": "start the sidecar with --resolver-socket PATH, the engine's LORAPLANE_RESOLVER",
    "no_room": "eager adapters fill the engine: raise its --max-cpu-loras, or apply some as load: lazy (--lazy)",
    "names_versioned": "apply them with load: eager, or loraplane pool update POOL --engine-names plain",
}
# Why an engine that could replace the weights behind a name must not.
_REFUSE_SWAPS = frozenset({"rust_frontend", "kv_connector"})
_DEGRADED = "see the engine's log and memory; it is tried again by itself, or at once: loraplane retry adapter NAME"
REMEDIES = {
    "source_not_allowed": "start the sidecar with --allow-source for that place, or apply another source",
    "source_missing": "put the files where the source says, or apply another one: loraplane apply",
    "other_format": "put an adapter in PEFT's form where the source says, or apply the source of one: loraplane apply",
    "weights_not_safetensors": "load it with PEFT and save it again: save_pretrained writes safetensors",
    "rate_limited": "wait, it is asked again after the source's pause; or name credentials for the source",
    "signature_keys_missing": "start the sidecar with --signature-keys",
    "signature_missing": "sign the adapter with loraplane sign and apply it again",
    "bundle_missing": "loraplane sign DIR --key KEY.pem, and publish it again with its model.sig",
    "bundle_invalid": "loraplane sign DIR --key KEY.pem, and publish it again with its model.sig",
    "signature_expired": "sign it anew with a later --not-after, and publish it again",
    "signed_for_other": "sign it anew with --name, --pool and --base as it is served, and publish it again",
    "signed_other_files": "put the files back that were signed, or sign those that are there",
    "signer_untrusted": "sign it with a key that the sidecar's --signature-policy names, or name its key there",
    "unknown_credential": "define the credential in the sidecar's --credentials",
    "credential_not_bound": "name the source's prefix with the credential in the sidecar's --credentials",
    "engine_busy": "start the engine with a higher --max-loras, or install the plugin (VLLM_PLUGINS=loraplane)",
    "engine_cannot_see_store": "mount the store in the engine at the path of the sidecar's --store; "
    "in a pod: loraplane doctor --manifests FILE",
    "store_full": "start the sidecar with a larger --store-budget",
    "disk_full": "make room on the disk of --store",
    "adapter_unproven": "let nobody but its sidecar set adapters in that engine",
    "not_as_expected": "make spec.expect anew with loraplane expect, or serve it on another release of the engine",
    "expect_unproven": "run vLLM with the plugin of this release, and the pool without --prove off",
    "answers_unproven": "install the plugin of this release in the engine's environment, and start it anew",
    "internal_error": "look for part_failed or staging_broke in the sidecar's log, and report the traceback",
    "engine_paused": "wake the engine: POST /wake_up, or POST /resume; its trainer does so when it is done",
    "kv_connector": "loraplane pool update POOL --engine-names versioned",
    "kv_shared": "start vLLM without that --kv-transfer-config, or give each request a cache_salt of its adapter",
    "rust_frontend": "loraplane pool update POOL --engine-names versioned, or unset VLLM_USE_RUST_FRONTEND",
    "pool_refused": "update this sidecar to the release of the admin services, or loraplane pool update POOL",
    "etcd_proxy": "give the sidecar's --etcd the addresses of etcd's own members, not a grpc-proxy's",
    "base_unproven": "run vLLM with the plugin of this release, or give the sidecar --base-model DIR",
    "file_not_taken": "mend the file that it names (--signature-policy, --credentials …): it is read again by itself",
    "source_gone": "put the files back, or loraplane publish DIR DEST --name NAME to a place that stays",
    "kept_not_served": "raise the pool's --max-adapters and --max-cpu-loras of vLLM, or loraplane set NAME --keep N",
    "files_touched": "put its source back if it is gone, then loraplane retry adapter NAME; leave --store to sidecars",
    "without_effect": "loraplane apply it saved anew, with weights gathered under FSDP; unless no step was trained",
    "modules_missing": "save it again with all modules, or take both files of one training, and loraplane apply it",
    "unknown_field": "take the field, which engines pass over, out of adapter_config.json, and loraplane apply it",
    "base_unknown": "give the pool its base model: loraplane pool update POOL --from DIR",
}


def replica_findings(replica: ReplicaView, now: datetime) -> Iterator[DoctorFinding]:
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
    yield from _store(replica)
    yield from _damaged(replica)
    yield from _certificates(replica, now)
    yield from _clock(replica, now)
    said = replica.status.get("insecure")
    for one in said if isinstance(said, list) else ():
        yield _warning(replica, *insecure(str(one)))


def insecure(said: str) -> tuple[str, str, str]:
    """Reason, finding and remedy for what a part says that it bears unprotected on the network."""
    remedy = "do as it says, and start it without --insecure; or leave it where the network may be trusted"
    return "insecure", f"it was started with --insecure, and {said}", remedy


def _as_a_whole(replica: ReplicaView) -> Iterator[DoctorFinding]:
    status, note = replica.status, replica.text("note")
    if status.get("stale") and not status.get("held"):  # which is one finding for all of the pool
        yield _error(replica, "stale", "it does not reach etcd", "see that its --etcd is reachable from its host")
    if not _text(replica, "engine", "incarnation"):
        finding = f"its engine at {replica.text('engine', 'url')} is out of reach or cannot be driven: {note}"
        yield _error(replica, "engine_unreachable", finding, "start the engine, or correct the sidecar's --engine")
    elif replica.leaving:
        remedy = f"loraplane undrain {replica.name} --pool {replica.pool} has it serve again, unless it is to end"
        yield _warning(replica, "draining", note, remedy)
    elif not status.get("ready"):
        remedy = f"loraplane describe replica {replica.name} --pool {replica.pool}"
        remedies = [REMEDIES[one] for one in _causes(replica) if one in REMEDIES]
        told = [*remedies, _DEGRADED if note == status.get("degraded") else remedy]
        yield _error(replica, "not_ready", f"it is not ready: {note}", told[0])
    if status.get("degraded") and note != status["degraded"]:  # else said above
        yield _error(replica, "degraded", f"it serves less than it should: {replica.text('degraded')}", _DEGRADED)


def _causes(replica: ReplicaView) -> list[str]:
    """Reasons of what it warns of as a whole that its note gives for not being ready: one cause is one finding."""
    if replica.status.get("ready") or replica.leaving:
        return []
    messages = {str(one.get("reason")): str(one.get("message") or "") for one in _of_all(replica)}
    return [reason for reason, message in messages.items() if message and replica.text("note").startswith(message)]


def _of_all(replica: ReplicaView) -> list[Plain]:
    """Warnings that concern all of its adapters."""
    return [one for one in replica.items("warnings") if not one.get("name")]


def _names(replica: ReplicaView) -> Iterator[DoctorFinding]:
    for reason, names in _by_reason(replica.items("failed")):
        remedy = REMEDIES.get(reason, f"loraplane describe replica {replica.name} --pool {replica.pool} says why")
        yield _error(replica, "adapters_failed", f"it cannot serve the newest of {named(names)}: {reason}", remedy)
    waiting = _by_reason(replica.items("pending"))
    yield from _waiting(replica, waiting)
    if replica.status.get("omitted"):
        finding = f"its report is cut: {replica.text('omitted')} more adapters are not served"
        remedy = f"mend those that loraplane describe replica {replica.name} --pool {replica.pool} names first"
        yield _error(replica, "names_omitted", finding, remedy)
    told = {*_causes(replica), *({"over_capacity"} & {reason for reason, _ in waiting})}
    for reason, names in _by_reason(replica.items("warnings")):
        if reason in told:
            continue
        remedy = REMEDIES.get(reason, f"loraplane describe replica {replica.name} --pool {replica.pool} says why")
        say = _error if reason == "kv_shared" else _warning  # no answer of such an engine can be trusted
        yield say(replica, reason, f"it warns of {named(names)}: {reason}", remedy)


def _waiting(replica: ReplicaView, waiting: list[tuple[str, list[str]]]) -> Iterator[DoctorFinding]:
    """Findings on names that are not served yet, by reason."""
    of_all = {str(one.get("reason")) for one in _of_all(replica)}
    for reason, names in waiting:
        if reason == "over_capacity":
            remedy = f"raise the engine's --max-cpu-loras, or loraplane pool update {replica.pool} --max-adapters"
            yield _error(replica, reason, f"there is no room for {named(names)}", remedy)
        elif reason == "engine_cannot_see_store":
            finding = f"its engine does not see the files of {named(names)}: its store is another, or at another path"
            yield _error(replica, reason, finding, REMEDIES[reason])
        elif reason not in of_all:  # which is said below, or above
            remedy = f"wait, or follow one with loraplane rollout {names[0]} --pool {replica.pool}"
            yield _warning(replica, "adapters_pending", f"it does not serve {named(names)} yet: {reason}", remedy)


def _engine(replica: ReplicaView) -> Iterator[DoctorFinding]:
    if replica.withheld_engine_url:
        finding = f"its engine is said to be at {replica.withheld_engine_url}, which the pool does not allow"
        remedy = f"end it if nobody knows it; else loraplane pool update {replica.pool} --engine-host, all of them"
        yield _error(replica, "engine_url_not_allowed", finding, remedy)
    yield from _lazy(replica)
    swap, kind = _text(replica, "engine", "swap"), _text(replica, "engine", "kind")
    if _text(replica, "engine", "names") == "versioned":
        return  # a name's weights are never replaced
    versioned = f"loraplane pool update {replica.pool} --engine-names versioned"
    if swap == "pipelined":
        reason, remedy = ("plugin_absent", _PLUGIN) if kind == "vllm" else ("swap_has_gap", versioned)
        yield _warning(replica, reason, "requests may fail while a version is replaced", remedy)
    elif swap == "refused" and any(one.get("reason") in _REFUSE_SWAPS for one in replica.items("warnings")):
        return  # which the warnings say
    elif swap == "refused":
        finding = f"new versions behind a name are refused by {kind} {replica.text('engine', 'version')}"
        remedy = f"upgrade vLLM: pip install 'vllm>=0.31', or {versioned}" if kind == "vllm" else versioned
        yield _error(replica, "engine_unsupported", finding, remedy)


def _lazy(replica: ReplicaView) -> Iterator[DoctorFinding]:
    lazy = replica.status.get("lazy")
    if not isinstance(lazy, dict) or not lazy.get("count") or lazy.get("servable"):
        return
    reason = str(lazy.get("reason"))
    if reason != "not_ready":  # which is a finding of its own
        finding = f"it cannot serve the {lazy['count']} lazy adapters of its pool: {reason}"
        yield _error(replica, "lazy_not_servable", finding, _LAZY.get(reason, _PLUGIN))


def _store(replica: ReplicaView) -> Iterator[DoctorFinding]:
    """A store that takes no more than one of its largest artifacts, or a tenth of what it holds.

    What no engine reads counts as room, so a store that is full of it is as it should be.
    """
    store = replica.status.get("store")
    told = (
        [store.get(key) for key in ("room_bytes", "in_use_bytes", "largest_bytes")] if isinstance(store, dict) else []
    )
    numbers = [one for one in told if isinstance(one, int)]
    if len(numbers) < 3 or any(one.get("reason") in {"store_full", "disk_full"} for one in replica.items("failed")):
        return  # an earlier release, or told by what failed
    room, in_use, largest = numbers
    if room <= max(largest, in_use // 10):
        is_budget = replica.text("store", "bound") == "budget"
        where = "within its budget" if is_budget else "on its disk"
        finding = f"its store has room for {room >> 20} MiB more {where}; engines may read {in_use >> 20} MiB in it"
        yield _warning(replica, "store_nearly_full", finding, REMEDIES["store_full" if is_budget else "disk_full"])


def _damaged(replica: ReplicaView) -> Iterator[DoctorFinding]:
    """Artifacts that the disk gave back other than they were written, while an engine may be reading them."""
    damaged = _text(replica, "store", "damaged")
    if damaged.isdecimal() and damaged.strip("0"):
        finding = f"artifacts in its store are not as they were written: {damaged}, which its engine may be reading"
        remedy = "look at the disk of --store and who writes there; the sidecar's log (artifact_damaged) names them"
        yield _error(replica, "store_damaged", finding, remedy)


def _certificates(replica: ReplicaView, now: datetime) -> Iterator[DoctorFinding]:
    subject = f"{replica.pool}/{replica.name}"
    for one in replica.items("certificates"):
        flag, begin, end = str(one.get("flag")), _time(str(one.get("begins"))), _time(str(one.get("ends")))
        if begin is not None and end is not None:
            span, remedy = (
                (begin.timestamp(), end.timestamp()),
                f"put a new one in the file of {flag}: it is read again",
            )
            yield from expiry(CheckedPart.REPLICA, subject, f"its certificate of {flag}", span, remedy, now)


def _clock(replica: ReplicaView, now: datetime) -> Iterator[DoctorFinding]:
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


def _error(replica: ReplicaView, reason: str, finding: str, remedy: str) -> DoctorFinding:
    return error(CheckedPart.REPLICA, f"{replica.pool}/{replica.name}", reason, finding, remedy)


def _warning(replica: ReplicaView, reason: str, finding: str, remedy: str) -> DoctorFinding:
    return warning(CheckedPart.REPLICA, f"{replica.pool}/{replica.name}", reason, finding, remedy)
