"""What hashing comes to, what is known of it later, and whose signatures count."""

from __future__ import annotations

import errno
import json
import os
import secrets
import stat
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import yaml

from registry.lora import ed25519
from registry.lora.base import BaseModules
from registry.lora.digest import FileEntry, manifest_digest
from registry.lora.safetensors import LENGTH_BYTES
from registry.model.records import BaseShapes, PoolLimits, PoolSpec
from registry.sources.base import ArtifactError, Stop, StoreError
from sidecar.artifacts import proof, reports, requests
from sidecar.artifacts.files import locked_at_once
from sidecar.artifacts.layout import StoreLayout
from sidecar.artifacts.preparation import Bases, prepare
from sidecar.artifacts.proof import (
    DamagedArtifacts,
    ProofOutcome,
    Proofs,
    hash_directory,
    size_of,
)
from sidecar.artifacts.reports import Reports, is_quick_to_look
from sidecar.artifacts.requests import Pins, copy_after, pin_name, stage_request_of
from sidecar.artifacts.signing import signatures
from sidecar.artifacts.signing.kept_bundles import KeptBundles
from sidecar.artifacts.signing.signatures import Signatures, read_keys
from sidecar.artifacts.types import ArtifactRef
from tests.unit.artifacts.conftest import BROKEN, CONFIG, MIB, WEIGHTS, entry, raising

A, B = "a" * 64, "b" * 64


def put(layout: StoreLayout, artifact: str = A, weights: bytes = b"w" * 9, config: bytes = b"{}") -> str:
    """Puts an artifact there, and gives the digest of its files."""
    directory = layout.adapter(artifact)
    directory.mkdir()
    entries = []
    for name, content in ((CONFIG, config), (WEIGHTS, weights)):
        (directory / name).write_bytes(content)
        entries.append(entry(name, content))
    return manifest_digest(entries)


@pytest.mark.parametrize(
    ("source", "told", "outcome"),
    [
        ("found", None, ProofOutcome.SOURCE),
        ("other", None, ProofOutcome.UNKNOWN),
        (None, None, ProofOutcome.UNKNOWN),
        (None, ("any", "found"), ProofOutcome.PROVEN),
        (None, ("any", "other"), ProofOutcome.DAMAGED),
        ("any", ("any", "found"), ProofOutcome.PROVEN),
        ("any", ("any", "other"), ProofOutcome.DAMAGED),
        ("found", ("any", "found"), ProofOutcome.SOURCE),
        ("other", ("any", "found"), ProofOutcome.UNKNOWN),
    ],
)
def test_bytes_are_compared_with_what_was_written_and_else_with_the_source(layout, capsys, source, told, outcome):
    """R4, R21 proven-here: a report of another source says nothing of this one. Bytes of the source are no damage."""
    found = put(layout)
    words = {"found": found, None: None}
    proofs = proofs_of(layout, known(*(words.get(one, one) for one in told)) if told else None)
    proofs.note(A)
    assert proofs.prove(A, words.get(source, source), Stop()) is outcome
    if source is None and told is None:
        assert A in proofs, "nothing was looked at"
        return
    assert (A in proofs, proofs.is_intact(A)) == (outcome is ProofOutcome.PROVEN,) * 2
    said, expected = capsys.readouterr().out, words.get(told[1], told[1]) if told else source
    is_told = outcome in {ProofOutcome.UNKNOWN, ProofOutcome.DAMAGED}
    parts = ("artifact_damaged", f"found={found}", f"expected={expected}", outcome.value)
    assert [one in said for one in parts] == [is_told] * 4


def test_a_fault_of_ours_is_no_artifact_that_is_not_as_we_left_it(layout, monkeypatch):
    """R21: what cannot be looked at is proven by nothing."""
    put(layout)
    proofs = proofs_of(layout)
    proofs.note(A)
    for error in BROKEN:
        told = nullcontext() if isinstance(error, OSError) else pytest.raises(ZeroDivisionError)
        with monkeypatch.context() as patch, told:
            patch.setattr(proof.os, "lstat", raising(error))
            assert not proofs.is_intact(A)
    assert proofs.is_intact(A)


