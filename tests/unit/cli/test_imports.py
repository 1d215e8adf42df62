"""The command import: files, folders and standard input, what is said beside the manifests, and exit codes."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import yaml

MODELS = "{models: [{id: a, source: 'pvc://m/a', base-model: b}]}"
SAMPLES = Path(__file__).parents[2] / "samples" / "imports"


def adapter(root: Path, name: str, **files: str) -> None:
    (root / name).mkdir(parents=True)
    for file, text in {"adapter_config": '{"base_model_name_or_path": "acme/tiny"}', **files}.items():
        (root / name / f"{file}.json").write_text(text)


def test_manifests_go_to_standard_output_and_all_else_to_standard_error(cli, admin):
    ran = cli("import", "lora-syncer", str(SAMPLES / "lora-syncer.yaml"), "--pool", "p")
    assert [one["metadata"]["name"] for one in yaml.safe_load_all(ran.out)] == ["sql", "legal"]
    assert (ran.code, admin.requests) == (0, [])
    assert "note: to delete: loraplane delete old --pool p --ignore-not-found\n" in ran.err
    assert cli("import", "lora-syncer", str(SAMPLES / "lora-syncer.yaml"), "--strict").code == 1
    assert cli("import", "dynamo", str(SAMPLES / "dynamo.yaml"), "--pool-of", "acme/tiny=x").out.count("pool: x") == 1


def test_no_value_of_a_field_that_does_not_map_is_shown(cli):
    """X1 secret-free: neither a key nor the name of a secret that has one."""
    for name in ("aibrix", "production-stack"):
        ran = cli("import", name, str(SAMPLES / f"{name}.yaml"))
        assert (ran.code, "does not map" in ran.err, "canary" in ran.out + ran.err) == (0, True, False)


@pytest.mark.parametrize(
    ("line", "text", "uri"),
    [
        ("lora-syncer - --strict --rewrite pvc://m/=s3://m/", f"vLLMLoRAConfig: {{ensureExist: {MODELS}}}", "s3://m/a"),
        ("directory - --pool p", "/mnt/a/sql/adapter_config.json\n", "file:///mnt/a/sql"),
    ],
)
def test_standard_input(cli, monkeypatch, line, text, uri):
    """What maps whole, and a list of paths."""
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    ran = cli("import", *line.split())
    assert (ran.code, ran.err, yaml.safe_load(ran.out)["spec"]["source"]["uri"]) == (0, "", uri)


def test_a_file_with_a_list_of_paths(cli, tmp_path):
    (tmp_path / "list").write_text("/mnt/a/sql/adapter_config.json\n")
    ran = cli("import", "directory", str(tmp_path / "list"), "--pool", "p")
    assert (ran.code, yaml.safe_load(ran.out)["spec"]["source"]["uri"]) == (0, "file:///mnt/a/sql")


def test_a_folder_with_a_folder_for_each_adapter(cli, tmp_path):
    root = tmp_path / "adapters"
    adapter(root, "acme--sql", nmp_adapter_meta='{"fileset": "f", "updated_at": "now"}')
    adapter(root, ".hidden")
    (root / "empty").mkdir()
    ran = cli("import", "nim-directory", str(root))
    found = yaml.safe_load(ran.out)
    assert (found["metadata"], found["spec"]["source"]["uri"]) == (
        {"name": "acme--sql", "pool": "tiny"},
        f"file://{root}/acme--sql",
    )
    assert "fileset: does not map" in ran.err
    ran = cli("import", "directory", str(root), "--source", "file:///mnt/{name}", "--strict")
    assert (ran.code, yaml.safe_load(ran.out)["spec"]["source"]["uri"]) == (0, "file:///mnt/acme--sql")


def test_a_link_out_of_the_folder_is_refused(cli, tmp_path):
    adapter(tmp_path / "elsewhere", "a")
    (tmp_path / "adapters").mkdir()
    (tmp_path / "adapters" / "a").symlink_to(tmp_path / "elsewhere" / "a")
    ran = cli("import", "directory", str(tmp_path / "adapters"))
    assert (ran.code, ran.out, "leads out of" in ran.err) == (2, "", True)


@pytest.mark.parametrize(
    ("configs", "code", "message"),
    [
        ({}, 4, "has no adapter that can be imported; expected A folder with a folder for each adapter"),
        ({"a": "[" * (1 << 20) + "[" * 10}, 2, "name a folder that can be read"),
        ({"a": "{}", "b": "{}"}, 2, "has more than 1 folders"),
    ],
    ids=["none", "a huge file", "too many"],
)
def test_a_folder_is_not_read_in_part(cli, tmp_path, monkeypatch, configs, code, message):
    monkeypatch.setattr("registry.cli.commands.imports._MAX_FOLDERS", 1)
    (tmp_path / "adapters").mkdir()
    for name, config in configs.items():
        adapter(tmp_path / "adapters", name, adapter_config=config)
    ran = cli("import", "directory", str(tmp_path / "adapters"))
    assert (ran.code, ran.out, message in ran.err) == (code, "", True), ran.err
