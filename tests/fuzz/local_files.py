"""Any bytes in place of a file of a process' own: its state, its store, its settings, its manifests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import lru_cache
from itertools import count
from pathlib import Path

from cryptography import x509

from registry.cli.change.manifest import manifest_of, read_manifests
from registry.cli.contexts import load_contexts
from registry.cli.failure import CliError
from registry.formats.importer import import_text
from registry.formats.kinds import KINDS
from registry.formats.shapes import ImportChoices
from registry.lora.digest import FileEntry
from registry.lora.signing.forms import BadBundle
from registry.lora.signing.keys import sign_statement
from registry.lora.signing.statement import SignatureBinding, SignedFiles, read_statement, write_statement
from registry.model.errors import RegistryError
from registry.model.placement import Member
from registry.model.records import PoolSpec
from registry.model.signature_check import SignatureRefused, Use, check_files, vouched
from registry.model.signature_policy import SigningRule, read_policy
from registry.sources.base import ArtifactError, Stop, StoreError
from registry.sources.credentials_file import read_credentials
from registry.tools.devstack.processes import recall
from registry.tools.devstack.stack_file import StackError, admin_of_stack, load, port_names
from sidecar.artifacts.requests import pin_name
from sidecar.artifacts.signing.signatures import read_keys, read_signature_policy
from sidecar.artifacts.store import LocalStore
from sidecar.artifacts.types import ArtifactRef, Staged
from sidecar.desired.assignment import Assigner
from sidecar.desired.journal import Journal
from sidecar.desired.mailbox import Mailbox
from sidecar.desired.packing import RawRecord
from sidecar.desired.pool_cache import PoolCache
from sidecar.desired.snapshot import (
    AdaptersChanged,
    MembersChanged,
    PoolChanged,
    SnapshotBase,
    encode_base,
    encode_entry,
)
from sidecar.engines.load_ledger import LoadLedger
from sidecar.engines.others.single_slot import read_slot
from tests.fuzz.fuzzer import Run, Target, must_say
from tests.fuzz.mutation import Case, as_json, choice, journal, snapshot
from tests.support.adapters import write_adapter
from tests.support.records import KEYS, POOL, put, record
from tests.support.signing import SigningAuthority
from tests.unit.model.test_signature_policy import policy_text

_PLACED = {"placement": {"replicas": 1, "selector": {"zone": "a"}}}


@lru_cache
def _states() -> tuple[Case, ...]:
    """What sidecars leave behind: with members and without, with a value that was refused, with changes since."""
    value = record("a", **_PLACED).to_bytes()
    pool = PoolSpec(name=POOL, base_models=["tiny"]).to_bytes()
    members = {"r1": Member("r1", {"zone": "a"}, 3), "r2": Member("r2", {}, None)}
    records = {"a": RawRecord(value, 5, None), "b": RawRecord(b"?\n", 6, (record("b").to_bytes(), 4))}
    bases = (
        SnapshotBase(POOL, 7, 6, pool, records, epoch="e", members=members),
        SnapshotBase(POOL, 7, 6, None, records, is_doubted=True),
    )
    entries = (
        AdaptersChanged(7, (put("c", 7, **_PLACED),)),
        PoolChanged(pool),
        MembersChanged((Member("r3", {"zone": "a"}, 1),), ("r2",)),
        AdaptersChanged(8, ()),
    )
    log = b"".join(map(encode_entry, entries))
    return tuple((b"".join(encode_base(base)), log) for base in bases)


@asynccontextmanager
async def _starting(folder: Path) -> AsyncIterator[Run]:
    """The start of a sidecar without etcd, from its snapshot and journal."""
    number = count()

    async def play(case: Case) -> None:
        state = folder / str(next(number))
        state.mkdir()
        (state / "snapshot-1").write_bytes(case[0])
        (state / "journal-1").write_bytes(case[1])
        mailbox, kept = Mailbox(), Journal(state)
        cache = PoolCache(KEYS, POOL, mailbox, kept)
        cache.restore()
        cache.post(mailbox.snapshot)
        Assigner(POOL, "r1", {"zone": "a"}).find(cache.informer.state, mailbox.snapshot.members)
        await cache.rewrite()
        kept.close()
        again = Journal(state).restore(POOL)
        assert again is not None, "R12: what was written anew cannot be read"
        assert again.base.revision == cache.informer.state.revision
        for file in state.iterdir():
            file.unlink()

    yield play


_OF_A_STORE = (b"lease", b"pin", b"report", b"key", b"stranger")


def _stored() -> list[Case]:
    pin = {"schema": 1, "pin_key": "p/a@1", "digest": "sha256:" + "0" * 64}
    lease = {"schema": 1, "artifacts": ["0" * 64], "engine": "http://127.0.0.1:1"}
    report = {"schema": 1, "digest": "sha256:" + "0" * 64, "warnings": [], "rank": 4, "modules": {"m": False}}
    values = (lease, pin, report, {"key": "0" * 64}, {})
    return [(name, json.dumps(one).encode()) for name, one in zip(_OF_A_STORE, values, strict=True)]


@asynccontextmanager
async def _keeping(folder: Path) -> AsyncIterator[Run]:
    """A store, opened over the files of the process before, with an artifact in it that stays."""
    adapter = write_adapter(folder / "sources" / "a")
    ref = ArtifactRef(adapter.uri, None, pin_key="p/a@1")
    staged: list[Staged] = []

    def opened() -> LocalStore:
        return LocalStore(folder / "store", "r1", [(folder / "sources").as_uri()])

    store = opened()
    staged.append(await store.ensure(ref))
    files: dict[bytes, Path] = {
        b"lease": store._leases.file,
        b"pin": store._layout.pin(pin_name(ref)),
        b"report": store._layout.report(staged[0].id),
        b"key": store._layout.key,
        b"stranger": store._layout.leases / "r2@0123456789abcdef",
    }
    store.maintenance.write_leases(Stop())
    store.close()
    samples = {name: file.read_bytes() for name, file in files.items() if file.exists()}

    async def play(case: Case) -> None:
        name, content = case
        for one, sample in samples.items():
            files[one].write_bytes(sample)
        # What the store itself wrote is a better sample than one made by hand.
        spoiled = samples.get(name, b"") if content in {one[1] for one in _stored()} else content
        files[name].unlink(missing_ok=True)
        files[name].write_bytes(spoiled)
        again = opened()
        try:
            again.take_over()
            await again.recall([ref])
            try:
                found = await again.ensure(ref)
                assert found.path == staged[0].path, "R7: what was staged is not found"
            except ArtifactError as error:
                must_say(error.reason, error.message)
                assert name == b"pin", "only a pin says what a source has to be"
            again.maintenance.round(Stop())
            again.maintenance.scrub(Stop())
            assert staged[0].id in again._layout.staged_ids(), "R7: what was leased is gone"
        finally:
            again.close()
        files[b"stranger"].unlink(missing_ok=True)

    yield play


def _ledger(file: Path) -> None:
    ledger = LoadLedger(file.parent, file.name)
    ledger.of("e1")
    asyncio.run(ledger.seen("e1", {"a": "/a"}))
    assert ledger.of("e1")["a"]


def _slot(file: Path) -> None:
    slot = read_slot(file.read_bytes())
    active = slot.of("e2").next_active("a", "/a", 1.8e9)
    assert active.number >= 0


def _stack(file: Path) -> None:
    file.rename(file.parent / "stack.json")
    layout = load(file.parent)
    if layout is not None:
        for name in port_names(layout.replicas):
            layout.url(name)
    try:
        admin_of_stack(file.parent)
    except StackError as error:
        must_say(str(error))


def _contexts(file: Path) -> None:
    try:
        found = load_contexts(file)
    except CliError as error:
        must_say(str(error))
        return
    found.save()
    assert load_contexts(file) == found, "what was saved is read as something else"
    for name, one in found.contexts.items():
        assert type(one.protected) is bool, f"nobody can tell whether {name!r} is protected"


def _manifest(file: Path) -> None:
    try:
        for placed in read_manifests(file.read_text(errors="replace"), "a.yaml"):
            placed.manifest.message().SerializeToString()
    except RegistryError as error:
        must_say(error.reason, error.message, error.field)


def _imported(file: Path) -> None:
    for kind in KINDS.values():
        try:
            text = file.read_text(errors="replace")
            for content, place in import_text(kind, text, "a.yaml", ImportChoices(pool="p")).manifests:
                manifest_of(content, place)
        except RegistryError as error:
            must_say(error.reason, error.message, error.field)


def _credentials(file: Path) -> None:
    try:
        read_credentials(file)
    except StoreError as error:
        must_say(str(error))


def _keys(file: Path) -> None:
    try:
        read_keys(file)
    except StoreError as error:
        must_say(str(error))


def _policy(file: Path) -> None:
    try:
        read_signature_policy(file)
    except StoreError as error:
        must_say(str(error))


def _bundle(file: Path) -> None:
    """As a stranger may put it beside the files of an adapter: first unknown, then as if somebody had signed it."""
    rule = _rule()
    content = file.read_bytes()
    for read in (
        lambda: vouched(rule, content, Use("acme/a", "p"), _NOW),
        lambda: check_files(read_statement(content), [FileEntry("adapter_config.json", 1, "0" * 64)]),
    ):
        try:
            read()
        except SignatureRefused as error:
            must_say(error.message)
        except BadBundle as error:
            must_say(str(error))


@lru_cache
def _rule() -> SigningRule:
    authorities = {"acme": {"certificates": _ACME.pem, "names": ["*"]}}
    text = policy_text([{"tenants": ["*"], "signers": ["acme", "release"]}], authorities=authorities)
    rule = read_policy(text, "policy").rule("acme/a")
    assert rule is not None
    return rule


_NOW, _ACME = datetime(2026, 11, 1, tzinfo=UTC), SigningAuthority()
_SIGNED = SignedFiles(
    "a",
    {"adapter_config.json": "0" * 64},
    SignatureBinding(("acme/*",), ("p",), None, datetime(2027, 1, 1, tzinfo=UTC)),
)
_STATEMENT = write_statement(_SIGNED, [".git"])
_MANIFEST = {
    "apiVersion": "loraplane/v1",
    "kind": "Adapter",
    "metadata": {"name": "acme/a", "pool": "p", "labels": {"a": "b"}},
    "spec": {
        "source": {"uri": "file:///a"},
        "placement": {"replicas": 2, "selector": {"zone": "a"}},
        "strategy": {"canary": {"replicas": "10%"}, "promote": "auto", "soak": 60},
        "prepare": {"drop": ["x"]},
        "priority": 3,
        "description": "words",
    },
}
_SYNCER = {"vLLMLoRAConfig": {"port": 1, "ensureExist": {"models": [{"id": "a", "source": "/a", "base-model": "b"}]}}}
_MODEL_ADAPTER = {
    "apiVersion": "model.aibrix.ai/v1alpha1",
    "kind": "ModelAdapter",
    "metadata": {"name": "a", "labels": {"a": "b"}},
    "spec": {"artifactURL": "s3://b/a", "podSelector": {"matchLabels": {"a": "b"}}, "replicas": 1},
}
_CONTEXT = {"admin": "h:1", "tls_ca": "/ca", "tls_cert": "", "tls_key": "", "pool": "p", "protected": True}
_PROCESS = {"pid": 1, "started": 2, "boot": "b"}


@lru_cache
def _samples() -> dict[bytes, tuple[Callable[[Path], object], bytes]]:
    """A reader of each kind of file, and what it may find."""
    ports = {name: 7000 + number for number, name in enumerate(port_names(["r1"]))}
    credentials = {
        "hub": {"kind": "env", "variable": "TOKEN", "prefixes": ["hf://org/"]},
        "s3": {"kind": "file", "path": "/k", "prefixes": ["s3://b/"], "store": {"region": "eu-1"}},
        "x": {"kind": "exec", "command": ["a"], "timeout_seconds": 3, "prefixes": ["https://h/"]},
    }
    made: dict[bytes, tuple[Callable[[Path], object], object]] = {
        b"ledger": (_ledger, {"schema": 1, "incarnation": "e1", "paths": {"a": "/a"}}),
        b"slot": (_slot, {"schema": 1, "incarnation": "e1", "last_number": 3, "content": {"kind": "nothing"}}),
        b"stack": (_stack, {"engine": "sim", "replicas": ["r1"], "ports": ports}),
        b"process": (recall, _PROCESS),
        b"contexts": (_contexts, {"current": "a", "contexts": {"a": _CONTEXT, "b": _CONTEXT}}),
        b"manifest": (_manifest, _MANIFEST),
        b"config-map": (_imported, {"kind": "ConfigMap", "data": {"configmap.yaml": json.dumps(_SYNCER)}}),
        b"model-adapter": (_imported, _MODEL_ADAPTER),
        b"credentials": (_credentials, credentials),
        b"policy": (_policy, json.loads(policy_text())),
        b"statement": (_bundle, json.loads(_STATEMENT)),
        b"bundle": (_bundle, json.loads(sign_statement(_STATEMENT, *_ACME.issue(x509.DNSName("a"))))),
        b"keys": (_keys, {"team": "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA\n-----END PUBLIC KEY-----"}),
    }
    return {name: (read, json.dumps(value).encode()) for name, (read, value) in made.items()}


def _small() -> list[Case]:
    unsure = {"current": "a", "contexts": {"a": _CONTEXT | {"protected": 1}}}
    samples = [(name, content) for name, (_, content) in _samples().items()]
    return [*samples, (b"contexts", json.dumps(unsure).encode())]


# Read once at start, and the operator's own: PyYAML's time grows with the square of their depth.
_OPERATORS, MAX_YAML_BYTES = {b"credentials", b"keys", b"policy"}, 4000


@asynccontextmanager
async def _reading(folder: Path) -> AsyncIterator[Run]:
    """Readers of small files, each of which has a file of its own at each case."""
    number = count()

    async def play(case: Case) -> None:
        read, _ = _samples()[case[0]]
        if case[0] in _OPERATORS and len(case[1]) > MAX_YAML_BYTES:
            return
        place = folder / f"{next(number)}"
        place.mkdir()
        (place / "file").write_bytes(case[1])
        await asyncio.to_thread(read, place / "file")
        for file in place.iterdir():
            file.unlink()

    yield play


TARGETS = (
    Target("snapshot", (snapshot, journal), _states, _starting, runs=150),
    Target("store-files", (choice, as_json), _stored, _keeping, runs=80),
    Target("small-files", (choice, as_json), _small, _reading, runs=400),
)