@pytest.mark.parametrize("change", ["touched", "replaced", "gone", "a link", "a linked file"])
def test_what_was_touched_since_is_not_intact(layout, change):
    """R21: whatever its bytes are now; nor is ever what is not as we leave an artifact."""
    put(layout)
    proofs, directory, old = proofs_of(layout), layout.adapter(A), layout.temporary(A, "old")
    assert not proofs.is_intact(A)
    for artifact in (A, B):
        proofs.note(artifact)
    assert (proofs.is_intact(A), B in proofs) == (True, False), "nothing is there"
    if change == "touched":
        (directory / CONFIG).chmod(0o600)
    elif change == "gone":
        (directory / WEIGHTS).unlink()
    elif change == "a linked file":
        (directory / CONFIG).rename(old)
        (directory / CONFIG).symlink_to(old)
    else:
        directory.rename(old)
        put(layout) if change == "replaced" else directory.symlink_to(old)
    assert not proofs.is_intact(A)
    assert A in proofs
    proofs.forget({A, B})
    assert A not in proofs
    proofs.note(A)
    assert (A in proofs) is (change in {"touched", "replaced"})


@pytest.mark.parametrize("change", ["written", "removed"])
def test_what_changes_while_it_is_hashed_is_neither_proven_nor_damaged(layout, monkeypatch, capsys, change):
    """R4: it may be another artifact by now."""
    found = put(layout)
    whole = proof.hash_directory

    def changing(directory: Path, *rest: object) -> str:
        digest = whole(directory, *rest)
        if change == "written":
            (directory / WEIGHTS).write_bytes(b"v" * 9)
        else:
            directory.rename(layout.temporary(A, "old"))
        return digest

    monkeypatch.setattr(proof, "hash_directory", changing)
    proofs = proofs_of(layout, known("any", found))
    proofs.note(A)
    identity = proofs.identity(A)
    assert identity is not None
    assert (len(identity), size_of(identity)) == (3, 11)
    assert proofs.prove(A, None, Stop()) is ProofOutcome.CHANGED
    assert (A in proofs, ProofOutcome.CHANGED.value in capsys.readouterr().out) == (False, True)
    monkeypatch.undo()
    assert proofs.prove(B, "any", Stop()) is ProofOutcome.CHANGED, "it is missing altogether"


def test_hashing_takes_the_time_that_it_is_given_and_can_be_stopped(layout, monkeypatch):
    """R19: a mebibyte at a time; without a pace it does not wait."""
    digest = put(layout, weights=b"w" * (2 * MIB + 512))
    stop, waits, told = Stop(), list[float](), list[object]()
    monkeypatch.setattr(proof.os, "posix_fadvise", lambda _, *how: told.append(how))
    monkeypatch.setattr(stop, "check", waits.append)
    assert hash_directory(layout.adapter(A), stop, bytes_per_second=1024.0) == digest
    assert waits == [2 / 1024, 1024.0, 1024.0, 0.5]
    assert told == [(0, 0, os.POSIX_FADV_SEQUENTIAL)] * 2, "the kernel reads ahead, from the first byte to the last"
    waits.clear()
    assert hash_directory(layout.adapter(A), stop) == digest
    assert waits == [0.0] * 4
    stopped = Stop()
    stopped.set()
    with pytest.raises(ArtifactError):
        hash_directory(layout.adapter(A), stopped)


def test_what_is_no_artifact_has_no_digest_but_what_was_met(layout):
    """R21, X2: other files too would be read by an engine."""
    put(layout)
    directory, found = layout.adapter(A), list[str]()
    for name in "dcba":
        (directory / name).touch()
    assert hash_directory(directory, Stop()) == "files that are no part of an artifact: ['a', 'b', 'c']"
    for file in directory.iterdir():
        file.unlink()
    (directory / CONFIG).touch()
    found.append(hash_directory(directory, Stop()))
    os.mkfifo(directory / WEIGHTS)
    found.append(hash_directory(directory, Stop()))
    directory.rename(layout.temporary(A, "old"))
    directory.touch()
    found.append(hash_directory(directory, Stop()))
    assert [one.partition(str(directory))[0] for one in found] == [
        "No such file or directory: ",
        "no regular file: ",
        "Not a directory: ",
    ]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
