"""From plain values to changes: what is refused, where, and with what advice."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from registry.model.errors import InvalidArgument, Reason
from registry.model.records import AdapterRecord, AdapterSpec, PoolLimits, RetiredRecord, SourceSpec
from registry.transactions import validate
from registry.transactions.changes import Remove, Upsert

OTHER_BASE = {"modules": {"model.layers.0.self_attn.q_proj": (16, 16)}, "fingerprint": "sha256:" + "0" * 64}

PLAIN: dict[str, object] = {"name": "p", "base_models": ["b"]}
SPEC = {"source": {"uri": "file:///a"}}


def upsert(name: str = "a", etag: str = "", **spec: object) -> Upsert:
    return validate.make_upsert(name, SPEC | spec, etag, field="changes[0]")


RECORD = AdapterRecord(
    name="acme/a",
    pool="p",
    tenant="acme",
    generation=3,
    spec=AdapterSpec(source=SourceSpec(uri="file:///a")),
    updated_at="2026-01-31T12:00:00.123Z",
    updated_by="alice",
    request_id="q",
)


def retired(generation: int = 1, **fields: object) -> bytes:
    values = RECORD.model_dump(by_alias=True) | {"generation": generation, **fields}
    return RetiredRecord.model_validate(values | {"retired_by_request": "q", "deleted": False}).to_bytes()


NO_MASKS = ([], ["name"], ["limits.unknown"], ["base", "etag"], ["base", "x"])
INVALID, NAME, UNSUPPORTED = Reason.INVALID_FIELD, Reason.INVALID_NAME, Reason.UNSUPPORTED
ANSWER = {"prompt": [1], "tokens": [1]}
# What is wrong with the spec of the first adapter, the field below it that is named, and the reason.
SPECS: list[tuple[dict[str, object], str, Reason]] = [
    ({"source": {"uri": "x"}}, "source.uri", INVALID),
    ({"source": {"uri": "ftp://b/x"}}, "source.uri", UNSUPPORTED),
    ({"source": {"uri": "file://h/x"}}, "source.uri", INVALID),
    ({"source": {"uri": "file:///a?b"}}, "source.uri", INVALID),
    ({"source": {"uri": "file:///a#b"}}, "source.uri", INVALID),
    ({"source": {"uri": "s3:///x"}}, "source.uri", INVALID),
    ({"source": {"uri": "hf://a"}}, "source.uri", INVALID),
    ({"source": {"uri": "file:///a", "digest": "x"}}, "source.digest", INVALID),
    ({"credentials": "c"}, "credentials", UNSUPPORTED),
    ({"load": "now"}, "load", INVALID),
    ({"placement": {"replicas": 0}}, "placement.replicas", INVALID),
    ({"load": "lazy", "placement": {"replicas": 2}}, "placement", UNSUPPORTED),
    ({"load": "lazy", "strategy": {"canary": {"replicas": 1}}}, "strategy", UNSUPPORTED),
    ({"placement": {"replicas": 2}, "strategy": {"canary": {"replicas": 3}}}, "strategy.canary.replicas", INVALID),
    ({"strategy": {}}, "strategy", INVALID),
    ({"strategy": {"canary": {"replicas": 0}}}, "strategy.canary.replicas", INVALID),
    ({"strategy": {"canary": {"replicas": "150%"}}}, "strategy.canary.replicas", INVALID),
    ({"strategy": {"canary": {"replicas": "few"}}}, "strategy.canary.replicas", INVALID),
    ({"strategy": {"canary": {"replicas": 1}, "promote": "soon"}}, "strategy.promote", INVALID),
    ({"strategy": {"canary": {"replicas": 1}, "max_failures": -1}}, "strategy.max_failures", INVALID),
    ({"strategy": {"canary": {"replicas": 1}, "soak_seconds": -1}}, "strategy.soak_seconds", INVALID),
    ({"labels": {"a": "x" * 300}}, "labels", INVALID),
    ({"labels": {"team": "bi\nready: yes"}}, "labels.team", INVALID),
    ({"description": "a\nb"}, "description", INVALID),
    ({"description": "safe\u202egnp.exe"}, "description", INVALID),
    ({"description": "a" * 1025}, "description", INVALID),
    ({"later": "\ud800"}, "later", INVALID),  # half of a character, where a later release has a field
    ({"later": {"bi\x7f": 1}}, "later", INVALID),
    ({"base_model": "qwen\x1b[2J"}, "base_model", INVALID),
    ({"base_model": ""}, "base_model", INVALID),
    ({"expect": {"answers": [ANSWER | {"prompt": []}]}}, "expect.answers.0.prompt", INVALID),
    ({"expect": {"answers": [ANSWER | {"logprobs": [float("nan")]}]}}, "expect.answers.0.logprobs", INVALID),
    ({"expect": {"answers": [ANSWER | {"tokens": [1, 2], "logprobs": [-1.0]}]}}, "expect.answers.0", INVALID),
    ({"expect": {"answers": [ANSWER] * 5}}, "expect.answers", INVALID),
    ({"expect": {"answers": [ANSWER], "tolerance": float("inf")}}, "expect.tolerance", INVALID),
]
make, adapter = validate, upsert()
# What is asked for, and the first field that is wrong, in the order in which they stand in the request.
WRONG: list[tuple[Callable[[], object], str, Reason]] = [
    (lambda: upsert(etag="01"), "changes[0].etag", INVALID),
    (lambda: make.make_upsert("a", {}, "", field="changes[0]"), "changes[0].upsert.spec.source", INVALID),
    (lambda: upsert(etag="x", load="now"), "changes[0].upsert.spec.load", INVALID),
    (lambda: make.make_existing_etag("0", field="etag"), "etag", INVALID),
    (lambda: make.make_generation(-1, zero="none", field="generation"), "generation", INVALID),
    (lambda: make.make_apply("p", []), "changes", INVALID),
    (lambda: make.make_apply("p", [upsert()], retry_replica="r1"), "retry_replica", INVALID),
    (lambda: make.make_apply("p", [upsert()], retry_replica="a/b"), "retry_replica", NAME),
    (lambda: make.make_apply("p", [upsert()], retry=True, retry_replica="a/b"), "retry_replica", NAME),
    (lambda: make.make_apply("p", [upsert("a"), Remove("A")]), "changes[1]", Reason.DUPLICATE_NAME),
    (lambda: make.make_apply("p", [adapter, *map(Remove, "bcB")]), "changes[3]", Reason.DUPLICATE_NAME),
    (lambda: make.make_create_pool(PLAIN | {"base": OTHER_BASE}), "pool.base.fingerprint", INVALID),
    (lambda: make.make_create_pool(PLAIN | {"base_models": []}), "pool.base_models", INVALID),
    (lambda: make.make_create_pool(PLAIN | {"base_models": [""]}), "pool.base_models", INVALID),
    (lambda: make.make_create_pool(PLAIN | {"base_models": ["qwen\x9b31m"]}), "pool.base_models[0]", INVALID),
    (lambda: make.make_create_pool(PLAIN | {"base_models": [f"b{n}" for n in range(33)]}), "pool.base_models", INVALID),
    (lambda: make.make_create_pool(PLAIN | {"base_models": ["b", "B"]}), "pool.base_models", INVALID),
    (lambda: make.make_create_pool(PLAIN | {"limits": {"max_rank": 9999}}), "pool.limits.max_rank", INVALID),
    (lambda: make.make_create_pool(PLAIN | {"engine": "two words"}), "pool.engine", INVALID),
    (lambda: make.make_create_pool(PLAIN | {"engine_names": "any"}), "pool.engine_names", INVALID),
    (lambda: make.make_update_pool(PLAIN, "x"), "pool.etag", INVALID),
    (lambda: make.make_update_pool(PLAIN, "0"), "pool.etag", INVALID),
    *((lambda m=m: make.make_update_pool(PLAIN, mask=m), "update_mask", INVALID) for m in NO_MASKS),
    (lambda: make.make_restore_history("p", "acme/a", [retired(), b"?"], b"?"), "generations[1]", INVALID),
    (lambda: make.make_restore_history("p", "b", [retired()], b""), "generations[0]", INVALID),
    (lambda: make.make_restore_history("q", "acme/a", [retired()], b""), "generations[0]", INVALID),
    (
        lambda: make.make_restore_history("p", "acme/a", [retired(), retired(2), retired()], b"?"),
        "generations",
        INVALID,
    ),
    (lambda: make.make_restore_history("p", "acme/a", [retired()], b"?"), "last", INVALID),
    (lambda: make.make_restore_history("q", "acme/a", [], RECORD.to_bytes()), "last", INVALID),
    (lambda: make.make_restore_history("p", "acme/a", [retired(3)], RECORD.to_bytes()), "last.generation", INVALID),
    (lambda: make.make_restore_history("p", "acme/a", [], b"{}"), "last.name", INVALID),
]


def refusal(made: Callable[[], object]) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as told:
        made()
    assert told.value.message
    return told.value


@pytest.mark.parametrize(("fields", "field", "reason"), SPECS, ids=str)
def test_a_field_of_a_spec_is_refused_as_the_caller_wrote_it(fields, field, reason):
    told = refusal(lambda: upsert(**fields))
    assert (told.field, told.reason) == (f"changes[0].upsert.spec.{field}", reason)


@pytest.mark.parametrize(
    ("made", "field", "reason"), WRONG, ids=[f"{field} {n}" for n, (_, field, _) in enumerate(WRONG)]
)
def test_the_first_wrong_field_is_named(made, field, reason):
    told = refusal(made)
    assert (told.field, told.reason) == (field, reason)


@pytest.mark.parametrize(
    ("text", "etag"),
    [("", None), ("0", 0), ("1", 1), ("10", 10), ("9" * 19, int("9" * 19))],
)
def test_an_etag_is_a_number_of_etcd(text, etag):
    """W4 etag: as it was read."""
    assert validate.make_etag(text, field="etag") == etag


@pytest.mark.parametrize("text", ["00", "01", "-1", "+1", " 1", "1 ", "1.0", "9" * 20, "٣", "x", "1\n"])
def test_what_is_no_etag(text):
    """W4: it is refused, and not taken for none."""
    with pytest.raises(InvalidArgument) as told:
        validate.make_etag(text, field="etag")
    assert told.value.field == "etag"


@pytest.mark.parametrize("engines", [{}, {"engine": "sglang"}, {"engine_names": "versioned"}])
def test_only_what_is_given_of_engines_is_replaced(engines):
    made = validate.make_update_pool(PLAIN | engines)
    assert (made.engine, made.engine_names) == (engines.get("engine"), engines.get("engine_names"))
    pool = validate.make_create_pool(PLAIN | engines)
    assert (pool.engine, pool.engine_names) == (engines.get("engine", "vllm"), engines.get("engine_names", "plain"))


def test_what_is_taken():
    assert upsert(etag="12") == Upsert("a", AdapterSpec(source=SourceSpec(uri="file:///a")), 12)
    assert [make.make_generation(number, zero="none", field="generation") for number in (0, 1, 2)] == [0, 1, 2]
    assert make.make_create_pool(PLAIN | {"limits": {"max_rank": 8}}).limits == PoolLimits(max_rank=8)
    assert len(make.make_create_pool(PLAIN | {"base_models": [f"b{number}" for number in range(32)]}).base_models) == 32
    assert make.make_update_pool(PLAIN, "3").etag == 3
    asked = make.make_apply("p", [upsert("a"), upsert("b")], retry=True, retry_replica="r1")
    assert (asked.pool, asked.retry, asked.retry_replica) == ("p", True, "r1")
    asked = make.make_apply("p", [upsert("a"), upsert("b")])
    assert ([one.name for one in asked.changes], asked.retry, asked.retry_replica) == (["a", "b"], False, "")
    for text in ("Größe, 模型", "नमस्\u200dते", "a \\\\ b", 'say "hi"', "C:\\\\new"):
        assert upsert(description=text, labels={"team": text}).spec.description == text
    for uri in ("file:///a", "file:///a%3F", "s3://b/x", f"hf://a/b@{7:040x}", "https://h/x.tar", "gs://b/x"):
        assert upsert(source={"uri": uri}).spec.source.uri == uri
    assert upsert(source={"uri": "s3://b/x"}, credentials="c").spec.credentials == "c"
    assert upsert(placement={"replicas": 2}, strategy={"canary": {"replicas": 2}}).spec.placement.replicas == 2
    made = make.make_restore_history("p", "ACME/a", [retired(1), retired(2)], RECORD.to_bytes())
    assert ([one.generation for one in made.generations], made.last, made.name) == ([1, 2], RECORD, "ACME/a")
    assert make.make_restore_history("p", "acme/a", [], b"").last is None


@pytest.mark.parametrize(
    ("fields", "field"),
    [({"load": "now"}, "load"), ({"strategy": {"canary": 3}}, "strategy"), ({"source": {"uri": "s3//k:now@b"}}, "")],
)
def test_a_refusal_says_what_to_write(fields, field):
    """X1 secret-free: the description of the field, or of the whole where a part has none; never what was written."""
    told = refusal(lambda: upsert(**fields))
    assert "now" not in str(told)
    if field:
        expected = f"changes[0].upsert.spec.{field}", AdapterSpec.model_fields[field].description
        assert (told.field, told.message) == expected
