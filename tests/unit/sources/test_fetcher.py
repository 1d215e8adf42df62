"""Sources that a command of the host fetches: what it is given, and what ends it."""

from __future__ import annotations

import os
import shutil
import sys
import time
from contextlib import suppress
from itertools import chain
from pathlib import Path

import pytest

from registry.model.source_uri import parse_source
from registry.sources import fetcher
from registry.sources.allowed import AllowedSources, RemoteOptions
from registry.sources.base import Stop, StoreError
from registry.sources.credentials import HeldCredential
from registry.sources.fetcher import FetchedSource, FetchLimits, parse_fetchers
from tests.support.adapters import write_adapter
from tests.unit.sources.conftest import got, refusal, refused

URI = "wandb-artifact:///team/project/sql:v7"
CANARY = "tok-CANARY-9"


@pytest.fixture
def adapter(tmp_path) -> Path:
    return write_adapter(tmp_path / "a").directory


@pytest.fixture
def program(tmp_path):
    """Makes a program of lines of a shell; $1 is the URI and $2 the folder."""

    def made(lines: str) -> Path:
        path = tmp_path / "fetch"
        path.write_text(f"#!/bin/sh\n{lines}\n")
        path.chmod(0o755)
        return path

    return made


def fetched(*command: Path | str, held=None, **limits: float) -> FetchedSource:
    made = FetchLimits(**limits)  # type: ignore[arg-type]
    return FetchedSource(parse_source(URI), tuple(map(str, command)), held, limits=made)


def test_a_command_gets_uri_and_folder_and_what_it_leaves_is_the_source(program, adapter, tmp_path):
    said = tmp_path / "said"
    path = program(
        f'printf "%s\\n" "$@" "$PWD" "${{{fetcher.CREDENTIALS_VARIABLE}-none}}" > {said}\ncp {adapter}/* "$3"'
    )
    allowed = AllowedSources(["wandb-artifact:///team"], RemoteOptions(fetchers=(f"wandb-artifact={path} '-q ;x'",)))
    assert got(allowed.source(URI)) == {path.name: path.read_bytes() for path in adapter.iterdir()}
    quiet, uri, folder, here, credentials = said.read_text().splitlines()
    assert (quiet, uri, credentials) == ("-q ;x", URI, "none"), "no shell looks at them"
    assert folder == here
    assert not Path(folder).exists(), "given back"


def test_what_no_prefix_names_is_not_fetched(program):
    """Fail closed: nor what has no command here."""
    options = RemoteOptions(fetchers=(f"wandb-artifact={program('exit 1')}",))
    for prefixes, uri, reason in (
        ([], URI, "source_not_allowed"),
        (["wandb-artifact:///other"], URI, "source_not_allowed"),
        (["mlflow-model:///sql"], "mlflow-model:///sql/3", "unsupported_scheme"),
        (["wandb-artifact:///team"], f"{URI}?x", "invalid_source"),
    ):
        error = refused(AllowedSources(prefixes, options).source, uri)
        assert (error.reason, error.permanent) == (reason, True)
        assert reason != "unsupported_scheme" or "--fetcher mlflow-model=COMMAND" in error.message


def test_a_secret_comes_by_a_descriptor_and_is_not_in_what_is_told(program, adapter, hold):
    """X1 secret-free: not in arguments, not in variables, and not in the log if the command prints it."""

    def held(secret: object) -> HeldCredential:
        return hold(URI, secret, "wandb-artifact:///team")

    path = program(f'secret=$(cat /dev/fd/${fetcher.CREDENTIALS_VARIABLE})\necho "denied: $secret"\nexit 3')
    error = refusal(fetched(path, held=held({"token": CANARY})))
    assert error.reason == "fetcher_failed"
    assert error.detail.startswith("denied: ")
    assert CANARY not in error.message + error.detail

    path.write_text(f'#!/bin/sh\ntest "$(cat /dev/fd/${fetcher.CREDENTIALS_VARIABLE})" && cp {adapter}/* "$2"\n')
    assert got(fetched(path, held=held({"token": CANARY})))
    assert refusal(fetched(path, held=held(""))).reason == "credential_unavailable"