@pytest.mark.parametrize("at", [CONFIG, WEIGHTS, ""])
def test_for_want_of_descriptors_nothing_is_held_to_be_damaged(layout, monkeypatch, number, at):
    """R12, R13: a mark of damage stays, and the source may be gone by now."""
    proofs = proofs_of(layout, known("any", put(layout)))
    proofs.note(A)
    with monkeypatch.context() as patch:
        patch.setattr(proof.os, "open" if at else "listdir", failing(at, number))
        with pytest.raises(OSError, match=os.strerror(number)):
            proofs.prove(A, None, Stop())
    assert proofs.prove(A, None, Stop()) is ProofOutcome.PROVEN


def failing(at: str, number: int) -> Any:
    """What opens files, and fails at one of that name."""
    whole = os.open if at else os.listdir

    def opened(path: Any, *more: Any, **others: Any) -> Any:
        if str(path).endswith(at):
            raise OSError(number, os.strerror(number), str(path))
        return whole(path, *more, **others)

    return opened


def test_what_is_marked_damaged_is_known_to_all_and_told_once(layout):
    """R4, R21: also when it has gone; what is no artifact's name is none."""
    one, other = DamagedArtifacts(layout), DamagedArtifacts(layout)
    assert (one.ids, one.is_marked(A)) == (frozenset(), False)
    put(layout, A)
    one.mark(A)
    one.mark(A)
    assert stat.S_IMODE((layout.damaged / A).stat().st_mode) & 0o177 == 0
    assert (one.ids, one.present(), other.ids) == ({A}, {A}, frozenset())
    assert (other.is_marked(A), other.is_marked(B), other.present()) == (True, False, set())
    (layout.damaged / "other").touch()
    assert [other.refresh(), other.refresh(), other.ids] == [{A}, frozenset(), {A}]
    (layout.damaged / A).unlink()
    assert other.is_marked(A), "as it was known"
    layout.adapter(A).rename(layout.temporary(A, "old"))
    assert other.present() == set()
    assert DamagedArtifacts(layout).ids == frozenset()


def test_a_policy_of_signatures_is_looked_at_anew_when_it_or_the_keys_are_others(layout):
    """R21."""
    policy = Signatures({}, KeptBundles(layout))
    lax, strict = (
        PoolSpec(name="p", base_models=["b"], limits=PoolLimits(require_signature=one)) for one in (False, True)
    )
    for pool, changed, required in (
        (None, False, False),
        (lax, False, False),
        (strict, True, True),
        (strict, False, True),
        (None, True, False),
    ):
        assert (policy.follow(pool), policy.are_required) == (changed, required)
    policy.use({})
    assert [policy.follow(None), policy.follow(None)] == [True, False]
    policy.enforce(Mock(), "p")
    assert (policy.has_policy, policy.are_required) == (True, True), "whatever the pool asks for"


