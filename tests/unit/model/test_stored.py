"""Values in etcd: their sizes, their schema, what a short one means, and where a complaint is about."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from registry.model.errors import FailedPrecondition, Reason
from registry.model.records import AdapterRecord, AdapterSpec, PoolSpec, SourceSpec, TenantRecord
from registry.model.status import (
    MAX_FOUND,
    MAX_LEAVING,
    MAX_SERVES,
    Presence,
    ReplicaStatus,
    host_of,
    presence_of,
)
from registry.model.stored import MAX_TRANSACTION_BYTES, Part, Stored, fields_at, read_json

TENANT = {"schema": 1, "name": "t", "max_adapters": None, "adapters": 0}
ADAPTER = {
    "name": "a",
    "pool": "p",
    "tenant": "t",
    "generation": 1,
    "spec": {
        "source": {"uri": "file:///a"},
        "strategy": {"canary": {"replicas": 1}},
        "expect": {"answers": [{"prompt": [1], "tokens": [2]}]},
    },
    "updated_at": "then",
    "updated_by": "u",
}
POOL = {
    "name": "p",
    "base_models": ["b"],
    "base": {"modules": {"q": [1, 2]}, "fingerprint": "sha256:" + "0" * 64},
}
STATUS = {
    "replica": "r",
    "pool": "p",
    "engine": {"kind": "vllm", "version": "1", "url": "u", "base_models": ["b"], "incarnation": "i"},
    "observed_revision": 5,
    "ready": True,
    "stale": False,
    "served": {"count": 1, "hash": "h"},
    "pending": [{"name": "a", "generation": 1, "reason": "staging"}],
    "failed": [{"name": "b", "generation": 1, "reason": "x", "message": "y", "attempts": 1, "retry_at": None}],
    "kept": [{"name": "b", "generation": 1}],
    "lazy": {},
    "updated_at": "then",
}
PRESENCE = {"pool": "p", "replica": "r", "incarnation": "i", "owner": "o", "started_at": "then"}


def padded(value: dict[str, Any], size_bytes: int) -> bytes:
    """A value of just so many bytes."""
    short = json.dumps(value | {"padding": ""}).encode()
    return json.dumps(value | {"padding": "x" * (size_bytes - len(short))}).encode()


@pytest.mark.parametrize(
    ("kind", "value", "most"),
    [(TenantRecord, TENANT, 65_536), (ReplicaStatus, STATUS, 262_144)],
    ids=["a record", "a status"],
)
def test_a_value_may_be_as_large_as_is_documented(kind, value, most):
    """R16: an entry has at most 64 KiB, a status 256 KiB."""
    whole = padded(value, most)
    assert len(whole) == most
    assert kind.parse(whole).model_extra == {"padding": json.loads(whole)["padding"]}
    with pytest.raises(FailedPrecondition, match=f"{most + 1} bytes are more than the {most} "):
        kind.parse(padded(value, most + 1))


def test_a_value_is_written_under_the_names_that_every_release_reads():
    """Half of a character makes another way of writing necessary; it gives the same form."""
    assert json.loads(TenantRecord(name="t").to_bytes()) == TENANT
    odd = TenantRecord(name="\ud800\u00e9")
    assert odd.to_bytes() == b'{"schema":1,"name":"?\xc3\xa9","max_adapters":null,"adapters":0}'


def test_a_value_never_changes():
    """What one reader was given is what all others have."""
    tenant = TenantRecord.parse(json.dumps(TENANT).encode())
    with pytest.raises(ValidationError, match="frozen"):
        tenant.adapters = 5


NO_LIMITS = {"max_loras": None, "max_cpu_loras": None, "max_lora_rank": None, "target_modules": None}
# What is left out of the short values above.
LEFT_OUT: dict[str, dict[str, Any]] = {
    "adapter": {
        "schema": 1,
        "spec": {
            "source": {"digest": None, "signature": None},
            **dict.fromkeys(("base_model", "credentials", "description", "ttl_seconds", "ttl_from", "keep"), None),
            "load": "eager",
            "priority": 0,
            "labels": {},
            "placement": {"replicas": "all", "selector": {}},
            "prepare": {"remap": "auto", "vision": "reject", "dora": "reject", "drop": []},
            "strategy": {"promote": "auto", "max_failures": 0, "soak_seconds": 60},
            "expect": {"answers": [{"logprobs": []}], "tolerance": 0.2},
            "enabled": True,
        },
        "request_id": "",
        "rollout": None,
        "retry": None,
        "expires_at": None,
        "kept": [],
        "scaled": None,
    },
    "pool": {
        "schema": 1,
        "limits": {
            **dict.fromkeys(("max_rank", "max_adapters", "target_modules", "expected_replicas"), None),
            "require_signature": False,
            "require_digest": False,
            "prove": "effect",
            "engine_hosts": [],
            "expected_groups": [],
            "roles": [],
        },
        "removals_confirmed_revision": 0,
        "base": {
            "names": [],
            "tied": False,
            **dict.fromkeys(("architecture", "head_size", "evidence", "layout", "weights"), None),
        },
        "engine": "vllm",
        "engine_names": "plain",
    },
    "tenant": {"schema": 1, "max_adapters": None, "adapters": 0},
    "presence": {
        "schema": 1,
        "labels": {},
        "capacity": None,
        "declines": {},
        **dict.fromkeys(("version", "engine_url", "seat"), ""),
        **dict.fromkeys(("leaving", "ephemeral", "by_reports"), False),
    },
    "status": {
        "schema": 1,
        "earlier": [],
        "engine": {
            "limits": NO_LIMITS,
            "swap": "",
            "names": "plain",
            **dict.fromkeys(("evidence", "highest_rank", "max_model_len")),
        },
        "served": {"seen_at": ""},
        "pending": [{"request_id": ""}],
        "failed": [{"request_id": "", "settled": False}],
        "kept": [{"counted": False}],
        "lazy": {"count": 0, "servable": False, "reason": "", "resident": []},
        **{name: [] for name in ("warnings", "found", "leaving", "insecure", "certificates", "events")},
        "load": None,
        "uses": None,
        **dict.fromkeys(("omitted", "found_omitted", "removing"), 0),
        **dict.fromkeys(("pending_count", "failed_count", "serves", "store"), None),
        **dict.fromkeys("omitted_reason members weights note held degraded http last_request_id".split(), ""),
    },
}
SHORT: dict[str, tuple[type[Stored], dict[str, Any]]] = {
    "adapter": (AdapterRecord, ADAPTER),
    "pool": (PoolSpec, POOL),
    "tenant": (TenantRecord, {"name": "t"}),
    "presence": (Presence, PRESENCE),
    "status": (ReplicaStatus, STATUS),
}


def joined(short: Any, more: Any) -> Any:
    """A value with what it leaves out."""
    match short, more:
        case dict(), dict():
            return {name: joined(short.get(name), more.get(name)) for name in short | more}
        case list(), list():
            return [joined(one, other) for one, other in zip(short, more, strict=True)]
        case _:
            return more if short is None else short


def test_what_a_short_value_leaves_out_means_what_it_always_meant():
    """R9, R20: readers of all releases take the same for it; none claims what its writer did not say."""
    read = {
        name: kind.parse(json.dumps(value).encode()).model_dump(mode="json", by_alias=True)
        for name, (kind, value) in SHORT.items()
    }
    assert read == {name: joined(value, LEFT_OUT[name]) for name, (_, value) in SHORT.items()}
    assert presence_of(json.dumps(PRESENCE).encode()) == Presence(**PRESENCE)


@pytest.mark.parametrize(
    ("path", "remedies"),
    [
        ([], []),
        (["spec"], [None]),
        (["spec", "source", "uri"], [None, "an adapter needs a source", "write scheme://path"]),
        (["spec", "strategy", "canary", "replicas"], [None, "a strategy needs canary", None, "use a whole number"]),
        (["spec", "expect", "answers", 0, "tokens"], [None, "let loraplane", "give 1 to 4", "give 1 to 4", "write 1"]),
        (["spec", "expect", "answers", "2"], [None, "let loraplane", "give 1 to 4", "give 1 to 4"]),
        (["spec", "prepare", "drop", 3], [None, None, "name at most 64 modules to"]),
        (["spec", "labels", "a", "b"], [None, "use at most 64 labels"]),
        (["spec", "nowhere", "uri"], [None]),
        (["nowhere"], []),
        (["schema"], [None]),
        (["schema", "x"], [None]),
        (["schema_version"], []),
        ([0, "spec"], []),
    ],
    ids=lambda path: ".".join(map(str, path)),
)
def test_the_fields_along_the_path_of_a_complaint(path, remedies):
    """Each has what to write there; a number in a list is of the list."""
    found = [field.description for field in fields_at(AdapterRecord, path)]
    assert [remedy and remedy[: len(start or "")] for remedy, start in zip(found, remedies, strict=True)] == remedies


@pytest.mark.parametrize(
    ("owner", "host"), [("boot-1:42", "boot-1"), ("unknown-boot:42", ""), ("boot-1", "boot-1"), ("", "")]
)
def test_the_host_of_an_owner_is_its_boot_id(owner, host):
    """R10 one-owner: of a boot id that nobody knows, nothing is said."""
    assert host_of(owner) == host


def test_the_names_of_a_status_fit_into_it():
    """R16: a status has at most 256 KiB; what it is to name leaves room for what goes wrong."""
    digest = "sha256:" + "0" * 64
    found = [{"name": f"acme/adapter-{at:06}", "generation": 100, "digest": digest} for at in range(MAX_FOUND)]
    serves = [[f"acme/adapter-{at:06}", 100] for at in range(MAX_SERVES)]
    leaving = [{"name": f"acme/adapter-{at:06}", "generation": 100} for at in range(MAX_LEAVING)]
    assert sum(len(json.dumps(names)) for names in (found, serves, leaving)) < 0.8 * 256 * 1024
    assert MAX_SERVES > 2000, "as many as a replica may have are told"
    assert MAX_LEAVING > 100, "a replica hands over as many at once"
    assert MAX_FOUND == 256, "all releases compare the same names"


@pytest.mark.parametrize(
    ("value", "is_there"), [(b"", False), (b"[]", False), (b"\xff", False), (b'{"schema": 2}', False), (None, True)]
)
def test_a_presence_is_read_or_is_none(value, is_there):
    """R14: whatever somebody wrote in the place of it."""
    whole = Presence(pool="p", replica="r", incarnation="i", owner="o", started_at="t")
    assert presence_of(whole.to_bytes() if value is None else value) == (whole if is_there else None)


RECORD = AdapterRecord(
    name="acme/a",
    pool="p",
    tenant="acme",
    generation=1,
    spec=AdapterSpec(source=SourceSpec(uri="file:///a")),
    updated_at="t",
    updated_by="u",
)


def changed(**fields: object) -> bytes:
    return json.dumps(json.loads(RECORD.to_bytes()) | fields).encode()


def test_the_largest_value_is_one_that_etcd_takes_as_it_is_set_up_by_default():
    """W1: with room for what stands beside it in its transaction; 1.5 MiB is etcd's --max-request-bytes."""
    assert 1_000_000 <= MAX_TRANSACTION_BYTES <= 0.95 * 1.5 * (1 << 20)


