"""docs/examples/fetch-mlflow with MLflow itself, on a registry of models in a folder, behind a sidecar's store."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from registry.lora.digest import FILES
from tests.integration.sources.conftest import CONFIG, WEIGHTS, content, ref

PROJECT = Path(__file__).parents[3]
TOOLS = PROJECT / ".venv-mlflow/bin"
FETCH = PROJECT / "docs/examples/fetch-mlflow"
REGISTER = """
import sys
from mlflow import MlflowClient
client = MlflowClient()
run = client.create_run(client.create_experiment("training")).info.run_id
client.log_artifacts(run, sys.argv[1], "adapter")
client.create_registered_model("sql")
made = client.create_model_version("sql", f"runs:/{run}/adapter", run)
client.set_registered_model_alias("sql", "best", made.version)
"""

pytestmark = pytest.mark.skipif(not (TOOLS / "mlflow").exists(), reason="make .venv-mlflow/.installed brings MLflow")


@pytest.mark.parametrize("named", ["sql/1", "sql@best"])
async def test_an_adapter_comes_out_of_mlflows_registry(open_store, tmp_path, monkeypatch, named):
    """R4 digest-true: a version, and an alias, are fetched by the example as it stands in docs/."""
    monkeypatch.setenv("PATH", f"{TOOLS}:{os.environ['PATH']}")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlflow").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_bytes(CONFIG)
    (adapter / "adapter_model.safetensors").write_bytes(WEIGHTS)
    subprocess.run([TOOLS / "python", "-c", REGISTER, str(adapter)], check=True, capture_output=True, timeout=300)  # noqa: ASYNC221 - nothing else runs yet
    store = open_store("mlflow-model:///sql", "mlflow-model:///sql@best", fetchers=(f"mlflow-model={FETCH}",))
    staged = await store.ensure(ref(f"mlflow-model:///{named}"))
    assert content(staged.path) == (CONFIG, WEIGHTS)


MLFLOW_OF_ONE_MODEL = """#!/bin/sh
while [ "$1" != --dst-path ]; do shift; done
mkdir -p "$2/artifacts/peft" && touch "$2/MLmodel"
for name in adapter_config.json adapter_model.safetensors model.sig; do echo "$name" >"$2/artifacts/peft/$name"; done
"""


def test_what_lies_in_a_folder_of_its_own_comes_to_the_top_with_its_signature(tmp_path, monkeypatch):
    """As MLflow logs a model of transformers with its code."""
    programs, fetched = tmp_path / "bin", tmp_path / "fetched"
    programs.mkdir()
    fetched.mkdir()
    (programs / "mlflow").write_text(MLFLOW_OF_ONE_MODEL)
    (programs / "mlflow").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    subprocess.run([FETCH, "mlflow-model:///sql/1", str(fetched)], check=True, timeout=60)
    files = {file.name: file.read_text() for file in fetched.iterdir() if file.is_file()}
    assert files == {"MLmodel": ""} | {name: f"{name}\n" for name in ("model.sig", *FILES)}