@pytest.mark.parametrize(
    "content",
    [
        *(None, b"", b"[]", b"text", b"a: [", b"a: 2020-13-99", b"team: no key", b"team: secret", b"team:\n  - 1"),
        *(b"\xff\xfe\x00", b"[" * 5000),
    ],
    ids=range(11),
)
def test_a_file_of_keys_that_cannot_be_read_is_named_and_nothing_of_it_is_shown(tmp_path, monkeypatch, content):
    """R12, X2, X1 secret-free: a fault of ours is told as such."""
    file = tmp_path / "keys.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(StoreError, match=f"--signature-keys {file}") as told:
        read_keys(file)
    assert "secret" not in str(told.value)
    file.touch()
    monkeypatch.setattr(yaml, "safe_load", raising(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        read_keys(file)


def test_a_mebibyte_of_a_file_of_keys_is_read_and_what_stands_behind_it_is_not(tmp_path, monkeypatch):
    """R16 bounded."""
    monkeypatch.setattr(ed25519, "read_public_key", lambda pem: f"key {pem}")
    file = tmp_path / "keys.yaml"
    assert signatures.MAX_KEYS_BYTES == MIB
    monkeypatch.setattr(signatures, "MAX_KEYS_BYTES", 100)
    file.write_bytes(b"team: one\n7: two\n".ljust(100) + b"\nother: three\n")
    assert read_keys(file) == {"team": "key one", "7": "key two"}
    file.write_bytes(b"team: one".rjust(100))
    assert read_keys(file) == {"team": "key one"}


@pytest.mark.parametrize(("size_bytes", "is_quick"), [(512 << 10, True), ((512 << 10) + 1, False)])
@pytest.mark.parametrize("which", [CONFIG, WEIGHTS])
def test_half_a_mebibyte_is_read_in_the_event_loop(layout, size_bytes, is_quick, which):
    """R19: of a header, or of a configuration; what is missing is met at once."""
    header = (size_bytes if which == WEIGHTS else 8).to_bytes(LENGTH_BYTES, "little")
    put(layout, weights=header + b"rest", config=b"{" * (size_bytes if which == CONFIG else 2))
    assert is_quick_to_look(layout, A) is is_quick
    (layout.adapter(A) / which).unlink()
    assert is_quick_to_look(layout, A)


def test_what_an_artifact_was_made_of_is_read_once(layout, monkeypatch):
    """R9, R23: an id names one content. What has no report yet may have one later."""
    kept, told, reads = Reports(layout), dict[str, Any](), list[str]()
    monkeypatch.setattr(kept, "read", lambda artifact: reads.append(artifact) or told.get(artifact))
    monkeypatch.setattr(reports, "MAX_SOURCES", 1)
    assert kept.source_of(A) == ""
    told |= {A: known("sha256:a", ""), B: known("sha256:b", "")}
    assert [kept.source_of(one) for one in (A, A, B, A)] == ["sha256:a", "sha256:a", "sha256:b", "sha256:a"]
    assert reads == [A, A, B, A]


def test_a_report_is_read_only_of_the_artifact_that_it_is_of(layout, monkeypatch):
    """R21: what cannot be read is told, and is not missing."""
    kept = Reports(layout)
    assert kept.read(A) is None
    layout.report(A).mkdir()
    assert kept.read(A) is None
    layout.report(A).rmdir()
    layout.report(A).touch()
    parsed: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(reports, "parse_report", lambda content: parsed.append(len(content)))
        for size_bytes in (64 * MIB, 64 * MIB + 1):
            os.truncate(layout.report(A), size_bytes)
            assert kept.read(A) is None
    assert parsed == [64 * MIB], "nothing larger is read"
    for error in BROKEN:
        monkeypatch.setattr(reports, "read_file", raising(error))
        with pytest.raises(type(error)):
            kept.read(A)


@pytest.mark.parametrize("problem", ["others", "writable", "short", "long", "link", "directory", "foreign"])
def test_a_key_that_somebody_else_may_know_is_set_aside(layout, monkeypatch, problem):
    """R21, R12: and another one is made."""
    Reports(layout)
    before = layout.key.read_bytes()
    assert (len(before), stat.S_IMODE(layout.key.stat().st_mode)) == (32, 0o600)
    if problem in {"others", "writable"}:
        layout.key.chmod(0o604 if problem == "others" else 0o602)
    elif problem in {"short", "long"}:
        layout.key.write_bytes(before[:31] if problem == "short" else before + b"x")
    elif problem == "foreign":
        monkeypatch.setattr(reports.os, "geteuid", lambda: os.getuid() + 1)
    else:
        layout.key.rename(layout.root / "moved")
        layout.key.symlink_to("moved") if problem == "link" else layout.key.mkdir()
    fds = len([*Path("/proc/self/fd").iterdir()])
    Reports(layout)
    assert len([*Path("/proc/self/fd").iterdir()]) == fds
    assert len([path for path in layout.root.iterdir() if path.name.startswith("key.set-aside-")]) == 1
    assert (layout.key.is_symlink(), len(layout.key.read_bytes())) == (False, 32)
    assert layout.key.read_bytes() != before
    assert not list((layout.root / "tmp").iterdir())


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_key_stays_that_could_not_be_opened_for_want_of_descriptors(layout, monkeypatch, number):
    """R13: without it nothing that was prepared is believed, and its source may be gone."""
    Reports(layout)
    before = layout.key.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(reports.os, "open", failing("store/key", number))
        with pytest.raises(OSError, match=os.strerror(number)):
            Reports(layout)
    Reports(layout)
    assert layout.key.read_bytes() == before


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o640])
def test_a_key_that_only_the_group_may_read_stays_and_is_closed(layout, mode):
    """R21: Kubernetes opens all files of a volume to its fsGroup."""
    Reports(layout)
    before = layout.key.read_bytes()
    layout.key.chmod(mode)
    Reports(layout)
    assert (layout.key.read_bytes(), stat.S_IMODE(layout.key.stat().st_mode)) == (before, 0o600)


