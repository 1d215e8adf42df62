"""What oras and modelpack push to Debian's docker-registry, as users call them: applied by tag, staged, refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from registry.lora.digest import CONFIG_FILE, WEIGHTS_FILE
from registry.lora.directory import digest_of
from sidecar.artifacts.types import ArtifactRef
from tests.corpus.drafts import LLAMA
from tests.integration.sources.conftest import content, ref, refusal
from tests.support.container_registry import PASSWORD, USER
from tests.support.docker_registry import TokenService, docker_login, docker_registry, token_service

MODELPACK = Path(__file__).parents[3] / ".venv-modelpack/bin/modelpack"
WEIGHT = "application/vnd.cncf.model.weight"
IMAGE_TAR = "application/vnd.oci.image.layer.v1.tar"
LAYER = "--layer"


def oras() -> str:
    """The program; the test is skipped where there is none."""
    program = os.environ.get("ORAS") or shutil.which("oras")
    return program or pytest.skip("ORAS names no oras, as .ci/run unpacks it from Debian 13's package")


def modelpack() -> str:
    """The program; the test is skipped where there is none."""
    return str(MODELPACK) if MODELPACK.exists() else pytest.skip("make .venv-modelpack/.installed brings modelpack")


@dataclass(frozen=True)
class Desk:
    """Where somebody has an adapter in out/last, beside a README, and pushes it from."""

    folder: Path
    host: str

    def push(self, tool: str, repository: str, *what: str, cwd: str = ".") -> str:
        """Pushes with the tag v1; returns the digest that the tool tells."""
        to = f"{self.host}/{repository}:v1"
        if tool == "oras":
            told = self._run(cwd, oras(), "push", "--plain-http", "--no-tty", to, *what)
            return told.rpartition("Digest: ")[2].strip()
        config = str(self.folder / "model-config.json")
        told = self._run(cwd, modelpack(), "--insecure", "push", to, "--config", config, *what)
        return str(json.loads(told)["digest"])

    def _run(self, cwd: str, *command: str) -> str:
        environment = {"HOME": str(self.folder), "PATH": os.environ["PATH"]}
        done = subprocess.run(
            command, cwd=self.folder / cwd, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def desk_at(folder: Path, host: str) -> Desk:
    """A desk in a new folder."""
    adapter = LLAMA.draft().write(folder / "out" / "last")
    (adapter / "README.md").write_text("# sql\n")
    subprocess.run(["tar", "-C", adapter, "-czf", folder / "sql.tar.gz", "."], check=True)
    (folder / "notes.txt").write_text("foreign\n")
    (folder / "model-config.json").write_text('{"descriptor": {"name": "sql"}, "config": {"format": "safetensors"}}')
    return Desk(folder, host)


@pytest.fixture(scope="module")
def desk(tmp_path_factory) -> Iterator[Desk]:
    """A desk, and a registry that asks for nothing."""
    folder = tmp_path_factory.mktemp("pushed")
    with docker_registry(folder / "registry", {}) as host:
        yield desk_at(folder / "desk", host)


FILES = (CONFIG_FILE, WEIGHTS_FILE, "README.md")
TYPED = (LAYER, WEIGHTS_FILE, LAYER, f"{CONFIG_FILE}:{WEIGHT}.config.v1.raw", LAYER, "README.md")
# The tool, what it is told to push, and where it is called.
PUSHED = {
    "oras, the files": ("oras", FILES, "out/last"),
    "oras, the files from above": ("oras", tuple(f"out/last/{name}" for name in FILES), "."),
    "oras, files with types": ("oras", (f"{CONFIG_FILE}:application/json", f"{WEIGHTS_FILE}:a/b"), "out/last"),
    "oras, the folder": ("oras", ("last",), "out"),
    "oras, the folder that one is in": ("oras", (".",), "out/last"),
    "oras, the folder from above": ("oras", ("out/last/",), "."),
    "oras, the folder above": ("oras", ("out",), "."),
    "oras, the folder with a type": ("oras", ("out/last:application/vnd.acme.lora",), "."),
    "oras, the folder with the type of files": ("oras", (f"out/last:{IMAGE_TAR}",), "."),
    "oras, an archive": ("oras", ("sql.tar.gz",), "."),
    "modelpack, the files": ("modelpack", TYPED, "out/last"),
    "modelpack, files of one type": (
        *("modelpack", (LAYER, f"out/last/{CONFIG_FILE}", LAYER, f"out/last/{WEIGHTS_FILE}")),
        ".",
    ),
    "modelpack, the folder": ("modelpack", (LAYER, "out/last"), "."),
    "modelpack, the folder above": ("modelpack", (LAYER, "out"), "."),
    "modelpack, the folder, packed": ("modelpack", (LAYER, f"out/last:{WEIGHT}.v1.tar+gzip"), "."),
}


@pytest.mark.parametrize("form", PUSHED)
async def test_what_was_pushed_is_applied_by_its_tag_and_staged_as_it_was(desk, apply, sent_uris, open_store, form):
    """R4 digest-true: `apply` names the digest that the tool told, and the two files come as they lay there."""
    tool, what, cwd = PUSHED[form]
    repository = f"acme/right-{[*PUSHED].index(form)}"
    digest = desk.push(tool, repository, *what, cwd=cwd)
    there = f"oci://{desk.host}/{repository}"
    code, pinned, said = apply(f"{there}:v1")
    adapter = desk.folder / "out/last"
    assert (code, pinned, said) == (0, digest_of(adapter), "")
    assert sent_uris == [f"{there}@{digest}"]
    staged = await open_store(there).ensure(ArtifactRef(sent_uris[0], pinned, pin_key="p/a@1"))
    assert content(staged.path) == ((adapter / CONFIG_FILE).read_bytes(), (adapter / WEIGHTS_FILE).read_bytes())


REFUSED = {
    "oras, another file": ("oras", ("notes.txt:text/plain",), "are not read: text/plain"),
    "oras, another file without a type": ("oras", ("notes.txt",), f"has no layer with {CONFIG_FILE}; push the two"),
    "oras, no weights": ("oras", (f"out/last/{CONFIG_FILE}",), f"has no layer with {WEIGHTS_FILE}; push the two"),
    "oras, a path from the root": (
        *("oras", ("--disable-path-validation", f"{{folder}}/out/last/{CONFIG_FILE}")),
        "which leads out of it; push it from its own folder",
    ),
    "modelpack, zstd": ("modelpack", (LAYER, f"out/last:{WEIGHT}.v1.tar+zstd"), f"are not read: {WEIGHT}.v1.tar+zstd"),
}


@pytest.mark.parametrize("form", REFUSED)
async def test_what_is_no_adapter_is_refused_by_one_error_and_nothing_is_sent(desk, apply, open_store, form):
    """W9: by `apply`, and by whoever stages it, in the same words."""
    tool, what, words = REFUSED[form]
    repository = f"acme/wrong-{[*REFUSED].index(form)}"
    desk.push(tool, repository, *(one.format(folder=desk.folder) for one in what))
    there = f"oci://{desk.host}/{repository}"
    code, pinned, said = apply(f"{there}:v1")
    assert (code, pinned) == (4, None)
    error = await refusal(open_store(there), f"{there}:v1")
    assert error.permanent
    assert words in error.message
    assert words in said


@pytest.fixture
def guarded(tmp_path) -> Iterator[tuple[Desk, TokenService]]:
    """A desk, and a registry that wants tokens of a place of its own."""
    with token_service(tmp_path / "tokens") as tokens, docker_registry(tmp_path / "registry", tokens.auth) as host:
        desk = desk_at(tmp_path / "desk", host)
        docker_login(desk.folder, host)
        yield desk, tokens


@pytest.mark.parametrize("form", ["oras, the files", "modelpack, the files"])
async def test_a_registry_that_wants_tokens_is_filled_and_read_by_one_password(guarded, monkeypatch, open_store, form):
    """X1: a sidecar asks for a token that reads this one repository, and docker's registry takes it."""
    desk, tokens = guarded
    tool, what, cwd = PUSHED[form]
    digest = desk.push(tool, "acme/sql", *what, cwd=cwd)
    there, realm = f"oci://{desk.host}/acme/sql", f"{tokens.url}/token"
    monkeypatch.setenv("SECRET", json.dumps({"username": USER, "password": PASSWORD}))
    held = {"kind": "env", "variable": "SECRET", "prefixes": [there, realm]}
    store = open_store(there, realm, credentials={"team": held})
    assert (await refusal(store, f"{there}:v1")).reason == "source_denied"
    tokens.scopes.clear()
    adapter = desk.folder / "out/last"
    for reference in (":v1", f"@{digest}"):
        staged = await store.ensure(ref(there + reference, "team"))
        assert content(staged.path) == ((adapter / CONFIG_FILE).read_bytes(), (adapter / WEIGHTS_FILE).read_bytes())
    assert set(tokens.scopes) == {"repository:acme/sql:pull"}
