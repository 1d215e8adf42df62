"""The command line of the long-running processes: each setting is a flag and a variable, each mistake one line."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Self

import pytest
from pydantic import BaseModel, Field, create_model, model_validator

from registry.admin.settings import AdminSettings
from registry.runtime.flags import Flag, read_settings
from registry.runtime.settings import Address
from sidecar.settings import SidecarSettings

REQUIRED = ("--etcd", "a:1,b:2", "--pool", "p", "--replica", "r", "--engine", "http://127.0.0.1:8000/", "--store", "/s")


def _read(*arguments: str, model: type[BaseModel] = SidecarSettings, **environment: str) -> BaseModel:
    return read_settings(model, program="program", summary="Does it.", arguments=arguments, environment=environment)


def _refusal(capsys: pytest.CaptureFixture[str], *arguments: str, model: type[BaseModel] = SidecarSettings) -> str:
    with pytest.raises(SystemExit) as stopped:
        _read(*arguments, model=model)
    assert stopped.value.code == 2
    return capsys.readouterr().err


def test_flags_become_settings_and_variables_stand_behind_them():
    flags = "--http [::1]:80 --allow-source file:///a,b --allow-source s3://c --labels k=v,w="
    environment = {"LORAPLANE_POOL": "other", "LORAPLANE_ENGINE_TARGET_MODULES": "q_proj,v_proj"}
    told = _read(*REQUIRED, *flags.split(), **environment, LORAPLANE_ENGINE_MAX_RANK="", HF_ENDPOINT="http://hub")
    assert isinstance(told, SidecarSettings)
    assert (told.etcd, told.pool, told.engine, told.store) == (("a:1", "b:2"), "p", "http://127.0.0.1:8000", Path("/s"))
    assert (told.http, told.labels) == (Address(host="::1", port=80), {"k": "v", "w": ""})
    assert (told.allow_source, told.hf_endpoint) == (("file:///a,b", "s3://c"), "http://hub")
    assert (told.engine_target_modules, told.engine_max_rank) == (("q_proj", "v_proj"), None)


@pytest.mark.parametrize("model", [SidecarSettings, AdminSettings])
def test_help_names_each_flag_with_its_variable_and_the_version_is_that_of_the_package(capsys, model):
    for flag in ("--help", "--version"):
        with pytest.raises(SystemExit) as stopped:
            _read(flag, model=model)
        assert stopped.value.code == 0
    said = capsys.readouterr().out.split()
    names = [one for name in model.model_fields for one in (f"--{name.replace('_', '-')}", f"LORAPLANE_{name.upper()}")]
    assert [one for one in names if f" {one}" not in " ".join(said).replace("[", " ")] == []
    assert said[-1] == version("loraplane")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (REQUIRED[2:], "--etcd is missing: give it, or set LORAPLANE_ETCD"),
        ((*REQUIRED, "--etcd", ","), "--etcd: "),
        ((*REQUIRED, "--etcd", "etcd-0"), "--etcd: 'etcd-0' is not HOST:PORT"),
        ((*REQUIRED, "--etcd", "a:1,https://b:2"), "--etcd: 'https://b:2' is not HOST:PORT: leave the scheme out"),
        ((*REQUIRED, "--pool", "../x"), "--pool: "),
        ((*REQUIRED, "--replica", ""), "--replica: "),
        ((*REQUIRED, "--engine", "localhost:8000"), "--engine: "),
        ((*REQUIRED, "--engine-kind", "ollama"), "--engine-kind: "),
        ((*REQUIRED, "--engine-kind", "dynamo"), "--engine-kind: "),
        ((*REQUIRED, "--engine-kind", "axolotl"), "give --engine-max-rank"),
        ((*REQUIRED, "--http", "80"), "--http: '80' is not HOST:PORT"),
        ((*REQUIRED, "--http", "a:99999"), "--http: "),
        ((*REQUIRED, "--labels", "k"), "--labels: 'k' is not k=v,k=v"),
        ((*REQUIRED, "--prefix", "x"), "--prefix: "),
        ((*REQUIRED, "--engine-max-rank", "0"), "--engine-max-rank: "),
        ((*REQUIRED, "--etcd-user", "root"), "--etcd-user and --etcd-password-file go together"),
        ((*REQUIRED, "--etcd-tls-key", "k"), "--etcd-tls-cert and --etcd-tls-key go together"),
        ((*REQUIRED, "--poool", "p"), "--poool"),
        ((*REQUIRED, "--allow", "s3://a"), "--allow"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_flag(capsys, arguments, named):
    assert named in _refusal(capsys, *arguments).splitlines()[-1]


ADMIN = ("--etcd", "127.0.0.1:1")
LOGIN = ("--etcd-user", "u", "--etcd-password-file", "f")
CERTIFICATE = ("--tls-cert", "c", "--tls-key", "k")


@pytest.mark.parametrize(
    ("model", "arguments", "says"),
    [
        (AdminSettings, (*ADMIN, "--listen", "0.0.0.0:1"), "--tls-cert, --tls-key and --access, or --insecure"),
        (AdminSettings, (*ADMIN, "--listen", "[::]:1"), "--listen [::]:1: anybody may read"),
        (AdminSettings, (*ADMIN, "--listen", "10.0.0.1:1", *CERTIFICATE), "anybody may change everything"),
        (
            AdminSettings,
            (*ADMIN, "--listen", "0.0.0.0:1", *CERTIFICATE, "--tls-ca", "a"),
            "a certificate of --tls-ca may",
        ),
        (AdminSettings, ("--etcd", "127.0.0.1:1,[fd00::1]:2", *LOGIN), "unencrypted to [fd00::1]:2"),
        (SidecarSettings, (*REQUIRED, *LOGIN), "unencrypted to a:1"),
        (SidecarSettings, (*REQUIRED, "--engine", "http://e:1", "--engine-api-key-file", "k"), "unencrypted to e:1"),
        *(
            (model, arguments, "")
            for model, arguments in (
                (AdminSettings, (*ADMIN, "--listen", "localhost:1", *LOGIN)),
                (AdminSettings, ("--etcd", "[::1]:1", "--listen", "127.0.0.2:1", *LOGIN)),
                (AdminSettings, (*ADMIN, "--listen", "0.0.0.0:1", *CERTIFICATE, "--tls-ca", "a", "--access", "f")),
                (AdminSettings, ("--etcd", "e:1", *LOGIN, "--etcd-tls-ca", "a")),
                (SidecarSettings, (*REQUIRED, "--engine", "https://e:1", "--engine-api-key-file", "k")),
                (SidecarSettings, (*REQUIRED, "--engine-api-key-file", "k")),
            )
        ),
    ],
)
def test_what_is_unprotected_is_refused_unless_it_is_said(capsys, model, arguments, says):
    """X1 secret-free: no credential leaves this host unencrypted, and no API stands open, without a word."""
    if not says:
        assert _read(*arguments, model=model).unprotected() == ()
        return
    told = _refusal(capsys, *arguments, model=model)
    assert says in told
    assert "--insecure" in told
    (found,) = _read(*arguments, "--insecure", model=model).unprotected()
    assert found in told
    assert _read(*arguments, model=model, LORAPLANE_INSECURE="true").insecure


class Small(BaseModel):
    """A few settings."""

    name: Annotated[str, Flag("NAME", "What it is called, 100% of it")]
    count: Annotated[int, Field(ge=1), Flag("N", "How many")] = 3
    none: Annotated[str | None, Flag("TEXT", "Nothing by itself", also="KNOWN_ELSEWHERE")] = None
    many: Annotated[tuple[str, ...], Flag("TEXT", "Some", repeatable=True)] = ()
    yes: Annotated[bool, Flag("", "Says yes", switch=True)] = False
    maybe: Annotated[bool | None, Flag("", "Says yes or no", switch=True)] = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.name == "wrong":
            raise ValueError("--name and the rest do not fit")
        return self


@pytest.mark.parametrize(
    ("arguments", "environment", "expected"),
    [
        (("--name", "a"), {}, Small(name="a")),
        (("--name=a", "--yes"), {}, Small(name="a", yes=True)),
        (("--name=a", "--maybe"), {}, Small(name="a", maybe=True)),
        (("--name=a", "--no-maybe"), {"LORAPLANE_MAYBE": "true"}, Small(name="a", maybe=False)),
        (("--name=a",), {"LORAPLANE_MAYBE": "false"}, Small(name="a", maybe=False)),
        ((), {"LORAPLANE_NAME": "a", "LORAPLANE_YES": "true"}, Small(name="a", yes=True)),
        (("--name", "a"), {"LORAPLANE_YES": "false", "LORAPLANE_COUNT": "5"}, Small(name="a", count=5)),
        (("--name", "a", "--count", "4"), {"LORAPLANE_COUNT": "5"}, Small(name="a", count=4)),
        (("--name", "a", "--many", "b c", "--many", "d"), {"LORAPLANE_MANY": "e"}, Small(name="a", many=("b c", "d"))),
        (("--name", "a"), {"LORAPLANE_MANY": "b  c"}, Small(name="a", many=("b", "c"))),
        (("--name", "a"), {"LORAPLANE_MANY": ""}, Small(name="a")),
        (("--name", ""), {"LORAPLANE_NAME": "a"}, Small(name="")),
        (("--name", "a"), {"LORAPLANE_NONE": "", "KNOWN_ELSEWHERE": "b c"}, Small(name="a", none="b c")),
        (("--name", "a"), {"LORAPLANE_NONE": "b", "KNOWN_ELSEWHERE": "c"}, Small(name="a", none="b")),
    ],
)
def test_a_setting_is_what_its_flag_says_or_else_its_variable(arguments, environment, expected):
    """An empty variable says nothing; an empty flag says that it is empty."""
    assert _read(*arguments, model=Small, **environment) == expected


def test_help_says_what_each_flag_is_for_and_a_setting_without_exactly_one_is_a_defect_of_ours(capsys):
    with pytest.raises(SystemExit):
        _read("--help", model=Small)
    said = " ".join(capsys.readouterr().out.split())
    for line in (
        "--name NAME What it is called, 100% of it [LORAPLANE_NAME; required]",
        "--count N How many [LORAPLANE_COUNT; default: 3]",
        "--none TEXT Nothing by itself [LORAPLANE_NONE, KNOWN_ELSEWHERE]",
        "--many TEXT Some [LORAPLANE_MANY; several values with blanks between]",
        "--yes Says yes [LORAPLANE_YES]",
        "--no-maybe The opposite of --maybe",
    ):
        assert line in said
    assert "--no-yes" not in said, "what is not said is its opposite"
    for kind in (str, Annotated[str, Flag("A", "one"), Flag("B", "two")]):
        with pytest.raises(TypeError, match="odd has no Flag"):
            _read(model=create_model("Broken", odd=(kind, "")))