def test_a_key_is_made_under_its_lock(layout, monkeypatch):
    """R12: two sidecars that start at once have one."""
    free, make = list[bool](), secrets.token_bytes

    def making(size_bytes: int) -> bytes:
        with locked_at_once(layout.lock("key")) as is_free:
            free.append(is_free)
        return make(size_bytes)

    monkeypatch.setattr(secrets, "token_bytes", making)
    Reports(layout)
    assert free == [False]


def examined(**changes: object) -> Any:
    return SimpleNamespace(**{"new_weights": None, "new_config": None, "start": 0} | changes)


@pytest.fixture
def arrived(tmp_path) -> tuple[Path, list[FileEntry]]:
    contents = {CONFIG: b"{}", WEIGHTS: b"head" + bytes(range(100))}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path, [entry(*one) for one in contents.items()]


def test_new_weights_are_the_old_numbers_behind_a_new_header_and_what_need_not_change_stays(arrived):
    """R22, R4: in the order that they are asked for; what stands there is what is told."""
    folder, entries = arrived
    before = (folder / WEIGHTS).stat().st_ino
    assert prepare(folder, examined(), entries, Stop()) == entries
    assert prepare(folder, examined(new_config=b"[]"), entries, Stop())[1] == entries[1]
    assert before == (folder / WEIGHTS).stat().st_ino
    weights = weights_of(b"new", [(10, 20), (0, 5)], [(99, 100)], [])
    told = prepare(folder, examined(new_weights=weights, start=4, new_config=b"[1]"), entries, Stop())
    numbers = bytes(range(100))
    contents = {CONFIG: b"[1]", WEIGHTS: b"new" + numbers[10:20] + numbers[:5] + numbers[99:]}
    assert told == [entry(*one) for one in contents.items()]
    for name, content in contents.items():
        assert (folder / name).read_bytes() == content
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o444
    assert {path.name for path in folder.iterdir()} == {CONFIG, WEIGHTS}


def test_a_large_file_is_written_anew_a_mebibyte_at_a_time(tmp_path, monkeypatch):
    """R16: a staging that is stopped ends between two; a file that ends too early is as long as it is."""
    (tmp_path / WEIGHTS).write_bytes(b"x" * (2 * MIB + 100))
    stop, checks = Stop(), list[float]()
    monkeypatch.setattr(stop, "check", lambda: checks.append(0))
    weights = weights_of(b"new", [(0, 2 * MIB + 1), (2 * MIB + 50, 2 * MIB + 100)])
    (entry,) = prepare(tmp_path, examined(new_weights=weights), [], stop)
    assert (len(checks), entry.size) == (1 + 3 + 1, 3 + 2 * MIB + 51)
    stopped = Stop()
    stopped.set()
    with pytest.raises(ArtifactError):
        prepare(tmp_path, examined(new_config=b"[]"), [], stopped)


def shapes_of(base: BaseModules, architecture: str | None) -> PoolSpec:
    shapes = BaseShapes(modules=dict(base.modules), fingerprint=base.fingerprint, architecture=architecture)
    return PoolSpec(name="p", base_models=["b"]).model_copy(update={"base": shapes})


MODULES = {"model.layers.0.mlp.up_proj": (16, 16)}


