"""Table of the systems that adapters can be imported from. Pure.

The page docs/coming-from.md is made from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from registry.formats.shapes import FieldMeaning, FieldRow, ImportKind, ImportShape

_M = FieldMeaning
_ENGINE = "the engine's address is a flag of the sidecar beside it: --engine"
_KEY = "a credential's keys stand in the sidecars' file of credentials"
_ENGINE_KEY = "the engine's own key is read by the sidecar: --engine-api-key-file"
_PLACED = "replicas are chosen by rendezvous hashing"
_NAMED = "the sidecars' file of credentials needs one of this name"
# Bookkeeping of any Kubernetes object.
_OBJECT = (
    FieldRow("apiVersion", _M.PASSED),
    FieldRow("kind", _M.PASSED),
    FieldRow("metadata", _M.PASSED, "names and bookkeeping of the object"),
    FieldRow("status", _M.PASSED, "loraplane describe shows ours"),
)
_LABELLED = (FieldRow("metadata.labels", _M.LABELS), *_OBJECT)


def _below(prefix: str, *rows: FieldRow) -> tuple[FieldRow, ...]:
    return tuple(FieldRow(f"{prefix}.{one.path}", one.meaning, one.remark, one.only) for one in rows)


_SYNCER_ROWS = _below(
    "vLLMLoRAConfig",
    FieldRow("defaultBaseModel", _M.BASE),
    FieldRow("name", _M.PASSED, "a label of its logs"),
    FieldRow("host", _M.UNMAPPED, _ENGINE),
    FieldRow("port", _M.UNMAPPED, _ENGINE),
    FieldRow("ensureExist.models[].id", _M.NAME),
    FieldRow("ensureExist.models[].source", _M.SOURCE),
    FieldRow("ensureExist.models[].base-model", _M.BASE),
    FieldRow("ensureNotExist.models[].id", _M.NAME, "among the adapters to delete"),
    FieldRow("ensureNotExist.models[].source", _M.PASSED),
    FieldRow("ensureNotExist.models[].base-model", _M.BASE),
)
_SYNCER = ImportShape(
    _SYNCER_ROWS,
    root="vLLMLoRAConfig",
    items="vLLMLoRAConfig.ensureExist.models",
    gone="vLLMLoRAConfig.ensureNotExist.models",
)
_SYNCER_MAP = ImportShape(_SYNCER_ROWS, kind="ConfigMap", embedded="vLLMLoRAConfig")

_AIBRIX = ImportShape(
    (
        FieldRow("metadata.name", _M.NAME),
        *_LABELLED,
        *_below(
            "spec",
            FieldRow("baseModel", _M.BASE),
            FieldRow("artifactURL", _M.SOURCE, "gcs:// becomes gs://, huggingface:// becomes hf://"),
            FieldRow("replicas", _M.REPLICAS, "all where it is not said"),
            FieldRow("credentialsSecretRef.name", _M.CREDENTIAL, _NAMED),
            FieldRow("podSelector.matchLabels.model.aibrix.ai/name", _M.POOL),
            FieldRow("podSelector.matchLabels.adapter.model.aibrix.ai/enabled", _M.PASSED),
            FieldRow("podSelector", _M.UNMAPPED, "label the replicas, and name the labels in spec.placement.selector"),
            FieldRow("additionalConfig.api-key", _M.UNMAPPED, _ENGINE_KEY),
            FieldRow("additionalConfig", _M.UNMAPPED, _KEY),
            FieldRow("schedulerName", _M.UNMAPPED, _PLACED, only=("default",)),
        ),
    ),
    kind="ModelAdapter",
    group="model.aibrix.ai",
)


def _stack_rows() -> tuple[FieldRow, ...]:
    source = _below(
        "adapterSource",
        FieldRow("adapterName", _M.NAME),
        FieldRow("type", _M.PASSED, only=("local", "huggingface")),
        FieldRow("repository", _M.SOURCE, "of a hub"),
        FieldRow("adapterPath", _M.SOURCE, "a folder, where there is no repository"),
        FieldRow("credentialsSecretRef.name", _M.CREDENTIAL, _NAMED),
        FieldRow("credentialsSecretRef.key", _M.UNMAPPED, _KEY),
        FieldRow("credentials.secretName", _M.CREDENTIAL, _NAMED),
        FieldRow("credentials.secretKey", _M.UNMAPPED, _KEY),
        FieldRow("credentials", _M.UNMAPPED, _KEY),
        FieldRow("pattern", _M.UNMAPPED, "name each adapter"),
        FieldRow("maxAdapters", _M.UNMAPPED, "limit the pool instead: loraplane pool update --max-adapters"),
    )
    placed = _below(
        "loraAdapterDeploymentConfig",
        FieldRow("replicas", _M.REPLICAS, "all where it is not said"),
        FieldRow("algorithm", _M.UNMAPPED, _PLACED, only=("default",)),
    )
    return (*source, *placed, FieldRow("baseModel", _M.BASE), FieldRow("vllmApiKey", _M.UNMAPPED, _ENGINE_KEY))


_STACK = ImportShape(
    (*_LABELLED, *_below("spec", *_stack_rows())), kind="LoraAdapter", group="production-stack.vllm.ai"
)
_STACK_VALUES = ImportShape(
    _below("loraAdapters[]", *_stack_rows(), FieldRow("name", _M.NAME), FieldRow("enabled", _M.ENABLED)),
    root="loraAdapters",
    items="loraAdapters",
)
_DYNAMO = ImportShape(
    (
        *_LABELLED,
        *_below(
            "spec",
            FieldRow("modelName", _M.NAME),
            FieldRow("baseModelName", _M.BASE),
            FieldRow("modelType", _M.PASSED, only=("lora", "adapter")),
            FieldRow("source.uri", _M.SOURCE),
        ),
    ),
    kind="DynamoModel",
    group="nvidia.com",
)
_KUBEAI = ImportShape(
    (
        *_below("spec.adapters[]", FieldRow("name", _M.NAME), FieldRow("url", _M.SOURCE, "oss:// has to be rewritten")),
        FieldRow("metadata.name", _M.BASE, "the model's own name"),
        FieldRow("spec.url", _M.UNMAPPED, "the base model is what the engines of the pool serve"),
        *_OBJECT,
    ),
    kind="Model",
    group="kubeai.org",
    items="spec.adapters",
)
_KSERVE = ImportShape(
    (
        *_below(
            "spec.model.lora.adapters[]",
            FieldRow("name", _M.NAME),
            FieldRow("uri", _M.SOURCE, "pvc:// and oci+native:// have to be rewritten, to where they are mounted"),
        ),
        FieldRow("spec.model.name", _M.BASE),
        FieldRow("spec.model.uri", _M.UNMAPPED, "the base model is what the engines of the pool serve"),
        *_OBJECT,
    ),
    kind="LLMInferenceService",
    group="serving.kserve.io",
    items="spec.model.lora.adapters",
)
_IPP = ImportShape(
    (
        FieldRow("data.adapters[].name", _M.NAME, "the list says names and nothing else"),
        FieldRow("data.baseModel", _M.BASE),
        *_OBJECT,
    ),
    kind="ConfigMap",
    items="data.adapters",
    lists=("adapters",),
)
_FOLDERS = ImportShape(
    (
        *_below(
            "adapters[]",
            FieldRow("name", _M.NAME, "the folder's name"),
            FieldRow("folder", _M.SOURCE),
            FieldRow("base_model_name_or_path", _M.BASE, "of its adapter_config.json"),
        ),
    ),
    root="adapters",
    items="adapters",
)
_NIM_FOLDERS = ImportShape(
    (
        *_FOLDERS.rows,
        FieldRow("adapters[].fileset", _M.UNMAPPED, "the files are taken from the folder, not from the entity store"),
        FieldRow("adapters[].updated_at", _M.PASSED),
    ),
    root="adapters",
    items="adapters",
)
_TREE = "A folder has one for each adapter, with adapter_config.json; a file, or -, has the paths of these, one a line."

KINDS: Mapping[str, ImportKind] = MappingProxyType(
    {
        one.name: one
        for one in (
            ImportKind(
                "lora-syncer",
                "lora-syncer of the Gateway API inference extension: its ConfigMap, or the configuration in it",
                (_SYNCER_MAP, _SYNCER),
                "kubectl get configmap NAME -o yaml",
                (
                    "What stands in both lists is neither added nor deleted, as there.",
                    "What is in neither list any more stays served there; delete it here.",
                ),
            ),
            ImportKind(
                "aibrix",
                "AIBrix: ModelAdapter of model.aibrix.ai",
                (_AIBRIX,),
                "kubectl get modeladapters -A -o yaml",
                ("Without --pool, the label model.aibrix.ai/name of its pods names the pool.",),
            ),
            ImportKind(
                "production-stack",
                "vLLM production-stack: LoraAdapter, or loraAdapters of its chart's values",
                (_STACK, _STACK_VALUES),
                "kubectl get loraadapters -A -o yaml",
                ("Sources of the types s3 and http never worked there; name them by --rewrite.",),
            ),
            ImportKind(
                "dynamo", "NVIDIA Dynamo: DynamoModel of nvidia.com", (_DYNAMO,), "kubectl get dynamomodels -A -o yaml"
            ),
            ImportKind("kubeai", "KubeAI: adapters of a Model", (_KUBEAI,), "kubectl get models.kubeai.org -A -o yaml"),
            ImportKind(
                "kserve",
                "KServe: adapters of an LLMInferenceService",
                (_KSERVE,),
                "kubectl get llminferenceservices -A -o yaml",
            ),
            ImportKind(
                "ipp",
                "llm-d's inference payload processor: its ConfigMap of names",
                (_IPP,),
                "kubectl get configmap -l inference.llm-d.ai/ipp-managed=true -o yaml",
                ("It has names without sources: --source says where the files are, {name} standing for the name.",),
            ),
            ImportKind(
                "nim-directory",
                "NVIDIA NIM and NeMo: the folder of NIM_PEFT_SOURCE",
                (_NIM_FOLDERS,),
                remarks=(_TREE,),
                files=("adapter_config.json", "nmp_adapter_meta.json"),
            ),
            ImportKind(
                "directory",
                "A folder with a folder for each adapter, as vLLM's resolver and SageMaker have it",
                (_FOLDERS,),
                remarks=(_TREE,),
                files=("adapter_config.json",),
            ),
        )
    }
)
