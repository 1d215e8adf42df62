"""Any backup in place of one of our own, from the file to the transactions that restore it."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import lru_cache
from pathlib import Path

from registry.access.methods import METHODS
from registry.access.principal import ANONYMOUS
from registry.admin.rpc.calls import asked_of, check
from registry.admin.rpc.decode import restore_history
from registry.cli.backup import StoredState, backup_text, check_places, plan_restore, records_of, state_of
from registry.cli.commands.backup import _history, _lines, _upserts
from registry.cli.failure import CliError
from registry.model.errors import RegistryError
from registry.model.messages import pool_message
from registry.model.records import AdapterRecord, PoolSpec, RetiredRecord, TenantRecord
from registry.transactions.changes import Remove
from registry.v1 import registry_pb2 as pb
from tests.fuzz.fuzzer import Run, Target, must_say
from tests.fuzz.mutation import Case, as_json, hurt_json, json_bytes, raw
from tests.support.changes import KEYS, POOL, Author, applying, creating, upsert
from tests.support.history_check import check_history
from tests.support.records import record

# A name that has had as many generations could not be told apart from one that has no further.
_MOST_GENERATIONS = 1 << 40
_HIGHEST = (1 << 53) - 1


def backups(rng: random.Random, part: bytes) -> bytes:
    """A backup with one value hurt, and the checksum that it has then, as a rule."""
    *lines, _ = part.splitlines(keepends=True) or [b""]
    if not lines or rng.random() < 0.2:
        return raw(rng, part)
    at = rng.randrange(len(lines))
    lines[at] = _line_hurt(rng, lines[at]) + b"\n"
    return sealed(lines)


def sealed(lines: list[bytes]) -> bytes:
    """These lines, and the one that says how many they are and what they come to."""
    body = b"".join(lines)
    end = {"records": len(lines) - 1, "sha256": hashlib.sha256(body).hexdigest()}
    return body + json.dumps(end).encode() + b"\n"


def _line_hurt(rng: random.Random, line: bytes) -> bytes:
    try:
        told = json.loads(line)
        value = json.loads(told["value"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return as_json(rng, line.rstrip(b"\n"))
    if rng.random() < 0.2:
        return json_bytes(hurt_json(rng, told))
    inner = json_bytes(hurt_json(rng, value)).decode()
    return json_bytes({**told, "value": inner})


def _stored(key: str, value: bytes) -> pb.StoredRecord:
    return pb.StoredRecord(key=key, value=value, etag="7")


def _retired(name: str, generation: int) -> pb.StoredRecord:
    told = record(name).model_dump(by_alias=True) | {"pool": POOL, "generation": generation}
    value = json.dumps(told | {"retired_by_request": "r", "deleted": True}).encode()
    return _stored(f"history/{POOL}/{name}/{generation}", value)


def _present(name: str, generation: int = 4) -> pb.StoredRecord:
    one: AdapterRecord = record(name).model_copy(update={"pool": POOL, "generation": generation})
    return _stored(f"adapters/{POOL}/{name}", one.to_bytes())


@lru_cache
def _backups() -> tuple[Case, ...]:
    """Of what stands, of what is gone, and of what no service would believe."""
    pools = [_stored(f"pools/{name}", PoolSpec(name=name, base_models=["base"]).to_bytes()) for name in (POOL, "q")]
    tenant = _stored("tenants/x", TenantRecord(name="x", max_adapters=5).to_bytes())
    known = (
        [*pools, tenant, _present("gone"), _retired("gone", 2), _retired("gone", 3), _retired("past", 1)],
        [_present("stands"), _retired("stands", 1), _present("other", 1)],
        [_retired("gone", _HIGHEST - 1), _present("gone", _HIGHEST)],
        [_stored(f"adapters/{POOL}/a", b"\xff?"), _stored("meta/x", b"{}")],
    )
    return tuple((backup_text(one, 12, "2026-01-01T00:00:00+00:00"),) for one in known)


def _now(author: Author) -> StoredState:
    """What the author's store has, as a service tells it."""
    found = [(key.decode().removeprefix(f"{KEYS.prefix}/"), kv) for key, kv in author.etcd.kvs.items()]
    kinds = ("pools/", "tenants/", "adapters/", "history/")
    return state_of(
        pb.StoredRecord(key=key, value=kv.value, etag=str(kv.mod_revision))
        for key, kv in found
        if key.startswith(kinds)
    )


def _restored(author: Author, saved: StoredState, calls: int) -> Iterator[str]:
    """Restores what a plan says of histories, each by at most so many calls; gives the names that are restored."""
    plan = plan_restore(saved, _now(author))
    assert all("\n" not in line for line in _lines(plan)), "a line of the plan is two"
    _upserts(plan, ())
    for pool in plan.create_pools:
        pool_message(pool, 0)
    for name in plan.histories:
        request = _history(saved, name)
        request.request_id = "r"
        try:
            check(asked_of(METHODS["RestoreHistory"], request, ANONYMOUS))
            for _ in range(calls):
                author.change(restore_history(request))
            yield request.name
        except RegistryError as error:
            must_say(error.reason, error.message)


@asynccontextmanager
async def _restoring(folder: Path) -> AsyncIterator[Run]:
    """A store in memory with an adapter in it, and whatever backup."""
    before = Author()
    for change in (creating(), applying(upsert("stands")), applying(upsert("deleted")), applying(Remove("deleted"))):
        before.change(change)

    async def play(case: Case) -> None:
        author = before.copy()
        try:
            records = records_of(case[0], "file")[1]
            saved = state_of(records)
            check_places(saved, records, "file")
        except CliError as error:
            must_say(str(error))
            return
        breaks_off_after = 1 + hashlib.sha256(case[0]).digest()[0] % 12
        for name in [*_restored(author, saved, breaks_off_after)]:
            kept = [kv.value for key, kv in author.etcd.kvs.items() if key.startswith(KEYS.history_of(POOL, name))]
            newest = max((RetiredRecord.parse(one).generation for one in kept), default=0)
            assert newest < _MOST_GENERATIONS, f"generation {newest} uses a name up"
            author.change(applying(upsert(name)))
        stands = AdapterRecord.parse(author.etcd.kvs[KEYS.adapter(POOL, "stands")].value)
        assert stands.generation == 1, "what stood is another one"
        check_history(KEYS, author.etcd.history)

    yield play


TARGETS = (Target("backups", (backups,), _backups, _restoring, runs=60),)