@pytest.mark.parametrize("architecture", [None, "LlamaForCausalLM"])
def test_of_two_bases_that_differ_the_own_one_stays_and_that_is_told(architecture):
    """R4, R5: nothing is compared with what the record says."""
    own = BaseModules({"model.layers.0.mlp.up_proj": (8, 8)}, architecture="Own")
    bases = Bases(own)
    bases.follow(shapes_of(BaseModules(MODULES), architecture))
    assert "--base-model is not the one" in bases.problem
    assert "up_proj is 8 by 8, expected 16 by 16" in bases.problem
    assert all(one.fingerprint[:19] in bases.problem for one in (own, BaseModules(MODULES)))
    assert bases.current == own
    bases.follow(None)
    assert (bases.problem, bases.current) == ("", own)


def test_a_pin_is_of_one_reference_and_stands_as_later_releases_read_it(layout, monkeypatch):
    """R4, R9, R12: one that says no digest says nothing; one that a disk or a fault of ours keeps from us is told."""
    digests = [f"sha256:{digit * 64}" for digit in "12"]
    ref, pins = ArtifactRef("file:///a", None, pin_key="p/a@1"), Pins(layout)
    assert pins.digest(ref) is None
    file = layout.pin(pin_name(ref))
    for said in (b"", b"[]", b"{}", b"null", b'{"digest": 5}', b'{"digest": "sha256:x"}', b'{"digest": "x"}', b"\xff"):
        file.write_bytes(said)
        assert pins.digest(ref) is None
    pins.put(ref, digests[0])
    assert json.loads(file.read_bytes()) == {"schema": 1, "pin_key": "p/a@1", "digest": digests[0]}
    assert [one.name for one in (layout.root / "pins").iterdir()] == [f"{pin_name(ref)}.json"]
    assert not list((layout.root / "tmp").iterdir())
    others = [replace(ref, digest=digests[1]), replace(ref, uri="file:///b"), replace(ref, pin_key="p/a@2")]
    assert [pins.digest(one) for one in (ref, *others)] == [*digests, None, None]
    for error in BROKEN:
        monkeypatch.setattr(requests, "read_file", raising(error))
        with pytest.raises(type(error)):
            pins.digest(ref)


def test_each_damaged_copy_has_another_after_it_sixteen_times():
    """R16 bounded."""
    digest = "sha256:" + "1" * 64
    order = stage_request_of(ArtifactRef("file:///a", digest), None)
    ids = [order.artifact(digest)]
    for _ in range(17):
        ids.append(copy_after(ids[-1]))
    assert len(set(ids)) == 18
    for damaged, expected in ((0, 0), (1, 1), (15, 15), (16, 16), (17, 16), (18, 16)):
        assert replace(order, damaged=frozenset(ids[:damaged])).artifact(digest) == ids[expected], damaged
    assert replace(order, damaged=frozenset(ids[1:])).artifact(digest) == ids[0]


def test_an_order_is_of_its_policy_and_base():
    digest, base = "sha256:" + "1" * 64, BaseModules(MODULES)
    ref = ArtifactRef("file:///a", digest)
    plain = stage_request_of(ref, None)
    assert (plain.fingerprint, stage_request_of(ref, base).fingerprint) == (None, base.fingerprint)
    others = [stage_request_of(ref, base), stage_request_of(replace(ref, prepare='{"remap": "auto"}'), base)]
    ids = {one.artifact(digest) for one in (plain, *others)}
    assert len(ids) >= 2
    for policy in ("{", '{"remap": "sideways"}'):
        with pytest.raises(ArtifactError) as refused:
            stage_request_of(replace(ref, prepare=policy), None)
        assert (refused.value.reason, refused.value.permanent) == ("unsupported_policy", True)


def known(source: str, prepared: str) -> Any:
    return SimpleNamespace(source=source, prepared=prepared)


def proofs_of(layout: StoreLayout, report: Any = None) -> Proofs:
    """Of a store whose artifact has this report."""
    return Proofs(layout, SimpleNamespace(read=lambda _: report))  # type: ignore[arg-type]


def weights_of(start: bytes, *ranges: list[tuple[int, int]]) -> Any:
    """How new weights are made: a header, and ranges of the old numbers."""
    return SimpleNamespace(start=start, ranges=[SimpleNamespace(parts=lambda one=one: iter(one)) for one in ranges])