@pytest.mark.parametrize(
    ("lines", "limits", "reason", "words"),
    [
        ("sleep 60", {"seconds": 0.3}, "source_timeout", "was not done within 0.3 s"),
        ("exec >&- 2>&-; sleep 60", {"seconds": 0.5}, "source_timeout", "was not done within"),
        ("yes", {"output_bytes": 100_000}, "fetcher_failed", "wrote more than 100000 bytes of output"),
        ("echo no such run; exit 3", {}, "fetcher_failed", "ended with 3; the log of this host has its last words"),
        ("kill -9 $$", {}, "fetcher_failed", "was ended by signal 9"),
        ("head -c 3000000 /dev/zero > $2/x; sleep 9", {"folder_bytes": 2_000_000}, "too_large", "more than 2000000"),
        ("mkdir $2/d; touch $2/d/a $2/d/b; sleep 9", {"files": 2}, "too_large", "or 2 files"),
        ("true", {}, "source_incomplete", f"{URI} has no adapter_config.json"),
        ("ln -s /etc/passwd $2/adapter_config.json", {}, "not_a_regular_file", "adapter_config.json"),
        ("rmdir $2; ln -s / $2", {}, "not_an_adapter", "is not a directory"),
        ("rmdir $2", {}, "source_missing", "there is no directory"),
    ],
)
def test_what_goes_wrong_has_one_reason(program, lines, limits, reason, words):
    """R16 bounded: in time, output, size and number of files."""
    error = refusal(fetched(program(lines), **limits))
    assert (error.reason, words in error.message) == (reason, True), error.message
    assert error.message.count(URI.partition(":")[0]) >= 1


def test_a_program_that_went_away_is_said(program, tmp_path):
    path = program("true")
    path.unlink()
    error = refusal(fetched(path))
    assert (error.reason, error.permanent) == ("fetcher_failed", False)
    assert "cannot be started: No such file or directory; see --fetcher" in error.message


OF_ITS_OWN_GROUP = f"""{sys.executable} -c 'import os; os.setpgrp(); os.execlp("sleep", "sleep", "60")'"""


@pytest.mark.parametrize("command", ["sleep 60", OF_ITS_OWN_GROUP])
def test_what_a_command_leaves_behind_is_ended_and_its_files_are_not_taken(
    program, adapter, tmp_path, monkeypatch, command
):
    """X3 given-back: processes too; somebody who still writes has not fetched anything."""
    monkeypatch.setattr(fetcher, "_GRACE_SECONDS", 0.4)
    pids = tmp_path / "pids"
    error = refusal(fetched(program(f"{command} & echo $! > {pids}\ncp {adapter}/* $2")))
    assert error.reason == "fetcher_failed"
    assert "left 1 processes behind, which were ended" in error.message
    assert_ended(int(pids.read_text()))


def test_a_folder_is_counted_without_what_its_links_lead_to(program, adapter):
    """R16: as many entries as may be, with one that leads round and round."""
    path = program(f"cp {adapter}/* $2; ln -s . $2/again; mkdir $2/d; sleep 0.2")
    assert got(fetched(path, files=4))
    assert refusal(fetched(path, files=3)).reason == "too_large"


def test_what_goes_away_while_a_folder_is_counted_weighs_nothing(program, adapter, monkeypatch):
    """Commands that write elsewhere first rename or remove what they wrote."""
    below = fetcher._all_below
    monkeypatch.setattr(fetcher, "_all_below", lambda folder: chain([folder / "gone"], below(folder)))
    assert got(fetched(program(f"cp {adapter}/* $2")))


def test_a_child_that_ends_soon_after_is_nobody_left_behind(program, adapter):
    assert got(fetched(program(f"cp {adapter}/* $2; sleep 0.2 &")))


def test_a_staging_that_is_stopped_ends_the_command_with_all_its_processes(program, tmp_path):
    pids = tmp_path / "pids"
    path = program(f"sh -c 'echo $$ > {pids}.new; mv {pids}.new {pids}; sleep 60' & sleep 60")

    class StoppedOnceItRuns(Stop):
        def check(self, wait_seconds: float = 0.0) -> None:
            if pids.exists():
                self.set()
            super().check(wait_seconds)

    assert refusal(fetched(path), StoppedOnceItRuns()).reason == "staging_stopped"
    assert_ended(int(pids.read_text()))


def assert_ended(pid: int) -> None:
    """No such process; one that nobody has waited for has ended."""
    until = time.monotonic() + 60
    with suppress(FileNotFoundError, ProcessLookupError):
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
            assert time.monotonic() < until
            time.sleep(0.01)


