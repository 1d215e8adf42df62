"""A signature policy of the host: which adapters a store hands out, whatever stands in etcd."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from registry.lora.base import BaseModules
from registry.lora.digest import manifest_digest
from registry.lora.directory import digest_of
from registry.lora.ed25519 import read_public_key
from registry.lora.ed25519 import sign as sign_digest
from registry.lora.signing.bundle import IGNORED, folder_sha256
from registry.lora.signing.keys import sign_statement
from registry.lora.signing.statement import SIGNATURE_FILE, SignatureBinding, SignedFiles, write_statement
from registry.model.records import PoolLimits, PoolSpec
from registry.model.signature_policy import SignaturePolicy, read_policy
from registry.runtime.failpoints import Point, handling
from registry.sources.base import Stop, StoreError
from sidecar.artifacts import files
from sidecar.artifacts.signing import kept_bundles
from sidecar.artifacts.signing.kept_bundles import KeptBundle, KeptBundles
from sidecar.artifacts.signing.signatures import read_signature_policy
from sidecar.artifacts.store import LocalStore
from sidecar.artifacts.types import ArtifactRef
from tests.corpus.drafts import LLAMA
from tests.support.signing import make_ec_key, make_key
from tests.unit.artifacts.conftest import refusal
from tests.unit.model.test_signature_policy import policy_text

PRIVATE, PUBLIC = make_ec_key()
OTHER = make_ec_key()[0]
LAX = PoolSpec(name="p", base_models=["base"])
STRICT = PoolSpec(name="p", base_models=["base"], limits=PoolLimits(require_signature=True))
BASE = BaseModules({"q_proj": (8, 8)}, ("llama",))
NOW, LATER = datetime(2026, 11, 1, tzinfo=UTC), datetime(2027, 11, 1, tzinfo=UTC)


def policy(**rule: object) -> SignaturePolicy:
    return read_policy(
        policy_text([{"tenants": ["acme"], "signers": ["release"], **rule}], keys={"release": PUBLIC}), "f"
    )


class Clock:
    now = NOW

    def __call__(self) -> float:
        return self.now.timestamp()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def opened(open_store, clock):
    """Opens the store with a policy, as each process of a replica does."""

    def open_with(rules: SignaturePolicy | None, pool: PoolSpec = LAX) -> LocalStore:
        store = open_store()
        store.trust.signatures._wall = clock
        if rules is not None:
            store.trust.signatures.enforce(rules, "p")
        store.use_pool(pool)
        return store

    return open_with


def write(folder: Path, seed: int = 0) -> Path:
    return LLAMA.draft(seed=seed).write(folder)


def sign(folder: Path, private: bytes = PRIVATE, **binding: object) -> None:
    signed = SignedFiles("sql", folder_sha256(folder), SignatureBinding(**binding))  # type: ignore[arg-type]
    (folder / SIGNATURE_FILE).write_bytes(sign_statement(write_statement(signed, IGNORED), private))


def ref(folder: Path, name: str = "acme/sql", *, pinned: bool = True) -> ArtifactRef:
    if pinned:
        return ArtifactRef(folder.as_uri(), digest_of(folder), name=name)
    return ArtifactRef(folder.as_uri(), None, pin_key=f"p/{name}@1", name=name)


@pytest.fixture
def adapter(sources) -> Path:
    folder = write(sources / "sql")
    sign(folder)
    return folder


@pytest.mark.parametrize("is_pinned", [True, False])
async def test_what_the_policys_signer_signed_is_handed_out_in_any_process_also_without_its_source(
    opened, adapter, is_pinned
):
    """R21 proven-here, R13 static-stable: the bundle is kept, and verified anew by each process."""
    asked = ref(adapter, pinned=is_pinned)
    staged = await opened(policy()).ensure(asked)
    assert staged.is_proven
    adapter.rename(adapter.with_name("gone"))
    assert (await opened(policy()).ensure(asked)).path == staged.path
    assert (await refusal(opened(policy()), replace(asked, name="acme/other", uri=asked.uri + "x"))).reason != ""


def _mix(folder: Path) -> None:
    other = write(folder.with_name("other"), seed=1)
    (folder / "adapter_model.safetensors").write_bytes((other / "adapter_model.safetensors").read_bytes())


def _foreign_bundle(folder: Path) -> None:
    other = write(folder.with_name("other"), seed=1)
    sign(other)
    (folder / SIGNATURE_FILE).write_bytes((other / SIGNATURE_FILE).read_bytes())


def _unsigned_file(folder: Path) -> None:
    config = folder / "adapter_config.json"
    content = config.read_bytes()
    config.unlink()
    sign(folder)
    config.write_bytes(content)


WRONG = {
    "no bundle": (lambda one: (one / SIGNATURE_FILE).unlink(), "bundle_missing"),
    "no bundle of ours": (lambda one: (one / SIGNATURE_FILE).write_text("{}"), "bundle_invalid"),
    "weights of another release": (_mix, "signed_other_files"),
    "the bundle of another release": (_foreign_bundle, "signed_other_files"),
    "a file that nobody signed": (_unsigned_file, "signed_other_files"),
    "another key": (lambda one: sign(one, OTHER), "signer_untrusted"),
    "another name": (lambda one: sign(one, names=("team/*",)), "signed_for_other"),
    "another pool": (lambda one: sign(one, pools=("llama",)), "signed_for_other"),
    "another base": (lambda one: sign(one, base="llama"), "signed_for_other"),
    "ended": (lambda one: sign(one, not_after=datetime(2026, 1, 1, tzinfo=UTC)), "signature_expired"),
}


@pytest.mark.parametrize(("spoil", "reason"), WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("pool", [LAX, STRICT], ids=["the pool asks for nothing", "the pool asks"])
async def test_what_does_not_hold_is_refused_whatever_the_pool_says(opened, adapter, pool, spoil, reason):
    """R21 proven-here, A3 no-self-loosening, X2: etcd cannot switch it off; it is tried again, and then served."""
    whole = {path.name: path.read_bytes() for path in adapter.iterdir()}
    spoil(adapter)
    store, points = opened(policy(), pool), list[Point]()
    with handling(points.append):
        error = await refusal(store, ref(adapter))
    assert (error.reason, "; " in error.message) == (reason, True)
    assert points[-1] is (Point.RECEIVED if reason == "signed_other_files" else Point.LOCKED), "nothing more is read"
    assert not list((store._layout.root / "adapters").iterdir()), "nothing is left of it"
    for name, content in whole.items():
        (adapter / name).write_bytes(content)
    assert (await store.ensure(ref(adapter))).is_proven


async def test_a_bundle_counts_where_it_says(opened, adapter):
    for base in ("llama", BASE.fingerprint):
        sign(adapter, base=base)
        store = opened(policy())
        assert (await refusal(store, ref(adapter))).reason == "signed_for_other"
        assert [store.trust.signatures.follow(LAX, BASE) for _ in range(2)] == [True, False]
        assert (await store.ensure(ref(adapter))).is_proven, "what is known of the engine's base"
        for kept in store._layout.bundles.iterdir():
            kept.unlink()
    sign(adapter, names=("acme/*",), pools=("p",), base="base", not_after=LATER)
    assert (await opened(policy(bind=["name", "pool", "base", "notAfter"])).ensure(ref(adapter))).is_proven
    sign(adapter)
    store = opened(policy(bind=["name"]))
    error = await refusal(store, ref(adapter, pinned=False))
    assert (error.reason, error.message.partition(",")[0]) == ("signed_for_other", "model.sig does not bind name")
    assert error.message.endswith("loraplane sign DIR --key KEY.pem --name …")


async def test_a_name_is_looked_up_for_itself(opened, adapter):
    """A3 no-self-loosening: what was handed out under one name is not found under another."""
    sign(adapter, names=("acme/sql",))
    store = opened(policy())
    await store.ensure(ref(adapter))
    assert store.lookup(ref(adapter)) is not None
    assert store.lookup(ref(adapter, "acme/other")) is None
    assert (await refusal(store, ref(adapter, "acme/other"))).reason == "signed_for_other"


async def test_an_older_version_comes_back_only_while_its_signature_holds(opened, adapter, sources, clock):
    """A3 no-self-loosening: also what this process has in its store and in its memory."""
    sign(adapter, not_after=datetime(2026, 12, 1, tzinfo=UTC))
    store = opened(policy())
    older = ref(adapter)
    await store.ensure(older)
    newer = write(sources / "newer", seed=1)
    sign(newer)
    await store.ensure(ref(newer))
    clock.now = LATER
    store.use_pool(LAX)
    assert store.lookup(older) is None
    assert (await refusal(store, older)).reason == "signature_expired"
    assert (await refusal(opened(policy()), older)).reason == "signature_expired"
    assert (await store.ensure(ref(newer))).is_proven
    sign(adapter, not_after=datetime(2028, 1, 1, tzinfo=UTC))
    assert (await store.ensure(older)).is_proven, "it was signed anew"


async def test_a_policy_that_comes_later_asks_for_what_is_in_the_store(opened, adapter, clock):
    """R21 proven-here: nobody kept the list of files, so the source is read once more."""
    store = opened(None)
    staged = await store.ensure(ref(adapter))
    store.trust.signatures.enforce(policy(), "p")
    store.use_pool(LAX)
    assert store.lookup(ref(adapter)) is None
    assert (await store.ensure(ref(adapter))).path == staged.path
    store.trust.signatures.enforce(policy(signers=["release"], tenants=["other"]), "p")
    store.use_pool(LAX)
    error = await refusal(store, ref(adapter))
    assert (error.reason, "no rule for the tenant acme" in error.message) == ("signer_untrusted", True)
    (adapter / SIGNATURE_FILE).unlink()
    bundle = next((store._layout.root / "bundles").iterdir())
    for content in (b"", b"{}", b"[]", bundle.read_bytes().replace(b"adapter_config.json", b"adapter_other.json")):
        bundle.write_bytes(content)
        assert (await refusal(opened(policy()), ref(adapter))).reason == "bundle_missing", "what is kept proves itself"
    bundle.unlink()
    bundle.mkdir()
    assert (await refusal(opened(policy()), ref(adapter))).reason == "bundle_missing"


async def test_a_pool_asks_for_a_signature_where_the_host_does_not(opened, adapter):
    """A3 no-self-loosening: etcd can tighten."""
    (adapter / SIGNATURE_FILE).unlink()
    rule = policy(unsigned=True)
    assert (await opened(rule).ensure(ref(adapter))).is_proven
    assert (await refusal(opened(rule, STRICT), ref(adapter))).reason == "bundle_missing"
    sign(adapter)
    assert (await opened(rule, STRICT).ensure(ref(adapter))).is_proven


async def test_a_records_own_signature_is_taken_until_the_day_that_the_policy_says(opened, adapter, tmp_path, clock):
    private, public = make_key(tmp_path)
    (adapter / SIGNATURE_FILE).unlink()
    asked = replace(ref(adapter), signature=sign_digest(digest_of(adapter), private))
    until = policy(ed25519Until="2027-06-30")

    def store_with(rules: SignaturePolicy) -> LocalStore:
        store = opened(rules)
        store.trust.signatures.use({"old": read_public_key(public)})
        return store

    store = store_with(until)
    assert (await store.ensure(asked)).is_proven
    wrong = replace(asked, signature=sign_digest("sha256:" + "0" * 64, private))
    assert (await refusal(store, wrong)).reason == "signature_invalid"
    assert (await refusal(store_with(policy()), asked)).reason == "bundle_missing", "the policy names no day"
    store.use_pool(LAX)
    assert await store.ensure(asked) == store.lookup(asked)
    clock.now = LATER
    store.use_pool(LAX)
    assert store.lookup(asked) is None, "what was allowed until then has to be looked at anew"
    assert not store.trust.signatures.follow(LAX), "R16: and that once"
    assert (await refusal(store, asked)).reason == "bundle_missing"
    sign(adapter)
    assert (await store.ensure(asked)).is_proven


def test_what_is_just_being_kept_is_no_leftover(opened, monkeypatch):
    """R8: maintenance of any sidecar of the store removes what killed processes left, while others work."""
    store, whole = opened(None), files._write_whole

    def write(*parts: Any) -> None:
        whole(*parts)
        store.maintenance.collector.tidy(Stop())

    monkeypatch.setattr(files, "_write_whole", write)
    KeptBundles(store._layout).write("file:///a", "sha256:1", KeptBundle(b"x", ()))
    assert len(list(store._layout.bundles.iterdir())) == 1


def test_what_is_kept_and_cannot_be_read_now_is_not_taken_for_missing(opened, monkeypatch):
    """R12: whereas what is missing, or damaged, is fetched again."""
    layout = opened(None)._layout
    kept, digest = KeptBundles(layout), manifest_digest(())
    assert kept.read("file:///a", digest) is None
    kept.write("file:///a", digest, bundle := KeptBundle(b"x", ()))
    assert kept.read("file:///a", digest) == bundle
    with monkeypatch.context() as patch:
        patch.setattr(kept_bundles, "read_file", Mock(side_effect=OSError(errno.EMFILE, "too many open files")))
        with pytest.raises(OSError, match="too many"):
            kept.read("file:///a", digest)
    for damaged in (b"[]", b"{}", b"{", b'{"entries": [], "bundle": 1}'):
        next(layout.bundles.iterdir()).write_bytes(damaged)
        assert kept.read("file:///a", digest) is None


def test_what_is_kept_is_bounded(opened, monkeypatch):
    """R16 bounded."""
    layout = opened(None)._layout
    monkeypatch.setattr(kept_bundles, "MAX_KEPT", 4)
    kept = KeptBundles(layout)
    for number in range(5):
        kept.write("file:///a", f"sha256:{number}", KeptBundle(b"x", ()))
    assert len(list(layout.bundles.iterdir())) == 2


@pytest.mark.parametrize(
    ("content", "why"),
    [(None, "cannot be read: No such file"), ("rules: [", "line 1"), (json.dumps({"kind": "x"}), "apiVersion")],
)
def test_a_policy_that_cannot_be_read_is_named(tmp_path, content, why):
    file = tmp_path / "policy.yaml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(StoreError, match=f"--signature-policy {file}") as told:
        read_signature_policy(file)
    assert why in str(told.value)
    file.write_bytes(policy_text())
    assert read_signature_policy(file).rules


async def test_a_policy_is_read_anew_and_a_wrong_one_leaves_the_last_good_one_in_force(opened, adapter, tmp_path):
    """A3 no-self-loosening, A6 rotates: half a file loosens nothing, and is told until it is whole."""
    store, file = opened(None), tmp_path / "policy.yaml"
    file.write_bytes(policy_text([{"tenants": ["acme"], "signers": ["release"]}], keys={"release": make_ec_key()[1]}))
    signatures = store.trust.signatures
    store.trust.follow(file, read_signature_policy, lambda read: signatures.enforce(read, "p"))
    store.use_pool(LAX)
    assert (await refusal(store, ref(adapter))).reason == "signer_untrusted"
    before = store.reads
    file.write_text("rules: [")
    store.trust.refresh()
    assert ["line 1" in one for one in store.not_taken.values()] == [True]
    assert (await refusal(store, ref(adapter))).reason == "signer_untrusted"
    file.write_bytes(policy_text([{"tenants": ["acme"], "signers": ["release"]}], keys={"release": PUBLIC}))
    store.trust.refresh()
    store.use_pool(LAX)
    assert (store.not_taken, store.reads == before) == ({}, False)
    assert (await store.ensure(ref(adapter))).is_proven
