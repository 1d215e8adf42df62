"""Importers: the manifests that records of other systems stand for, and that whatever does not map is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from registry.cli.change.manifest import manifest_of
from registry.formats.importer import import_documents, import_text
from registry.formats.kinds import KINDS
from registry.formats.shapes import FieldMeaning, ImportChoices, Imported
from registry.model.errors import InvalidArgument, Reason

SAMPLES = Path(__file__).parents[2] / "samples" / "imports"
SAMPLED = ["lora-syncer", "aibrix", "production-stack", "dynamo", "kubeai", "kserve", "ipp"]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def sample(file: str) -> str:
    return (SAMPLES / f"{file}.yaml").read_text()


def imported(kind: str, text: str, **choices: Any) -> Imported:
    return import_text(KINDS[kind], text, "f.yaml", ImportChoices(**choices))


def summary(found: Imported) -> dict[str, tuple[str, str, dict[str, object]]]:
    """Of each adapter pool, source, and the rest of its spec."""
    shown = {}
    for content, _ in found.manifests:
        metadata, spec = content["metadata"], dict(content["spec"])  # type: ignore[call-overload]
        shown[metadata["name"]] = (metadata["pool"], spec.pop("source")["uri"], spec)  # type: ignore[index]
    return shown


def paths(found: Imported) -> set[str]:
    """What the notes are about, without the place."""
    return {note.rpartition("): ")[2].partition(": does not")[0].partition(" is left")[0] for note in found.notes}


def wrong(kind: str, text: str, **choices: Any) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as caught:
        imported(kind, text, **choices)
    return caught.value


def test_lora_syncer_its_lists_and_its_defaults():
    found = imported("lora-syncer", sample("lora-syncer"))
    assert summary(found) == {
        "sql": ("tiny", "file:///adapters/sql", {"baseModel": "tiny"}),
        "legal": ("other", "s3://weights/legal", {"baseModel": "acme/other"}),
    }
    assert found.gone == (("tiny", "old"),)
    assert {one.partition("configmap.yaml: ")[2] for one in paths(found)} == {
        "vLLMLoRAConfig.host",
        "vLLMLoRAConfig.port",
        "'half'",
    }


def test_lora_syncer_without_its_config_map():
    inner = yaml.safe_load(sample("lora-syncer"))["data"]["configmap.yaml"]
    assert summary(imported("lora-syncer", inner)).keys() == {"sql", "legal"}


def test_aibrix_all_pods_unless_a_number_is_said_and_no_secret():
    found = imported("aibrix", sample("aibrix"), rewrites={"tos://weights/": "s3://weights/"})
    spec = {"baseModel": "tiny", "credentials": "bucket", "placement": {"replicas": 1}}
    assert summary(found) == {
        "sql": ("tiny-pods", "gs://weights/sql/", spec),
        "legal": ("tiny-pods", "s3://weights/legal", {}),
    }
    assert paths(found) == {
        "spec.additionalConfig.api-key",
        "spec.additionalConfig.region",
        "spec.podSelector.matchLabels.zone",
    }
    assert "canary" not in repr(found)


def test_production_stack_as_objects():
    found = imported("production-stack", sample("production-stack"))
    hub = {"baseModel": "tiny", "credentials": "hub"}
    assert summary(found) == {
        "sql": ("tiny", "file:///data/adapters/sql", {"baseModel": "tiny", "placement": {"replicas": 2}}),
        "legal": ("tiny", f"hf://acme/legal@{COMMIT}", hub),
    }
    assert found.manifests[0][0]["metadata"]["labels"] == {"team": "bi"}  # type: ignore[index]
    told = {note.partition("]: ")[2].partition(": does not")[0].partition(" is left")[0] for note in found.notes}
    assert told == {
        *("spec.adapterSource.pattern", "spec.vllmApiKey", "spec.adapterSource.credentialsSecretRef.key"),
        *("spec.deploymentConfig", "spec.loraAdapterDeploymentConfig.algorithm", "'web'"),
    }
    assert "canary" not in repr(found)


def test_production_stack_as_values_of_its_chart():
    found = imported("production-stack", sample("production-stack-values"))
    assert summary(found) == {"sql": ("tiny", "file:///data/adapters/sql", {"baseModel": "tiny"})}
    assert any("'legal' is left out: it is switched off there" in note for note in found.notes)
    assert {"servingEngineSpec", "loraAdapters[0].adapterSource.credentials"} <= paths(found)
    assert "canary" not in repr(found)


def test_dynamo_and_no_base_model_among_its_models():
    found = imported("dynamo", sample("dynamo"))
    assert summary(found) == {"sql": ("tiny", "s3://weights/sql", {"baseModel": "acme/tiny"})}
    assert any("'acme/tiny' is left out: spec.modelType: only lora and adapter" in note for note in found.notes)


def test_kubeai_and_kserve_lists_of_adapters():
    kubeai = imported("kubeai", sample("kubeai"))
    assert summary(kubeai) == {"sql": ("tiny", "s3://weights/sql", {"baseModel": "tiny"})}
    assert paths(kubeai) >= {"spec.url", "spec.engine", "'legal'"}
    rewrites = {"pvc://models/": "file:///mnt/models/", "oci+native://example.com/": "file:///mnt/images/"}
    kserve = imported("kserve", sample("kserve"), rewrites=rewrites)
    assert [source for _, source, _ in summary(kserve).values()] == [
        "file:///mnt/models/sql",
        "file:///mnt/images/legal:1",
    ]
    assert paths(kserve) == {"spec.replicas", "spec.model.uri"}


def test_ipp_names_whose_sources_are_said():
    without = imported("ipp", sample("ipp"))
    assert (without.manifests, len(without.notes)) == ((), 2)
    assert "says no source; --source" in without.notes[0]
    found = imported("ipp", sample("ipp"), source="s3://weights/{name}", pool="chat")
    assert summary(found)["legal"] == ("chat", "s3://weights/legal", {"baseModel": "tiny"})


@pytest.mark.parametrize("kind", SAMPLED)
def test_whatever_is_printed_is_a_manifest(kind):
    rewrites = {"tos:": "s3:", "oss:": "s3:", "pvc:/": "file://", "oci+native:/": "file://"}
    found = imported(kind, sample(kind), source="file:///adapters/{name}", pool="p", rewrites=rewrites)
    assert found.manifests
    for content, place in found.manifests:
        assert manifest_of(content, place).manifest.metadata.pool == "p"


@pytest.mark.parametrize("kind", SAMPLED)
def test_a_document_of_another_kind_is_refused_with_its_place(kind):
    others = [sample(name) for name in SAMPLED if name != kind and {name, kind} != {"ipp", "lora-syncer"}]
    for text in [*others, "kind: Deployment\nspec: {}", "- a", "kind: [1]"]:
        error = wrong(kind, text)
        assert KINDS[kind].system in error.message
        assert (error.field or "").startswith("f.yaml: document 1")


@pytest.mark.parametrize(
    ("kind", "text", "field", "message"),
    [
        ("ipp", "kind: ConfigMap\n", "data", "is missing"),
        ("ipp", "kind: ConfigMap\ndata: {baseModel: tiny, adapters: 'a: b'}", "data.adapters", "must be a list"),
        ("ipp", "kind: ConfigMap\ndata: {adapters: [a]}", "data.adapters", "must be text, found a list"),
        ("ipp", "kind: ConfigMap\ndata: {baseModel: t, adapters: '- [a]'}", "data.adapters[0]", "must be a mapping"),
        ("lora-syncer", "kind: ConfigMap\ndata: {a: '', b: 'x: 1'}", "data", "has no text with the key"),
        ("lora-syncer", "vLLMLoRAConfig: {ensureExist: {models: 3}}", "ensureExist.models", "found a whole number"),
        ("lora-syncer", "vLLMLoRAConfig: {ensureExist: {models: [{source: /a}]}}", "line 1", "has no name"),
        ("lora-syncer", "vLLMLoRAConfig: {ensureNotExist: {models: [{source: /a}]}}", "line 1", "has no name"),
        ("lora-syncer", "vLLMLoRAConfig: {ensureExist: {models: [{id: 7}]}}", "models[0].id", "must be text"),
        ("lora-syncer", "vLLMLoRAConfig: {ensureExist: {models: [{id: 1.5}]}}", "models[0].id", "found a float"),
        ("lora-syncer", "vLLMLoRAConfig: {ensureExist: {models: [{id: a, source: /a}]}}", "line 1", "no pool is said"),
        (
            "lora-syncer",
            "vLLMLoRAConfig: {defaultBaseModel: b, ensureExist: {models: [{id: a, source: /x/../etc}]}}",
            "line 1): a",
            "leads out of its tree",
        ),
        ("aibrix", "kind: ModelAdapter\n", "document 1", "is of the kind 'ModelAdapter'"),
    ],
)
def test_what_is_wrong_is_named(kind, text, field, message):
    error = wrong(kind, text)
    assert (error.reason, field in (error.field or ""), message in error.message) == (
        Reason.INVALID_MANIFEST,
        True,
        True,
    ), error


def test_an_adapter_that_stands_twice_is_refused_in_one_pool_and_taken_in_two():
    models = "[{id: a, source: /a, base-model: x}, {id: A, source: /b, base-model: %s}]"
    twice = f"vLLMLoRAConfig: {{ensureExist: {{models: {models}}}}}"
    assert len(imported("lora-syncer", twice % "y").manifests) == 2
    error = wrong("lora-syncer", twice % "x")
    assert (error.reason, "described in f.yaml: document 1" in error.message) == (Reason.DUPLICATE_NAME, True)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("{id: 'a,b', source: /a}", "is not an adapter name"),
        ("{id: a, source: org/repo}", "names the commit"),
        ("{id: a, source: 'file://host/a'}", "absolute path"),
        ("{id: a, source: 'https://me:hunter2@example.com/a.tar'}", "is a secret"),
        ("{id: a, source: ''}", "says no source"),
    ],
)
def test_what_apply_would_refuse_is_left_out_and_told(model, reason):
    found = imported("lora-syncer", f"vLLMLoRAConfig: {{ensureExist: {{models: [{model}]}}}}", pool="p")
    (note,) = found.notes
    assert (found.manifests, reason in note, "hunter2" in note) == ((), True, False)


def test_labels_and_numbers_that_no_manifest_takes_are_told():
    wrong = {"long": "x" * 257, "k" * 64: "v"}
    labels = wrong | {f"k{number}": "v" for number in range(65)} | {"k0": "x" * 256}
    head = {"apiVersion": "model.aibrix.ai/v1alpha1", "kind": "ModelAdapter"}
    content = {**head, "metadata": {"name": "a", "labels": labels}, "spec": {"artifactURL": "s3://b/a"}}
    found = import_documents(KINDS["aibrix"], [(content, "x")], ImportChoices(pool="p"))
    assert len(found.notes) == 3
    taken = found.manifests[0][0]["metadata"]["labels"]  # type: ignore[index]
    assert (len(taken), len(taken["k0"]), wrong.keys() & taken.keys()) == (64, 256, set())
    many = {**content, "metadata": {"name": "a"}, "spec": {"artifactURL": "s3://b/a", "replicas": 0}}
    (note,) = import_documents(KINDS["aibrix"], [(many, "x")], ImportChoices(pool="p")).notes
    assert "not from 1 to 10000" in note


def test_a_pool_is_that_of_the_base_model_unless_one_is_said():
    text = "vLLMLoRAConfig: {ensureExist: {models: [{id: a, source: /a, base-model: Meta/Llama 3.1-8B}]}}"
    assert summary(imported("lora-syncer", text))["a"][0] == "llama-3.1-8b"
    assert summary(imported("lora-syncer", text, pools={"Meta/Llama 3.1-8B": "x"}))["a"][0] == "x"
    assert summary(imported("lora-syncer", text, pool="y", pools={"Meta/Llama 3.1-8B": "x"}))["a"][0] == "y"


def test_each_row_of_the_table_can_be_reached():
    """A row that another one hides would be a promise of the page that nothing keeps."""
    for kind in KINDS.values():
        for shape in kind.shapes:
            named = [row.path for row in shape.rows]
            assert len(named) == len(set(named)), kind.name
            assert FieldMeaning.NAME in {row.meaning for row in shape.rows}


leaves = st.one_of(
    st.none(), st.booleans(), st.integers(0, 9), st.text(max_size=3), st.lists(st.integers(), max_size=2)
)


@given(data=st.data(), kind=st.sampled_from(SAMPLED))
def test_a_record_with_a_value_exchanged_is_imported_or_refused_with_its_place(data, kind):
    """X2: whatever stands in a record, one clear error or a manifest comes of it."""
    documents = list(yaml.safe_load_all(sample(kind)))
    places: list[tuple[Any, Any]] = []

    def note(value: Any) -> None:
        for key in value if isinstance(value, dict) else range(len(value)):
            places.append((value, key))
            if isinstance(value[key], dict | list):
                note(value[key])

    note(documents)
    holder, key = data.draw(st.sampled_from(places))
    holder[key] = data.draw(leaves)
    pairs = [(one, "x") for one in documents]
    try:
        told = [
            place for _, place in import_documents(KINDS[kind], pairs, ImportChoices(source="s3://b/{name}")).manifests
        ]
    except InvalidArgument as error:
        told = [error.field or ""]
    assert [place for place in told if not place.startswith("x")] == []


def syncer(base: str, exist: str = "", gone: str = "") -> str:
    """A configuration of one deployment, whose lists have an adapter each."""
    lists = {key: name for key, name in (("ensureExist", exist), ("ensureNotExist", gone)) if name}
    models = {key: {"models": [{"id": name, "source": f"/adapters/{name}"}]} for key, name in lists.items()}
    return yaml.safe_dump({"vLLMLoRAConfig": {"defaultBaseModel": base, **models}})


def test_what_one_deployment_wants_gone_is_taken_from_its_pool_alone():
    """An adapter that moved from one base model to another is added there, and deleted here."""
    found = imported("lora-syncer", f"{syncer('old', gone='sql')}---\n{syncer('new', exist='sql')}")
    assert summary(found) == {"sql": ("new", "file:///adapters/sql", {"baseModel": "new"})}
    assert found.gone == (("old", "sql"),)
    twice = imported("lora-syncer", "---\n".join(syncer(base, gone="sql") for base in ("one", "two")))
    assert twice.gone == (("one", "sql"), ("two", "sql"))
    both = imported("lora-syncer", f"{syncer('one', gone='SQL')}---\n{syncer('one', exist='sql')}")
    assert (both.manifests, both.gone) == ((), ())
    assert "not to be there" in both.notes[-1]


def test_nothing_is_to_be_deleted_whose_name_no_adapter_can_have():
    """Its name would stand in a command that somebody copies."""
    found = imported("lora-syncer", syncer("one", exist="sql", gone="x; rm -rf ."))
    assert (list(summary(found)), found.gone) == (["sql"], ())
    assert "'x; rm -rf .' is left out" in found.notes[-1]


@pytest.mark.parametrize("written", ["acme/sql", "hf://acme/sql", "huggingface://acme/sql"])
@pytest.mark.parametrize("named", ["hf://acme/sql", "acme/sql"])
def test_a_commit_is_put_to_a_repository_however_it_is_written(written, named):
    """As docs/coming-from.md says it, also where the other system writes no scheme, or another one."""
    models = {"models": [{"id": "sql", "source": written}]}
    text = yaml.safe_dump({"vLLMLoRAConfig": {"defaultBaseModel": "one", "ensureExist": models}})
    found = imported("lora-syncer", text, rewrites={named: f"hf://acme/sql@{COMMIT}"})
    is_named_so = named == written or named.startswith("hf:")
    assert [uri for _, uri, _ in summary(found).values()] == ([f"hf://acme/sql@{COMMIT}"] if is_named_so else [])