def test_a_copy_of_what_is_frozen_is_itself():
    """Pydantic makes one of each default, for each of a thousand manifests."""
    assert copy.deepcopy(RECORD.spec.placement) is RECORD.spec.placement


def _parts(kind: type) -> set[type]:
    return {kind}.union(*(_parts(below) for below in kind.__subclasses__()))


def _numbers(annotation: object, metadata: Sequence[object] = ()) -> Iterator[set[str]]:
    """Of each number in an annotation the names of its bounds."""
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        yield from _numbers(inner, [*metadata, *more])
    elif annotation in (int, float):
        found = [one.metadata if isinstance(one, FieldInfo) else [one] for one in metadata]
        yield {type(bound).__name__ for many in found for bound in many}
    for inner in get_args(annotation) if get_origin(annotation) is not Annotated else ():
        yield from _numbers(inner, metadata if get_origin(annotation) in (Union, UnionType) else ())


def test_every_number_of_what_is_stored_is_bounded():
    """R14 nack: a number of 400 digits is one bad value, and nothing has to calculate with it."""
    unbounded = [
        f"{kind.__name__}.{name}"
        for kind in sorted(_parts(Part), key=lambda kind: kind.__name__)
        if kind.__module__.startswith("registry.model.")
        for name, field in kind.model_fields.items()
        for bounds in _numbers(field.annotation, field.metadata)
        if not bounds >= {"Ge", "Le"}
    ]
    assert unbounded == []


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(value):
    """R14 nack: arbitrary bytes are a refusal, never another error."""
    with pytest.raises(FailedPrecondition):
        PoolSpec.parse(value)


