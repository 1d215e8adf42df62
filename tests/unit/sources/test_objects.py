"""Objects of a store in ranges, with a client that is played; real ones are in tests/integration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from obstore.exceptions import BaseError, GenericError, PermissionDeniedError, PreconditionError, UnauthenticatedError

from registry.model.source_uri import parse_source
from registry.sources import object_stores
from registry.sources.base import BUNDLE_BYTES, Stop
from registry.sources.credentials import HeldCredential
from registry.sources.failures import MAX_ATTEMPTS
from registry.sources.object_stores import ObjectSource, open_store
from registry.sources.origins import Origins
from tests.unit.sources.conftest import got, refusal, refused
from tests.unit.sources.test_file import LARGE_BUNDLE

CONFIG, WEIGHTS = b"{}", bytes(range(256)) * 10
RANGE = 1000
URI = "gs://bucket/team/a"


@dataclass
class PlayedObject:
    """What a client gives for a range: in pieces, and in all perhaps not what it announced."""

    range: tuple[int, int]
    content: bytes
    meta: dict[str, Any]

    def stream(self, _: int) -> Iterator[bytes]:
        for start in range(0, len(self.content), 300):
            yield self.content[start : start + 300]


@dataclass
class PlayedStores:
    """A bucket; `faults` come one after another, None: none. What is opened again is another store."""

    objects: dict[str, bytes]
    faults: list[Exception | Callable[[], None] | None] = field(default_factory=list)
    asked: list[tuple[int, str, int, int, str | None]] = field(default_factory=list)
    opened: int = 0
    tag: str | None = "t1"
    origins: Origins = field(default_factory=Origins)

    def store(self, _uri: object, held: HeldCredential | None) -> int:
        if held is not None:
            held.secret()
        self.opened += 1
        return self.opened

    reopened = store

    def get(self, store: int, key: str, *, options: dict[str, Any]) -> PlayedObject:
        """As `obstore.get`."""
        start, end = options["range"]
        self.asked.append((store, key.rpartition("/")[2], start, end, options.get("if_match")))
        fault = self.faults.pop(0) if self.faults else None
        if isinstance(fault, Exception):
            raise fault
        if fault is not None:
            fault()
        content = self.objects.get(key)
        if content is None:
            raise FileNotFoundError
        if options.get("if_match", self.tag) != self.tag:
            raise PreconditionError("changed")
        end = min(end, len(content))
        return PlayedObject((start, end), content[start:end], {"size": len(content), "e_tag": self.tag})


@pytest.fixture
def stores(monkeypatch) -> PlayedStores:
    made = PlayedStores({"team/a/adapter_config.json": CONFIG, "team/a/adapter_model.safetensors": WEIGHTS})
    monkeypatch.setattr(object_stores.obstore, "get", made.get)
    return made


@pytest.fixture
def held(hold) -> HeldCredential:
    return hold(URI, {"token": "one"}, "gs://bucket/")


def source(stores: PlayedStores, held: HeldCredential | None = None) -> ObjectSource:
    return ObjectSource(stores, parse_source(URI), held, RANGE)  # type: ignore[arg-type]


def test_the_two_objects_come_in_ranges_of_one_version(stores):
    """R4 digest-true."""
    assert [*got(source(stores)).values()] == [CONFIG, WEIGHTS]
    assert stores.asked == [
        (1, "adapter_config.json", 0, 1000, None),
        (1, "adapter_model.safetensors", 0, 1000, None),
        (1, "adapter_model.safetensors", 1000, 2000, "t1"),
        (1, "adapter_model.safetensors", 2000, 3000, "t1"),
    ]


def test_what_fails_in_passing_costs_one_range(stores, held):
    stores.faults = [None, None, GenericError("reset"), OSError("gone")]
    assert [*got(source(stores)).values()] == [CONFIG, WEIGHTS]
    assert [start for _, _, start, _, _ in stores.asked] == [0, 0, 1000, 1000, 1000, 2000]
    stores.faults = [PermissionDeniedError("an old secret")]
    assert [*got(source(stores, held)).values()] == [CONFIG, WEIGHTS]
    assert [store for store, *_ in stores.asked[6:]] == [2, 3, 3, 3, 3], "with the newest secret"


def test_a_store_that_takes_no_condition_gives_no_mixture(stores, monkeypatch):
    """R4 digest-true: another version's range is none of this one, though the store sends it."""
    newer, get, asked = WEIGHTS[::-1], stores.get, []

    def unconditional(store: int, key: str, *, options: dict[str, Any]) -> PlayedObject:
        asked.append(key)
        if len(asked) == 3:
            stores.objects["team/a/adapter_model.safetensors"], stores.tag = newer, "t2"
        return get(store, key, options={"range": options["range"]})

    monkeypatch.setattr(object_stores.obstore, "get", unconditional)
    assert [*got(source(stores)).values()] == [CONFIG, newer]


