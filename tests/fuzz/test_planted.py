"""Each target that looks at more than one request finds the bug that it is there to find, planted in real code."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from registry.access.principal import operator
from registry.admin.rpc import calls, interceptor
from registry.client import contexts
from registry.model.errors import InvalidArgument
from registry.runtime import page_guard
from registry.runtime.connection_table import ConnectionTable, NoPlace
from registry.sources import object_stores
from registry.sources.getter import Getter
from registry.transactions import repair
from sidecar.report import http
from tests.fuzz import fuzzer, sequences
from tests.fuzz.fuzzer import Bounds, search
from tests.fuzz.targets import TARGETS
from tests.fuzz.test_fuzz import PATIENCE


def _refused_requests_are_kept(patch: pytest.MonkeyPatch) -> None:
    kept: list[bytes] = []
    received = interceptor._received

    async def keep(*arguments: object) -> bytes:
        # Written to anew, since a copy that nobody reads may have no page of its own.
        kept.append(bytes(bytearray(await received(*arguments))))  # type: ignore[arg-type]
        return kept[-1]

    patch.setattr(sequences, "MAX_KEPT_BYTES", 60 << 20)
    patch.setattr(interceptor, "_received", keep)


def _nobody_is_told_of_a_refusal(patch: pytest.MonkeyPatch) -> None:
    refuse = interceptor._refuse

    async def wait(context: interceptor.Context, error: InvalidArgument) -> None:
        if "holds no request" not in error.message:
            return await refuse(context, error)
        while not context.done():
            await interceptor.asyncio.sleep(0.1)
        return None

    patch.setattr(sequences, "ANSWER_SECONDS", 3.0)
    patch.setattr(interceptor, "_refuse", wait)


def _silent_ones_keep_their_places(patch: pytest.MonkeyPatch) -> None:
    def refuse(table: ConnectionTable[object], peer: str) -> None:
        if table._counts[peer] >= table._most_of_peer or len(table._peers) >= table._most:
            raise NoPlace("port")

    patch.setattr(ConnectionTable, "_replaced", refuse)


def _any_web_page_drains(patch: pytest.MonkeyPatch) -> None:
    async def anybody(*_: object) -> str:
        return "anybody"

    patch.setattr(http.DrainPage, "_caller", anybody)


def _any_host_is_known(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(page_guard.Hosts, "knows", lambda *_: True)


def _any_generation_is_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(repair, "_check_reach", lambda *_: None)


def _any_value_is_protection(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(contexts, "_context", lambda value: contexts.AdminContext(**value))


def _a_credential_follows_a_redirect(patch: pytest.MonkeyPatch) -> None:
    def anywhere(getter: Getter, *_: object) -> tuple[tuple[str, str | None], ...]:
        assert getter._held is not None
        return (("Authorization", getter._held.authorization()),)

    patch.setattr(Getter, "_authorization", anywhere)


def _a_store_s_client_goes_anywhere(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(object_stores, "_there_alone", lambda _: {})
    patch.setattr(object_stores.Stores, "_proxy", lambda *_: None)


def _whatever_a_store_sends_is_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(object_stores, "RANGE_BYTES", 1 << 40)
    patch.setattr(object_stores._Bucket, "_bytes", lambda _bucket, result, _key: bytes(result.bytes()))


def _names_differ_by_more_than_case(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(calls, "operator", lambda name: operator(name.lower()))


PLANTED: tuple[tuple[str, Callable[[pytest.MonkeyPatch], None], str], ...] = (
    ("sequences", _refused_requests_are_kept, "are kept of calls"),
    ("sequences", _nobody_is_told_of_a_refusal, "no answer to"),
    ("connections", _silent_ones_keep_their_places, "answers nobody beside"),
    ("pages", _any_web_page_drains, "drained without the control token"),
    ("pages", _any_host_is_known, "told to a Host of anybody's"),
    ("backups", _any_generation_is_believed, "uses a name up"),
    ("small-files", _any_value_is_protection, "is protected"),
    ("source-answers", _a_credential_follows_a_redirect, "where a redirect led"),
    ("store-answers", _a_store_s_client_goes_anywhere, "where a redirect led"),
    ("store-answers", _whatever_a_store_sends_is_kept, "was read on"),
    ("certificate-names", _names_differ_by_more_than_case, "are taken for one"),
)


@pytest.mark.parametrize(("name", "plant", "told"), PLANTED, ids=[f"{one[0]}-{one[1].__name__}" for one in PLANTED])
async def test_a_planted_bug_is_found(name, plant, told, tmp_path, monkeypatch):
    """X3 given-back, X2: by the valid cases alone, each of which has its bug in mind."""
    monkeypatch.setattr(fuzzer, "_SMALLER_SECONDS", 0.0)
    plant(monkeypatch)
    found = await search(TARGETS[name], tmp_path, random.Random(1), Bounds(runs=0, findings=1, patience=PATIENCE))
    assert [one for one in found.findings.values() if told in one.text], [*found.findings]
