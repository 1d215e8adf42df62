"""Any name in a caller's certificate: who somebody is, in keys, records and the replay."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from registry.admin.rpc.interceptor import _call, _shown
from registry.lora.text import printable
from registry.model.errors import RegistryError
from registry.model.records import AdapterRecord
from tests.fuzz.fuzzer import Run, Target, must_say
from tests.fuzz.mutation import Case, raw
from tests.support.changes import KEYS, POOL, Author, applying, creating, upsert
from tests.support.history_check import check_history
from tests.support.played_admin import Context

_REQUEST = "r-1"


@lru_cache
def _pairs() -> tuple[Case, ...]:
    """Two names that could be taken for one."""
    return (
        (b"ann", b"Ann"),
        (b"ann", b"ann/r-1"),
        (b"operator:ann", b"ann"),
        (b"a\nb", b"a b"),
        (b"ann\0", b"ann"),
        (b"\xff", b""),
        ("\u202eann".encode(), b"ann"),
    )


@asynccontextmanager
async def _naming(_: Path) -> AsyncIterator[Run]:
    """Two callers, each of whom makes a change under the same id of a request."""
    before = Author()
    before.change(creating())

    async def play(case: Case) -> None:
        author, made = before.copy(), []
        for number, name in enumerate(case):
            context = cast("Any", Context(names={"x509_common_name": [name]}))
            author.principal = (await _call("ApplyAdapters", context, _shown(context), None)).principal
            try:
                author.change(applying(upsert(f"x{number}")), _REQUEST)
            except RegistryError as error:
                must_say(error.reason, error.message)
                continue
            record = AdapterRecord.parse(author.etcd.kvs[KEYS.adapter(POOL, f"x{number}")].value)
            assert printable(record.updated_by).isprintable(), "a name that moves a terminal's cursor"
            made.append(record.updated_by)
        if len({name.decode(errors="replace") for name in case}) == 2 and max(map(len, case)) < _LONG:
            assert len(made) == 2, "two callers are taken for one"
        check_history(KEYS, author.etcd.history)

    yield play


# Of longer ones a record may be too large.
_LONG = 1000
TARGETS = (Target("certificate-names", (raw,), _pairs, _naming, runs=100),)