def test_unknown_fields_stay():
    again = AdapterRecord.parse(changed(later={"deep": [1]}))
    assert json.loads(again.to_bytes())["later"] == {"deep": [1]}


@pytest.mark.parametrize(
    ("value", "reason", "told"),
    [
        (b"", Reason.UNREADABLE_RECORD, "Invalid JSON"),
        (b"{", Reason.UNREADABLE_RECORD, "Invalid JSON"),
        (b"[]", Reason.UNREADABLE_RECORD, "Input should be an object"),
        (b"[" * 3000, Reason.UNREADABLE_RECORD, ""),
        (b"\xff", Reason.UNREADABLE_RECORD, ""),
        (b'{"schema": 1}', Reason.UNREADABLE_RECORD, "name: Field required"),
        (changed(generation=0), Reason.UNREADABLE_RECORD, "generation: "),
        (changed(generation="1"), Reason.UNREADABLE_RECORD, "generation: "),
        (changed(generation=2**53), Reason.UNREADABLE_RECORD, "generation: "),
        (changed(schema="2"), Reason.UNREADABLE_RECORD, "schema: "),
        (changed(schema=2, spec="of another form"), Reason.FUTURE_SCHEMA, "schema 2 is later than 1"),
        (changed(spec={"source": {"uri": 7, "x": "hunter2"}}), Reason.UNREADABLE_RECORD, "spec.source.uri: "),
    ],
)
def test_unreadable(value, reason, told):
    """R14 nack: it is refused with its reason and where the first complaint is; X1: never with what stands there."""
    with pytest.raises(FailedPrecondition) as refused:
        AdapterRecord.parse(value)
    assert refused.value.reason is reason
    assert refused.value.message.startswith(told or refused.value.message[:1])
    assert "hunter2" not in refused.value.message


@pytest.mark.parametrize("text", ["", "{", "[1,]", b"\xff", "[" * 30_000], ids=lambda text: str(text)[:5])
def test_text_that_is_no_json_is_called_too_deep_where_it_is(text):
    with pytest.raises(ValueError, match="too deeply" if len(text) > 9 else r"^(?!it is nested)"):
        read_json(text)
