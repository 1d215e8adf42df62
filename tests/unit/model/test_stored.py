"""Values in etcd: their sizes, their schema, what a short one means, and where a complaint is about."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from registry.model.errors import FailedPrecondition, Reason
from registry.model.records import AdapterRecord, PoolSpec, TenantRecord
from registry.model.status import Presence, ReplicaStatus, presence_of
from registry.model.stored import Stored, fields_at, model_in, read_json

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


@pytest.mark.parametrize(
    ("schema", "reason", "told"),
    [
        (2, Reason.FUTURE_SCHEMA, "schema 2 is later than 1"),
        (2**31 - 1, Reason.FUTURE_SCHEMA, "schema 2147483647 is later"),
        (2**31, Reason.FUTURE_SCHEMA, "schema 2147483647 is later"),
        (0, Reason.UNREADABLE_RECORD, "schema: "),
        (-5, Reason.UNREADABLE_RECORD, "schema: "),
    ],
)
@pytest.mark.parametrize("is_readable", [True, False])
def test_a_later_schema_is_told_as_that(schema, reason, told, is_readable):
    """R14 nack: whether or not its form can be read; no number is too large to be told."""
    value = TENANT | {"schema": schema} | ({} if is_readable else {"adapters": -1})
    with pytest.raises(FailedPrecondition, match=told) as refused:
        TenantRecord.parse(json.dumps(value).encode())
    assert refused.value.reason is reason


@pytest.mark.parametrize(
    ("value", "told"),
    [(b"[]", "Input should be an object"), (b"{", "Invalid JSON"), (b'{"schema": 1}', "name: Field required")],
)
def test_the_first_complaint_is_told_with_its_place_where_it_has_one(value, told):
    with pytest.raises(FailedPrecondition) as refused:
        TenantRecord.parse(value)
    assert refused.value.message.startswith(told)


@pytest.mark.parametrize("text", ["", "{", "[1,]", b"\xff"], ids=str)
def test_text_that_is_no_json_is_not_called_too_deep(text):
    with pytest.raises(ValueError, match=r"^(?!it is nested)"):
        read_json(text)


def test_a_value_is_written_under_the_names_that_every_release_reads():
    """Half of a character makes another way of writing necessary; it gives the same form."""
    assert json.loads(TenantRecord(name="t").to_bytes()) == TENANT
    odd = TenantRecord(name="\ud800\u00e9")
    assert odd.to_bytes() == b'{"schema":1,"name":"?\xc3\xa9","max_adapters":null,"adapters":0}'


def test_the_plain_form_of_a_value_means_the_same():
    tenant = TenantRecord.parse(json.dumps(TENANT | {"adapters": 2}).encode())
    assert TenantRecord.model_validate(tenant.model_dump()) == tenant
    assert TenantRecord.model_validate(tenant.model_dump(by_alias=True)) == tenant


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
            **dict.fromkeys(("base_model", "credentials", "description"), None),
            "load": "eager",
            "priority": 0,
            "labels": {},
            "placement": {"replicas": "all", "selector": {}},
            "prepare": {"remap": "auto", "vision": "reject", "dora": "reject", "drop": []},
            "strategy": {"promote": "auto", "max_failures": 0, "soak_seconds": 60},
            "expect": {"answers": [{"logprobs": []}], "tolerance": 0.2},
        },
        "request_id": "",
        "rollout": None,
        "retry": None,
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
        "engine": {"limits": NO_LIMITS, "swap": "", "names": "plain", "evidence": None, "highest_rank": None},
        "served": {"seen_at": ""},
        "pending": [{"request_id": ""}],
        "failed": [{"request_id": "", "settled": False}],
        "kept": [{"counted": False}],
        "lazy": {"count": 0, "servable": False, "reason": "", "resident": []},
        **{name: [] for name in ("warnings", "found", "leaving", "insecure")},
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


def test_a_presence_that_cannot_be_read_is_none():
    assert presence_of(b"{") is None


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
    ("annotation", "expected"),
    [
        (TenantRecord, TenantRecord),
        (TenantRecord | None, TenantRecord),
        (list[TenantRecord], TenantRecord),
        (dict[str, TenantRecord], TenantRecord),
        (int, None),
        (int | str, None),
        (list[int], None),
        (None, None),
    ],
    ids=str,
)
def test_the_model_in_a_field(annotation, expected):
    assert model_in(annotation) is expected