@pytest.mark.parametrize("change", [lambda content: content[1:], lambda content: content * 1000])
def test_a_range_is_as_long_as_it_was_announced(stores, change, monkeypatch):
    """R4, R16 bounded: what is too much is not read on, and what comes by single bytes is not asked for by them."""
    get, read = stores.get, []

    def lying(store: int, key: str, *, options: dict[str, Any]) -> PlayedObject:
        found = get(store, key, options=options)
        found.content, stream = change(found.content), found.stream
        monkeypatch.setattr(found, "stream", lambda size: (read.append(len(one)) or one for one in stream(size)))
        return found

    monkeypatch.setattr(object_stores.obstore, "get", lying)
    assert refusal(source(stores)).reason == "source_incomplete"
    assert len(stores.asked) == MAX_ATTEMPTS
    assert sum(read) < MAX_ATTEMPTS * 2 * RANGE


@pytest.mark.parametrize(
    ("fault", "reason", "asked"),
    [
        (BaseError("secret"), "source_io", MAX_ATTEMPTS),
        (OSError("secret"), "source_io", MAX_ATTEMPTS),
        (FileNotFoundError("secret"), "source_missing", 1),
        (PermissionDeniedError("secret"), "source_denied", 1),
        (UnauthenticatedError("secret"), "source_denied", 1),
    ],
)
def test_what_a_store_refuses_is_said_in_words_of_ours(stores, fault, reason, asked):
    """X1 secret-free: those of the client repeat addresses and signatures."""
    stores.faults = [fault] * 9
    error = refusal(source(stores))
    assert (error.reason, error.permanent, len(stores.asked)) == (reason, False, asked)
    assert "gs://bucket/team/a/adapter_config.json" in error.message
    assert "secret" not in error.message


def test_who_is_stopped_asks_for_no_further_range(stores):
    """R12."""
    stop = Stop()
    stores.faults = [None, stop.set]
    assert (refusal(source(stores), stop).reason, len(stores.asked)) == ("staging_stopped", 2)


KEY = '{"type": "service_account", "gcs_base_url": "%s"}'


@pytest.mark.parametrize("url", ["nowhere", "ftp://host", "https://a..b"])
def test_a_key_that_leads_nowhere_is_told_and_breaks_nothing(held, monkeypatch, url):
    """X2: the client itself would end the process."""
    monkeypatch.setenv("SECRET", KEY % url)
    error = refused(open_store, parse_source(URI), held)
    assert (error.reason, error.permanent) == ("credential_unavailable", False)
    assert "its gcs_base_url cannot be used" in error.message


def test_the_version_of_a_source_changes_with_its_objects(stores):
    """R8: what is refused for good is looked at, whatever its size."""
    made = source(stores)
    first = made.version(Stop())
    assert "t1" in first
    assert [(start, end) for _, _, start, end, _ in stores.asked] == [(0, 1)] * 2
    stores.tag = "t2"
    second = made.version(Stop())
    del stores.objects["team/a/adapter_model.safetensors"]
    assert len({first, second, made.version(Stop())}) == 3
    stores.tag = None
    assert made.version(Stop()) == ""
    stores.faults = [GenericError("no")] * 9
    assert "cannot be read" in refused(made.version, Stop()).message


def test_a_source_is_gone_when_its_store_says_so_of_an_object(stores):
    """What is refused or broken says nothing of it: who may not list a bucket is refused what is not there."""
    made = source(stores)
    stores.tag = None
    assert not made.is_gone(Stop())
    assert [(start, end) for _, _, start, end, _ in stores.asked] == [(0, 1)] * 2
    for fault in (PermissionDeniedError("no"), UnauthenticatedError("no"), GenericError("503")):
        stores.faults = [fault] * 9
        assert refused(made.is_gone, Stop()).reason in {"source_denied", "source_io"}
    stores.faults.clear()
    stores.origins = Origins()
    del stores.objects["team/a/adapter_model.safetensors"]
    assert made.is_gone(Stop())


def test_weights_that_are_missing_are_named_and_what_is_there_instead(stores):
    """R8: what can never be had by waiting is not waited for."""
    weights = stores.objects.pop("team/a/adapter_model.safetensors")
    error = refusal(source(stores))
    assert (error.reason, error.permanent) == ("source_missing", False)
    assert "adapter_model.safetensors" in error.message
    stores.objects["team/a/adapter_model.bin"] = weights
    assert refusal(source(stores)).reason == "weights_not_safetensors"


def test_a_bundle_is_one_request_for_the_beginning_of_an_object(stores):
    made = source(stores)
    assert made.signature(Stop()) is None
    stores.objects["team/a/model.sig"] = LARGE_BUNDLE
    assert made.signature(Stop()) == LARGE_BUNDLE[:BUNDLE_BYTES]
    assert stores.asked[-1][1:4] == ("model.sig", 0, BUNDLE_BYTES)
    stores.faults = [PermissionDeniedError("no")] * 9
    assert refused(made.signature, Stop()).reason == "source_denied"
