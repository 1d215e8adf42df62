"""What a field takes, and what no longer: a complaint tells people these bounds."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from registry.model.expected_answers import Expect
from registry.model.records import AdapterSpec, BaseShapes, CanaryRollout, PoolLimits, PoolSpec, SourceSpec, Strategy
from registry.model.status import Presence, ReportedEvidence, presence_of

SPEC = AdapterSpec(source=SourceSpec(uri="file:///a"))
FINGERPRINT = "sha256:" + "0" * 64


def long_host(length: int) -> str:
    """A host of labels that are as long as they may be, or shorter."""
    return ".".join(["a" * 63] * (length // 64) + ["b" * (length % 64)])


@dataclass(frozen=True)
class Bounded:
    """A field: the model that has it, the fields with a value of it, what is just taken, and what is not any more."""

    kind: type[BaseModel]
    fields: Callable[[Any], dict[str, Any]]
    taken: list[Any]
    refused: list[Any]

    def is_taken(self, value: Any) -> bool:
        """Whether a value is one of the model."""
        if self.kind is Presence:  # of which whoever reads it in etcd only hears whether it can be read
            return presence_of(json.dumps(self.fields(value)).encode()) is not None
        try:
            self.kind.model_validate(self.fields(value))
        except ValidationError:
            return False
        return True


def part_of(kind: type[BaseModel], whole: dict[str, Any], key: str = "") -> Callable[..., Bounded]:
    """Makes fields of a model that has all others; or of the only answer in it."""

    def bounded(fields: Callable[[Any], dict[str, Any]], taken: list[Any], refused: list[Any]) -> Bounded:
        def made(value: Any) -> dict[str, Any]:
            return {key: [whole | fields(value)]} if key else whole | fields(value)

        return Bounded(kind, made, taken, refused)

    return bounded


of_spec = part_of(AdapterSpec, {"source": {"uri": "file:///a"}})
of_base = part_of(BaseShapes, {"modules": {"q": (1, 2)}, "fingerprint": FINGERPRINT})
of_answer = part_of(Expect, {"prompt": [1], "tokens": [2]}, "answers")
of_evidence = part_of(ReportedEvidence, {"engine": "e", "architecture": "A", "applied": [], "taken": []})
of_pool = part_of(PoolSpec, {"name": "p", "base_models": ["b"]})
of_strategy = part_of(Strategy, {"canary": {"replicas": 1}})
of_presence = part_of(Presence, {"pool": "p", "replica": "r", "incarnation": "i", "owner": "o", "started_at": "t"})
NAMES_512 = (["a", "a" * 512], ["", "a" * 513])
BOUNDS = {
    "uri": of_spec(
        lambda uri: {"source": {"uri": uri}},
        ["s3://a", "s3://" + "a" * 2043],
        ["", "s3", "s3://", "s3://" + "a" * 2044, "s3://a b", "S3://a"],
    ),
    "key of a label": of_spec(lambda key: {"labels": {key: "x"}}, ["a", "a" * 63], ["", "a" * 64, "-a", "a b"]),
    "value of a label": of_spec(lambda value: {"labels": {"a": value}}, ["", "a" * 256], ["a" * 257]),
    "labels": of_spec(lambda count: {"labels": {f"k{n}": "" for n in range(count)}}, [0, 64], [65]),
    "base model": of_spec(lambda name: {"base_model": name}, *NAMES_512),
    "module to drop": of_spec(lambda name: {"prepare": {"drop": [name]}}, *NAMES_512),
    "replicas": of_spec(lambda count: {"placement": {"replicas": count}}, ["all", 1, 10_000], [0, 10_001, "some"]),
    "priority": of_spec(lambda number: {"priority": number}, [-1000, 1000], [-1001, 1001]),
    "canaries": of_strategy(
        lambda count: {"canary": {"replicas": count}},
        [1, 10_000, "1%", "99%", "100%"],
        [0, 10_001, "0%", "101%", "1", "%"],
    ),
    "failures": of_strategy(lambda count: {"max_failures": count}, [0, 10_000], [-1, 10_001]),
    "ttl": of_spec(lambda seconds: {"ttl_seconds": seconds}, [10, 315_360_000], [-1, 0, 9, 315_360_001]),
    "keep": of_spec(lambda count: {"keep": count}, [2, 32, None], [-1, 0, 1, 33]),
    "soak": of_strategy(lambda seconds: {"soak_seconds": seconds}, [0, 604_800], [-1, 604_801]),
    "generation": Bounded(
        CanaryRollout,
        lambda number: {"stable_generation": number, "stable_spec": SPEC},
        [1, 2**53 - 1],
        [0, 2**53],
    ),
    "answers": Bounded(Expect, lambda count: {"answers": [{"prompt": [1], "tokens": [2]}] * count}, [1, 4], [0, 5]),
    "prompt": of_answer(lambda count: {"prompt": [1] * count}, [1, 64], [0, 65]),
    "tokens": of_answer(lambda count: {"tokens": [1] * count, "logprobs": [-0.5] * count}, [1, 16], [0, 17]),
    "token": of_answer(lambda number: {"prompt": [number], "tokens": [number]}, [0, 2**31 - 1], [-1, 2**31]),
    "logprob": of_answer(
        lambda number: {"logprobs": [number]}, [-1000.0, 0.0], [-1000.5, 0.5, math.nan, math.inf, -math.inf]
    ),
    "logprobs of two tokens": of_answer(
        lambda count: {"tokens": [1, 2], "logprobs": [-0.5] * count}, [0, 2], [1, 3, 16]
    ),
    "tolerance": Bounded(
        Expect,
        lambda number: {"answers": [{"prompt": [1], "tokens": [2]}], "tolerance": number},
        [0.0001, 0.2, 10.0],
        [0.0, 0.00009, 10.001, math.nan, math.inf],
    ),
    "host of an engine": Bounded(
        PoolLimits,
        lambda host: {"engine_hosts": [host]},
        ["*", "a", long_host(300)],
        ["", long_host(301), "a" * 64],
    ),
    "pattern of modules": of_base(lambda name: {"modules": {name: (1, 1)}}, *NAMES_512),
    "width": of_base(lambda width: {"modules": {"q": (width, width)}}, [1, 2**31], [0, 2**31 + 1]),
    "size of a head": of_base(lambda width: {"head_size": width}, [None, 1, 2**31], [0, 2**31 + 1]),
    "name of the base": of_base(lambda name: {"names": [name]}, *NAMES_512),
    "modules": of_base(lambda pattern: {"modules": {pattern: (1, 1)}}, ["a.{0-199999}"], ["a.{0-200000}", "a.{5-4}"]),
    "base models": of_pool(lambda count: {"base_models": ["b"] * count}, [1, 32], [0, 33]),
    "revision": of_pool(lambda number: {"removals_confirmed_revision": number}, [0, 2**63 - 1], [-1, 2**63]),
    "capacity": of_presence(lambda count: {"capacity": count}, [None, 0, 1_000_000], [-1, 1_000_001, "1", 1.5]),
    "name in evidence": of_evidence(lambda name: {"engine": name}, ["", "a" * 512], ["a" * 513]),
    "names in evidence": of_evidence(lambda count: {"applied": ["a"] * count}, [0, 4096], [4097]),
    "renames in evidence": of_evidence(lambda count: {"parts": [("a", "b")] * count}, [0, 64], [65]),
}


def test_each_field_takes_what_it_says_and_no_more():
    """R16 bounded: what people are told to write is taken to its ends, and nothing beyond them."""
    found = {
        field: ([bounded.is_taken(one) for one in bounded.taken], [bounded.is_taken(one) for one in bounded.refused])
        for field, bounded in BOUNDS.items()
    }
    assert found == {field: ([True] * len(one.taken), [False] * len(one.refused)) for field, one in BOUNDS.items()}


@pytest.mark.parametrize(
    ("labels", "is_apart"),
    [
        ([], True),
        ([{"zone": "a"}], True),
        ([{"zone": "a"}, {"zone": "b"}], True),
        ([{"zone": "a", "gpu": "x"}, {"zone": "a", "gpu": "y"}], True),
        ([{"zone": "a", "gpu": "x"}, {"zone": "b"}], True),
        ([{"zone": "a"}, {"zone": "b"}, {"zone": "c"}], True),
        ([{"zone": "a"}, {"zone": "a"}], False),
        ([{"zone": "a"}, {"gpu": "x"}], False),
        ([{"zone": "a", "gpu": "x"}, {"zone": "a"}], False),
        ([{"zone": "a"}, {"zone": "b"}, {"gpu": "x"}], False),
    ],
    ids=str,
)
def test_no_replica_is_expected_twice(labels, is_apart):
    """Of each two groups a label has other values, so that a replica counts in one of them."""
    groups = [{"labels": one, "replicas": 1} for one in labels]
    if is_apart:
        assert len(PoolLimits.model_validate({"expected_groups": groups}).expected_groups) == len(labels)
        return
    with pytest.raises(ValidationError, match="a replica can have both"):
        PoolLimits.model_validate({"expected_groups": groups})


def test_a_role_of_a_pool_stands_there_once():
    assert PoolLimits(roles=["prefill", "decode"]).roles == ["prefill", "decode"]
    with pytest.raises(ValidationError, match="a role stands there twice"):
        PoolLimits(roles=["prefill", "prefill"])
