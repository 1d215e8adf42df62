"""From plain values to changes: what is refused, where, and with what advice."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from registry.model.errors import InvalidArgument, Reason
from registry.model.records import AdapterRecord, AdapterSpec, PoolLimits, RetiredRecord, SourceSpec
from registry.transactions import validate
from registry.transactions.changes import (
    AbortRollout,
    ConfirmRemovals,
    DrainReplica,
    PromoteRollout,
    Remove,
    RepairTenant,
    SetTenant,
    Upsert,
)

OTHER_BASE = {"modules": {"model.layers.0.self_attn.q_proj": (16, 16)}, "fingerprint": "sha256:" + "0" * 64}

SPEC = {"source": {"uri": "file:///a"}}


def upsert(name: str = "a", etag: str = "", **spec: object) -> Upsert:
    return validate.make_upsert(name, SPEC | spec, etag, field="changes[0]")


def test_valid():
    assert upsert(etag="12") == Upsert("a", AdapterSpec(source=SourceSpec(uri="file:///a")), 12)
    assert upsert(etag="0").etag == 0
    assert validate.make_remove("a", "", field="changes[0]") == Remove("a")
    assert validate.make_set_tenant("Acme", 0, "") == SetTenant("acme", None)
    assert validate.make_set_tenant("acme", 3, "0") == SetTenant("acme", 3, 0)
    assert validate.make_create_pool("p", ["b"], {"max_rank": 8}).limits == PoolLimits(max_rank=8)
    assert len(validate.make_create_pool("p", [f"b{number}" for number in range(32)], {}).base_models) == 32
    assert validate.make_update_pool("p", ["b"], {}, "3").etag == 3
    assert validate.make_delete_pool("p", "3").etag == 3
    assert validate.make_rollback("p", "a", 2, "").to_generation == 2
    assert validate.make_rollback("p", "a", 0, "").to_generation == 0
    assert validate.make_rollout_change(AbortRollout, "p", "a", 0, "7") == AbortRollout("p", "a", 0, 7)
    assert validate.make_apply("p", [upsert("a"), upsert("b")]).pool == "p"


@pytest.mark.parametrize("text", ["Größe, 模型", "नमस्\u200dते", "a \\\\ b", 'say "hi"', "C:\\\\new"])
def test_letters_of_all_scripts_and_signs_that_json_escapes_are_taken(text):
    assert upsert(description=text, labels={"team": text}).spec.description == text


WRONG = {
    "name": (lambda: upsert("a b"), "changes[0].upsert.name", Reason.INVALID_NAME),
    "reserved": (lambda: upsert("Text"), "changes[0].upsert.name", Reason.RESERVED_NAME),
    "etag": (lambda: upsert(etag="01"), "changes[0].etag", Reason.INVALID_FIELD),
    "no source": (
        lambda: validate.make_upsert("a", {}, "", field="changes[0]"),
        "changes[0].upsert.spec.source",
        Reason.INVALID_FIELD,
    ),
    "uri": (lambda: upsert(source={"uri": "x"}), "changes[0].upsert.spec.source.uri", Reason.INVALID_FIELD),
    "other scheme": (
        lambda: upsert(source={"uri": "ftp://b/x"}),
        "changes[0].upsert.spec.source.uri",
        Reason.UNSUPPORTED,
    ),
    "host": (lambda: upsert(source={"uri": "file://h/x"}), "changes[0].upsert.spec.source.uri", Reason.INVALID_FIELD),
    "digest": (
        lambda: upsert(source={"uri": "file:///a", "digest": "x"}),
        "changes[0].upsert.spec.source.digest",
        Reason.INVALID_FIELD,
    ),
    "load": (lambda: upsert(load="now"), "changes[0].upsert.spec.load", Reason.INVALID_FIELD),
    "placement": (
        lambda: upsert(placement={"replicas": 0}),
        "changes[0].upsert.spec.placement.replicas",
        Reason.INVALID_FIELD,
    ),
    "two of three of what is lazy": (
        lambda: upsert(load="lazy", placement={"replicas": 2}),
        "changes[0].upsert.spec.placement",
        Reason.UNSUPPORTED,
    ),
    "lazy canaries": (
        lambda: upsert(load="lazy", strategy={"canary": {"replicas": 1}}),
        "changes[0].upsert.spec.strategy",
        Reason.UNSUPPORTED,
    ),
    "label": (lambda: upsert(labels={"a": "x" * 300}), "changes[0].upsert.spec.labels", Reason.INVALID_FIELD),
    "two lines": (
        lambda: upsert(description="a\nb"),
        "changes[0].upsert.spec.description",
        Reason.INVALID_FIELD,
    ),
    "a mark of direction": (
        lambda: upsert(description="safe\u202egnp.exe"),
        "changes[0].upsert.spec.description",
        Reason.INVALID_FIELD,
    ),
    "half of a character, where a later release has a field": (
        lambda: upsert(later="\ud800"),
        "changes[0].upsert.spec.later",
        Reason.INVALID_FIELD,
    ),
    "a key of a label": (
        lambda: upsert(later={"bi\x7f": 1}),
        "changes[0].upsert.spec.later",
        Reason.INVALID_FIELD,
    ),
    "a line of a label": (
        lambda: upsert(labels={"team": "bi\nready: yes"}),
        "changes[0].upsert.spec.labels.team",
        Reason.INVALID_FIELD,
    ),
    "an escape of a base": (
        lambda: upsert(base_model="qwen\x1b[2J"),
        "changes[0].upsert.spec.base_model",
        Reason.INVALID_FIELD,
    ),
    "a name of a pool's base": (
        lambda: validate.make_create_pool("p", ["qwen\x9b31m"], {}),
        "pool.base_models[0]",
        Reason.INVALID_FIELD,
    ),
    "a page": (
        lambda: upsert(description="a" * 1025),
        "changes[0].upsert.spec.description",
        Reason.INVALID_FIELD,
    ),
    "no prompt": (
        lambda: upsert(expect={"answers": [{"prompt": [], "tokens": [1]}]}),
        "changes[0].upsert.spec.expect.answers.0.prompt",
        Reason.INVALID_FIELD,
    ),
    "a number that is none": (
        lambda: upsert(expect={"answers": [{"prompt": [1], "tokens": [1], "logprobs": [float("nan")]}]}),
        "changes[0].upsert.spec.expect.answers.0.logprobs",
        Reason.INVALID_FIELD,
    ),
    "fewer logprobs than tokens": (
        lambda: upsert(expect={"answers": [{"prompt": [1], "tokens": [1, 2], "logprobs": [-1.0]}]}),
        "changes[0].upsert.spec.expect.answers.0",
        Reason.INVALID_FIELD,
    ),
    "a prompt too many": (
        lambda: upsert(expect={"answers": [{"prompt": [1], "tokens": [1]}] * 5}),
        "changes[0].upsert.spec.expect.answers",
        Reason.INVALID_FIELD,
    ),
    "a tolerance without end": (
        lambda: upsert(expect={"answers": [{"prompt": [1], "tokens": [1]}], "tolerance": float("inf")}),
        "changes[0].upsert.spec.expect.tolerance",
        Reason.INVALID_FIELD,
    ),
    "base model": (lambda: upsert(base_model=""), "changes[0].upsert.spec.base_model", Reason.INVALID_FIELD),
    "delete": (lambda: validate.make_remove("", "", field="changes[3]"), "changes[3].delete", Reason.INVALID_NAME),
    "delete nothing": (
        lambda: validate.make_remove("a", "0", field="changes[3]"),
        "changes[3].etag",
        Reason.INVALID_FIELD,
    ),
    "empty set": (lambda: validate.make_apply("p", []), "changes", Reason.INVALID_FIELD),
    "pool of set": (lambda: validate.make_apply("", [upsert()]), "pool", Reason.INVALID_NAME),
    "replica without a retry": (
        lambda: validate.make_apply("p", [upsert()], retry_replica="r1"),
        "retry_replica",
        Reason.INVALID_FIELD,
    ),
    "replica that is no name": (
        lambda: validate.make_apply("p", [upsert()], retry=True, retry_replica="a/b"),
        "retry_replica",
        Reason.INVALID_NAME,
    ),
    "twice": (lambda: validate.make_apply("p", [upsert("a"), Remove("A")]), "changes[1]", Reason.DUPLICATE_NAME),
    "generation": (lambda: validate.make_rollback("p", "a", -1, ""), "to_generation", Reason.INVALID_FIELD),
    "generation of a rollout": (
        lambda: validate.make_rollout_change(PromoteRollout, "p", "a", -1, ""),
        "generation",
        Reason.INVALID_FIELD,
    ),
    "etag of a rollout": (
        lambda: validate.make_rollout_change(PromoteRollout, "p", "a", 0, "0"),
        "etag",
        Reason.INVALID_FIELD,
    ),
    "rollback": (lambda: validate.make_rollback("p", "", 0, ""), "name", Reason.INVALID_NAME),
    "pool": (lambda: validate.make_create_pool("a/b", ["b"], {}), "pool.name", Reason.INVALID_NAME),
    "a base of another fingerprint": (
        lambda: validate.make_create_pool("p", ["b"], {}, OTHER_BASE),
        "pool.base.fingerprint",
        Reason.INVALID_FIELD,
    ),
    "no base": (lambda: validate.make_create_pool("p", [], {}), "pool.base_models", Reason.INVALID_FIELD),
    "empty base": (lambda: validate.make_create_pool("p", [""], {}), "pool.base_models", Reason.INVALID_FIELD),
    "a base too many": (
        lambda: validate.make_create_pool("p", [f"b{number}" for number in range(33)], {}),
        "pool.base_models",
        Reason.INVALID_FIELD,
    ),
    "base twice": (lambda: validate.make_create_pool("p", ["b", "B"], {}), "pool.base_models", Reason.INVALID_FIELD),
    "rank": (
        lambda: validate.make_create_pool("p", ["b"], {"max_rank": 9999}),
        "pool.limits.max_rank",
        Reason.INVALID_FIELD,
    ),
    "pool's etag": (lambda: validate.make_update_pool("p", ["b"], {}, "x"), "pool.etag", Reason.INVALID_FIELD),
    "no pool": (lambda: validate.make_delete_pool("", ""), "name", Reason.INVALID_NAME),
    "pool of replica": (lambda: validate.make_drain_replica("", "r1", drain=True), "pool", Reason.INVALID_NAME),
    "replica": (lambda: validate.make_drain_replica("p", "a/b", drain=True), "name", Reason.INVALID_NAME),
    "tenant": (lambda: validate.make_set_tenant("", 1, ""), "tenant.name", Reason.INVALID_NAME),
}


def test_a_number_of_replicas_and_their_labels_may_be_asked_for():
    placement = {"replicas": 2, "selector": {"zone": "a"}}
    assert upsert(placement=placement).spec.placement.model_dump() == placement


@pytest.mark.parametrize("name", WRONG)
def test_wrong(name):
    """Each refusal names the field as the caller wrote it, and says what to write."""
    make_it, field, reason = WRONG[name]
    with pytest.raises(InvalidArgument) as told:
        make_it()
    assert (told.value.field, told.value.reason) == (field, reason)
    assert told.value.message


def test_the_value_itself_is_not_told():
    """X1 secret-free: what somebody put into a wrong field is not repeated."""
    with pytest.raises(InvalidArgument) as told:
        upsert(source={"uri": "s3//key:hunter2@bucket"})
    assert "hunter2" not in str(told.value)


def test_a_retry_may_be_of_one_replica():
    asked = validate.make_apply("p", [upsert()], retry=True, retry_replica="r1")
    assert (asked.retry, asked.retry_replica) == (True, "r1")


@pytest.mark.parametrize("drain", [True, False])
def test_an_order_to_a_replica_names_it(drain):
    """R20 drain."""
    assert validate.make_drain_replica("p", "r1", drain=drain) == DrainReplica("p", "r1", drain)


@pytest.mark.parametrize(("pool", "name", "field"), [("", "r1", "pool"), ("p", "a/b", "name")])
def test_an_order_to_nobody_is_refused(pool, name, field):
    with pytest.raises(InvalidArgument) as refused:
        validate.make_drain_replica(pool, name, drain=True)
    assert refused.value.field == field


@pytest.mark.parametrize(
    "uri", ["file:///a", "file:///a%3F", "s3://b/x", f"hf://a/b@{7:040x}", "https://h/x.tar", "gs://b/x"]
)
def test_sources_of_each_form_are_taken(uri):
    assert upsert(source={"uri": uri}).spec.source.uri == uri


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("file://host/a", Reason.INVALID_FIELD),
        ("file:///a?b", Reason.INVALID_FIELD),
        ("file:///a#b", Reason.INVALID_FIELD),
        ("s3:///x", Reason.INVALID_FIELD),
        ("hf://a", Reason.INVALID_FIELD),
        ("ftp://b/x", Reason.UNSUPPORTED),
    ],
)
def test_sources_of_no_form_are_refused(uri, reason):
    with pytest.raises(InvalidArgument) as told:
        upsert(source={"uri": uri})
    assert (told.value.field, told.value.reason) == ("changes[0].upsert.spec.source.uri", reason)


def test_only_what_is_not_a_file_takes_a_credential():
    assert upsert(source={"uri": "s3://b/x"}, credentials="c").spec.credentials == "c"
    with pytest.raises(InvalidArgument) as told:
        upsert(credentials="c")
    assert (told.value.field, told.value.reason) == ("changes[0].upsert.spec.credentials", Reason.UNSUPPORTED)


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


def test_a_history_that_may_be_restored():
    """Records of that adapter, whatever the case of its name, each generation once."""
    made = validate.make_restore_history("p", "ACME/a", [retired(1), retired(2)], RECORD.to_bytes())
    assert ([one.generation for one in made.generations], made.last, made.pool, made.name) == (
        [1, 2],
        RECORD,
        "p",
        "ACME/a",
    )
    assert validate.make_restore_history("p", "acme/a", [], b"").last is None


ADAPTER = upsert()
REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "apply": (lambda: validate.make_apply("a/b", []), "pool"),
    "a set whose second is twice": (
        lambda: validate.make_apply("p", [ADAPTER, Remove("b"), Remove("c"), Remove("B")]),
        "changes[3]",
    ),
    "a replica that is no name, without a retry": (
        lambda: validate.make_apply("p", [ADAPTER], retry_replica="a/b"),
        "retry_replica",
    ),
    "rollback": (lambda: validate.make_rollback("a/b", "", -1, "x"), "pool"),
    "rollback of no adapter": (lambda: validate.make_rollback("p", "", -1, "x"), "name"),
    "rollback to no generation": (lambda: validate.make_rollback("p", "a", -1, "x"), "to_generation"),
    "rollback with no etag": (lambda: validate.make_rollback("p", "a", 0, "x"), "etag"),
    "promotion": (lambda: validate.make_rollout_change(PromoteRollout, "a/b", "", -1, "x"), "pool"),
    "promotion of no adapter": (lambda: validate.make_rollout_change(PromoteRollout, "p", "", -1, "x"), "name"),
    "promotion of no generation": (
        lambda: validate.make_rollout_change(PromoteRollout, "p", "a", -1, "x"),
        "generation",
    ),
    "confirmation": (lambda: validate.make_confirm_removals("a/b", 0, "x"), "name"),
    "confirmation of nothing": (lambda: validate.make_confirm_removals("p", 0, "x"), "revision"),
    "confirmation with no etag": (lambda: validate.make_confirm_removals("p", 1, "0"), "etag"),
    "deletion of a pool": (lambda: validate.make_delete_pool("a/b", "x"), "name"),
    "deletion of no pool": (lambda: validate.make_delete_pool("p", "0"), "etag"),
    "update of no pool": (lambda: validate.make_update_pool("p", ["b"], {}, "0"), "pool.etag"),
    "tenant": (lambda: validate.make_set_tenant("a/b", 1, "x"), "tenant.name"),
    "tenant with no etag": (lambda: validate.make_set_tenant("a", 1, "x"), "tenant.etag"),
    "repair": (lambda: validate.make_repair_tenant("a/b"), "name"),
    "replica": (lambda: validate.make_drain_replica("a/b", "a/b", drain=True), "pool"),
    "history of no pool": (lambda: validate.make_restore_history("a/b", "", [b"?"], b"?"), "pool"),
    "history of no adapter": (lambda: validate.make_restore_history("p", "", [b"?"], b"?"), "name"),
    "history that cannot be read": (
        lambda: validate.make_restore_history("p", "acme/a", [retired(), b"?"], b"?"),
        "generations[1]",
    ),
    "history of another adapter": (lambda: validate.make_restore_history("p", "b", [retired()], b""), "generations[0]"),
    "history of another pool": (
        lambda: validate.make_restore_history("q", "acme/a", [retired()], b""),
        "generations[0]",
    ),
    "history twice": (
        lambda: validate.make_restore_history("p", "acme/a", [retired(), retired(2), retired()], b"?"),
        "generations",
    ),
    "no last record": (lambda: validate.make_restore_history("p", "acme/a", [retired()], b"?"), "last"),
    "another last record": (lambda: validate.make_restore_history("q", "acme/a", [], RECORD.to_bytes()), "last"),
    "a name of an upsert": (lambda: validate.make_upsert("a b", {}, "x", field="changes[1]"), "changes[1].upsert.name"),
    "a spec of an upsert": (
        lambda: validate.make_upsert("a", {"source": {"uri": "ftp://x/y"}}, "x", field="changes[1]"),
        "changes[1].upsert.spec.source.uri",
    ),
    "more canaries than replicas": (
        lambda: upsert(placement={"replicas": 2}, strategy={"canary": {"replicas": 3}}),
        "changes[0].upsert.spec.strategy.canary.replicas",
    ),
    "no mask": (lambda: validate.make_update_pool("p", ["b"], {}, "", mask=[]), "update_mask"),
    "a mask of nothing": (lambda: validate.make_update_pool("p", ["b"], {}, "", mask=["base", "x"]), "update_mask"),
}


@pytest.mark.parametrize(("made", "field"), REFUSED.values(), ids=REFUSED)
def test_the_first_wrong_field_is_named(made, field):
    """In the order in which they stand in the request."""
    with pytest.raises(InvalidArgument) as told:
        made()
    assert told.value.field == field


def test_what_is_just_within_its_bounds():
    assert validate.make_confirm_removals("p", 1, "") == ConfirmRemovals("p", 1)
    assert validate.make_repair_tenant("Acme") == RepairTenant("acme")
    assert upsert(placement={"replicas": 2}, strategy={"canary": {"replicas": 2}}).spec.placement.replicas == 2
    assert validate.make_rollout_change(PromoteRollout, "p", "a", 1, "").generation == 1
    assert validate.make_rollback("p", "a", 1, "0").etag == 0


def test_a_mask_names_what_is_replaced():
    """The names of limits are their own; base models may then be left out."""
    limits = frozenset(PoolLimits.model_fields)
    cases = {
        ("limits",): limits,
        ("limits.max_rank",): {"max_rank"},
        ("base", "limits.max_rank"): {"base", "max_rank"},
        ("limits", "limits.max_rank", "engine"): limits | {"engine"},
        ("base_models", "engine_names"): {"base_models", "engine_names"},
    }
    for mask, fields in cases.items():
        made = validate.make_update_pool("p", ["b"], {}, "", mask=mask)
        assert made.fields == fields, mask
        assert made.base_models == (("b",) if "base_models" in mask else ()), mask
    assert validate.make_update_pool("p", ["b"], {}, "").fields is None
    assert validate.make_update_pool("p", ["b"], {}, "").base_models == ("b",)
    assert validate.make_update_pool("p", [], {}, "", mask=["engine"]).base_models == ()


@pytest.mark.parametrize("engines", [{}, {"engine": "sglang"}, {"engine_names": "versioned"}])
def test_only_what_is_given_of_engines_is_replaced(engines):
    made = validate.make_update_pool("p", ["b"], {}, "", engines=engines)
    assert (made.engine, made.engine_names) == (engines.get("engine"), engines.get("engine_names"))
    pool = validate.make_create_pool("p", ["b"], {}, engines=engines)
    assert (pool.engine, pool.engine_names) == (engines.get("engine", "vllm"), engines.get("engine_names", "plain"))


def test_the_fingerprint_of_a_base_is_that_of_its_modules():
    """By whatever finds it."""
    good = OTHER_BASE | {"fingerprint": "sha256:" + "7" * 64}
    made = validate.make_create_pool("p", ["b"], {}, good, fingerprint_of=lambda _: "sha256:" + "7" * 64)
    assert made.base is not None
    assert made.base.fingerprint == "sha256:" + "7" * 64


def test_a_refusal_says_what_to_write():
    """The description of the field, and without one what is wrong; never what was written."""
    with pytest.raises(InvalidArgument) as told:
        upsert(load="now")
    assert "now" not in told.value.message
    assert told.value.message == AdapterSpec.model_fields["load"].description


def test_of_a_part_that_nothing_describes_the_whole_says_what_to_write():
    """And that is the field which is named."""
    with pytest.raises(InvalidArgument) as told:
        upsert(strategy={"canary": 3})
    assert (told.value.field, told.value.message) == (
        "changes[0].upsert.spec.strategy",
        AdapterSpec.model_fields["strategy"].description,
    )