def test_a_bundle_beside_the_files_is_read_and_no_version_is_told(program, adapter, tmp_path):
    (adapter / "model.sig").write_bytes(b"{}")
    source = fetched(program(f"cp {adapter}/* $2; echo run >> {tmp_path}/runs"))
    assert source.signature(Stop()) == b"{}"
    with source.opened(Stop()) as opened:
        assert opened.signature(Stop()) == b"{}"
        assert "adapter_config.json" in got(opened)
    assert (tmp_path / "runs").read_text() == "run\n" * 2, "once for all that is asked of what is open"
    assert source.version(Stop()) == ""
    stopped = Stop()
    stopped.set()
    assert refused(source.version, stopped).reason == "staging_stopped"
    assert not source.is_gone(Stop())
    assert (tmp_path / "runs").read_text() == "run\n" * 2, "nobody fetches to see whether it is there"
    (adapter / "model.sig").unlink()
    assert source.signature(Stop()) is None


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (["wandb-artifact"], "write SCHEME=COMMAND"),
        (["wandb=/bin/true"], "a scheme that has a hyphen"),
        (["Wandb-Artifact=/bin/true"], "a scheme that has a hyphen"),
        (["s3=/bin/true"], "a scheme that has a hyphen"),
        (["a-b=/bin/true", "a-b=/bin/false"], "a-b:// has a command already"),
        (["a-b="], "no program '.'"),
        (["a-b=true"], "no program 'true'; give the absolute path"),
        (["a-b=/nowhere/x"], "no program '/nowhere/x'"),
        (["a-b=/etc/passwd"], "no program '/etc/passwd'"),
        (["a-b=/bin/true 'x"], "cannot be split into words"),
    ],
)
def test_a_flag_that_names_no_command_is_an_error_at_the_start(values, words):
    """Fail closed."""
    with pytest.raises(StoreError, match=f"^--fetcher .*{words}"):
        parse_fetchers(values)
    with pytest.raises(StoreError, match="--fetcher"):
        AllowedSources([], RemoteOptions(fetchers=tuple(values)))


EXAMPLE = Path(__file__).parents[3] / "docs/examples/fetch-mlflow"


def test_the_example_asks_mlflow_for_what_the_uri_names(tmp_path, adapter, monkeypatch, hold):
    """With a program in the tool's place, which takes down what it was asked for."""
    said, tools, uri = tmp_path / "said", tmp_path / "tools", "mlflow-model:///sql@best"
    tools.mkdir()
    (tools / "mlflow").write_text(
        f'#!/bin/sh\necho "$@" "$MLFLOW_TRACKING_TOKEN" > {said}\nfor folder; do :; done\n'
        f"mkdir $folder/x; cp {adapter}/* $folder/x\n"
    )
    (tools / "mlflow").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    source = FetchedSource(parse_source(uri), (str(EXAMPLE),), hold(uri, CANARY, "mlflow-model:///"))
    assert got(source) == {one.name: one.read_bytes() for one in adapter.iterdir()}
    words = said.read_text().split()
    assert " ".join(words[:-2]) == "artifacts download --artifact-uri models:/sql@best --dst-path"
    assert words[-1] == CANARY


@pytest.mark.parametrize(
    ("folders", "is_meant"),
    [([*(f"checkpoint-{step}" for step in range(9)), "."], True), (["a", "b"], False), (["only/one"], True)],
)
def test_the_example_takes_no_adapter_that_may_be_another(tmp_path, adapter, monkeypatch, folders, is_meant):
    """R4 digest-true: a run's checkpoints lie beside its adapter, in whatever order they are found."""
    tools, other = tmp_path / "tools", tmp_path / "other"
    tools.mkdir()
    shutil.copytree(adapter, other)
    (other / "adapter_model.safetensors").write_bytes(b"another")
    meant = "." if "." in folders else folders[0]
    copies = (f"mkdir -p $folder/{one}; cp {adapter if one == meant else other}/* $folder/{one}" for one in folders)
    (tools / "mlflow").write_text("#!/bin/sh\nfor folder; do :; done\n" + "\n".join(copies))
    (tools / "mlflow").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    source = FetchedSource(parse_source("mlflow-model:///sql/1"), (str(EXAMPLE),), None)
    if is_meant:
        assert got(source)["adapter_model.safetensors"] == (adapter / "adapter_model.safetensors").read_bytes()
    else:
        assert "ended with 1" in str(refusal(source))
