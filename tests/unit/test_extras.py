"""Packages that each program imports, and those that its extra of pyproject.toml brings."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import grimp
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.corpus.drafts import LLAMA

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
OURS = ("loraplane", "registry", "sidecar")
# Frameworks that have our integrations in their own environment.
FRAMEWORKS = {"litellm", "transformers"}
SERVERS_ONLY = ("starlette", "uvicorn", "httptools", "prometheus_client", "immutables", "jwt", "numpy", "obstore")
WITHOUT = f"import sys; sys.modules.update(dict.fromkeys({SERVERS_ONLY}))\n"


def brought(*extras: str) -> set[str]:
    """Packages of the client and of these extras, with those that an extra takes of another."""
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in PROJECT["optional-dependencies"][extra])]
    wanted = [Requirement(line) for line in lines]
    of_others = [brought(*one.extras) for one in wanted if one.name == "loraplane"]
    return {canonicalize_name(one.name) for one in wanted}.union(*of_others)


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(*OURS, include_external_packages=True, exclude_type_checking_imports=True)


@pytest.mark.parametrize(
    ("program", "extras"),
    [
        ("registry.cli", ("files", "publish", "otel")),
        ("loraplane", ("files", "otel")),
        ("registry.admin.main", ("server", "files", "otel")),
        ("registry.picker.main", ("server", "otel")),
        ("sidecar.main", ("sidecar", "otel")),
        ("registry.tools.audit.main", ("files",)),
        ("registry.tools.verify.main", ()),
    ],
)
def test_a_program_imports_what_its_extra_brings(graph, program, extras):
    """What pydantic or PEFT themselves ask for comes with them."""
    modules = graph.find_upstream_modules(program, as_package=bool(graph.find_children(program)))
    others = {one for one in modules if one not in sys.stdlib_module_names and one.partition(".")[0] not in OURS}
    distributions = packages_distributions()
    missing = {
        one
        for one in others - FRAMEWORKS - {"pydantic_core", "typing_extensions"}
        if not {canonicalize_name(name) for name in distributions.get(one, [one])} & brought(*extras)
    }
    assert missing == set()


def ran(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT + code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("module", "program", "extra"),
    [
        ("registry.admin.main", "loraplane-admin", "server"),
        ("registry.picker.main", "loraplane-picker", "server"),
        ("sidecar.main", "loraplane-sidecar", "sidecar"),
    ],
)
def test_a_daemon_without_its_packages_says_what_installs_them(module, program, extra):
    done = ran(f"import {module}")
    assert done.returncode == 2
    assert done.stderr.startswith(f"{program}: this needs ")
    assert done.stderr.endswith(
        f"; pip install 'loraplane[{extra}]', or in the project's folder: pip install '.[{extra}]'\n"
    )


def test_a_client_reads_no_numbers_and_says_what_would(tmp_path):
    folder, base = LLAMA.draft().write(tmp_path / "adapter"), LLAMA.write_base(tmp_path / "base")
    run = "from registry.cli.main import main; main()"
    missing = "error: USAGE: this needs {}, which is not installed here; pip install 'loraplane[files]'"
    done = ran(run, "check", str(folder), "--base-model", str(base))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(missing.format("numpy"))
    done = ran(run, "digest", str(folder))
    assert (done.returncode, done.stdout[:7]) == (0, "sha256:"), done.stderr
    done = ran(run, "digest", "s3://bucket/adapter")
    assert done.stderr.startswith(missing.format("obstore"))
