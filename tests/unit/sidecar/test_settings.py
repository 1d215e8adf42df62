"""Settings of a sidecar, as they come from flags and the environment."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from registry.runtime.flags import read_settings
from sidecar.engines.observed import EngineLimits
from sidecar.main import PROGRAM, SUMMARY
from sidecar.settings import SidecarSettings

REQUIRED = {
    "--etcd": "127.0.0.1:1",
    "--pool": "p",
    "--replica": "r1",
    "--engine": "http://127.0.0.1:1",
    "--http": "127.0.0.1:0",
    "--store": "/nowhere/store",
}


def made(**changes: Any) -> SidecarSettings:
    needed = {"etcd": "127.0.0.1:1", "pool": "p", "replica": "r1", "engine": "http://e:1/", "store": "/nowhere"}
    return SidecarSettings(**(needed | {"insecure": True} | changes))


def read(changes: dict[str, str]) -> SidecarSettings:
    arguments = [part for pair in (REQUIRED | changes).items() for part in pair]
    return read_settings(SidecarSettings, program=PROGRAM, summary=SUMMARY, arguments=arguments, environment={})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"--replica": ".."}, ["--replica", "not a name"]),
        ({"--engine": "localhost:8000"}, ["engine", "http://"]),
        ({"--advertise-url": "10.0.0.1:8000"}, ["advertise", "http://"]),
        ({"--drain-timeout": "-1"}, ["--drain-timeout"]),
        ({"--http": "7602"}, ["--http", "HOST:PORT"]),
        ({"--prefix": "loraplane/"}, ["prefix", "/loraplane/v1"]),
        ({"--labels": "zone"}, ["--labels", "k=v"]),
        ({"--etcd-user": "me"}, ["--etcd-password-file"]),
        ({"--etcd": "e:1", "--etcd-user": "me", "--etcd-password-file": "f"}, ["unencrypted to e:1", "--etcd-tls-ca"]),
        ({"--engine": "http://e:8000", "--engine-api-key-file": "f"}, ["unencrypted to e:8000", "--insecure"]),
        ({"--etcd": ","}, ["etcd"]),
        ({"--resolver-socket": "s"}, ["--resolver-socket", "absolute"]),
        ({"--resolver-socket": "/run/" + "s" * 103}, ["--resolver-socket", "108 bytes"]),
        ({"--lazy-idle": "-1"}, ["--lazy-idle"]),
        ({"--store-budget": "1,500GB"}, ["--store-budget", "'1,500GB'", "200GB"]),
        ({"--store-budget": "4.8e+10B"}, ["--store-budget", "'4.8e+10B'", "200GB"]),
        ({"--ready-when": "soon"}, ["--ready-when", "any", "served"]),
        ({"--degraded-share": "2"}, ["--degraded-share"]),
        ({"--http-names": "a.example,http://b.example"}, ["--http-names", "'http://b.example'", "lora.example.com"]),
        ({"--http-names": "a.example:7602"}, ["--http-names", "leave scheme, port"]),
        ({"--http-names": "*.example"}, ["--http-names"]),
        ({"--pool": ".."}, ["--pool", "not a name"]),
        ({"--engine": "ftp://e"}, ["engine", "http://"]),
        ({"--engine": "http://"}, ["engine", "http://"]),
        ({"--engine": "http://127.0.0.1:80000"}, ["--engine", "Port out of range"]),
        ({"--engine": "http://127.0.0.1:http"}, ["--engine", "Port", "'http'"]),
        ({"--engine": "http://127.0.0.1:0"}, ["--engine", "http://127.0.0.1:8000"]),
        ({"--advertise-url": "http://10.0.0.1:80000"}, ["--advertise-url", "Port out of range"]),
        ({"--engine-kind": "dynamo"}, ["--engine-kind", "'dynamo'", "axolotl, pegainfer, sglang, vllm"]),
        ({"--engine-kind": "axolotl"}, ["axolotl does not tell its --max-lora-rank", "--engine-max-rank"]),
        ({"--frob": "x"}, ["unrecognized arguments: --frob x", "--help"]),
    ],
)
def test_a_wrong_one_is_one_line_that_names_it(capsys, changes, words):
    with pytest.raises(SystemExit) as ended:
        read(changes)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert all(word in line for word in words), line


@pytest.mark.parametrize("flag", ["--engine", "--advertise-url"])
@pytest.mark.parametrize("user", ["me:hunter2", "hunter2"])
def test_no_credential_of_an_engine_is_in_its_url(capsys, flag, user):
    """X1 secret-free: the URL stands in statuses, presences and logs; nor is it in the refusal."""
    with pytest.raises(SystemExit):
        read({flag: f"http://{user}@127.0.0.1:8000"})
    said = capsys.readouterr().err
    assert (f"{flag}: " in said, "--engine-api-key-file" in said, "hunter2" in said) == (True, True, False)


def test_what_is_not_said_is_as_the_page_of_flags_says():
    """Kubernetes kills a pod 30 seconds after the signal: it has handed over by then. The required ones are enough."""
    usual = made()
    assert (str(usual.http), usual.drain_timeout, usual.engine_kind) == ("127.0.0.1:7602", 20.0, "vllm")
    assert (usual.engine, usual.advertise_url) == ("http://e:1", None)
    assert (read({}).unload_grace, read({"--unload-grace": "5"}).unload_grace) == (600.0, 5.0), "R7"
    assert usual.engine_limits() == EngineLimits()
    assert {read({"--store-budget": size}).store_budget for size in ("2Gi", "2GiB", "2147483648")} == {2 << 30}
    flags = {"--engine-max-rank": "8", "--engine-max-cpu-loras": "9", "--engine-target-modules": "q_proj,v_proj"}
    assert read(flags).engine_limits() == EngineLimits(None, 9, 8, ("q_proj", "v_proj"))


def test_the_names_of_its_pages_are_those_that_others_have_for_it():
    """Under which routers reach its host, and what its pod is called."""
    told = {
        "--http": "pages.lab.example:1",
        "--advertise-url": "http://gpu-1.lab.example:8000",
        "--http-names": "a.b,c",
    }
    assert read(told).own_names() == ("r1", "pages.lab.example", "gpu-1.lab.example", "a.b", "c")
    assert read({}).own_names() == ("r1", "127.0.0.1", "")


@pytest.mark.parametrize(
    ("replica", "said", "is_ephemeral"),
    [
        ("r3", (), False),
        ("r3", ("--ephemeral",), True),
        ("vllm-68b4f9c9d7-x2x7k", (), True),
        ("vllm-68b4f9c9d7-x2x7k", ("--no-ephemeral",), False),
    ],
)
def test_whose_name_is_not_to_come_back(replica, said, is_ephemeral):
    """Whom a rollout waits for: see tests/unit/rollout/test_expected.py."""
    arguments = [part for pair in (REQUIRED | {"--replica": replica}).items() for part in pair]
    found = read_settings(
        SidecarSettings, program=PROGRAM, summary=SUMMARY, arguments=[*arguments, *said], environment={}
    )
    assert found.is_ephemeral() is is_ephemeral


@pytest.mark.parametrize(
    "changes",
    [
        {"--engine": "https://e"},
        {"--advertise-url": "http://10.0.0.1:8000"},
        {"--resolver-socket": "/run/" + "s" * 102},
        {"--engine-kind": "axolotl", "--engine-max-rank": "8"},
        {"--engine-kind": "sglang"},
        {"--engine-max-rank": "1"},
    ],
    ids=str,
)
def test_what_is_right_is_taken(changes):
    read(changes)


@pytest.mark.parametrize(
    ("engine", "has_key", "is_unprotected"),
    [
        ("http://e:8000", True, True),
        ("http://e:8000", False, False),
        ("https://e:8000", True, False),
        ("http://127.0.0.1:8000", True, False),
        ("http://localhost:8000", True, False),
    ],
)
def test_a_key_goes_encrypted_or_not_over_the_network(tmp_path, engine, has_key, is_unprotected):
    """X1 secret-free."""
    settings = made(engine=engine, engine_api_key_file=tmp_path / "key" if has_key else None)
    found = [one for one in settings.unprotected() if one.startswith("--engine-api-key-file")]
    assert bool(found) is is_unprotected
    assert not found or "e:8000" in found[0]


@pytest.mark.parametrize(
    ("http", "advertised", "reached_at"),
    [
        ("10.0.0.3:7602", "", "10.0.0.3:7602"),
        ("10.0.0.3:7602", "http://10.0.0.9:8000", "10.0.0.3:7602"),
        ("0.0.0.0:7602", "http://10.0.0.9:8000", "10.0.0.9:7602"),
        ("[::]:7602", "http://engine:8000", "engine:7602"),
        ("0.0.0.0:7602", "", ""),
        ("10.0.0.3:0", "", ""),
    ],
)
def test_under_which_address_others_reach_its_port(http, advertised, reached_at):
    """Where it listens on all of them, it is that of the engine beside it."""
    assert made(http=http, advertise_url=advertised or None).reached_at() == reached_at


def test_a_port_with_tls_is_reached_by_its_scheme(tmp_path):
    files = {"http_tls_cert": tmp_path / "c", "http_tls_key": tmp_path / "k"}
    assert made(http="10.0.0.3:7602", **files).reached_at() == "https://10.0.0.3:7602"
    assert made(http="0.0.0.0:7602", **files).reached_at() == ""


def test_pages_are_open_to_others_only_if_that_was_asked_for(tmp_path):
    """A2 deny-by-default: and `readyz`, the status and doctor tell of it."""
    files = {"http_tls_cert": tmp_path / "c", "http_tls_key": tmp_path / "k"}
    other = {"http": "0.0.0.0:7602", "insecure": False}
    assert not made(**other).is_open()
    assert made(**other).unprotected() == ()
    opened = made(http="0.0.0.0:7602", insecure=True)
    assert opened.is_open()
    assert opened.unprotected()[0].startswith("--http 0.0.0.0:7602: anybody may read what is served")
    assert made(insecure=True).unprotected() == ()
    for asked in ({**files, "http_tls_ca": tmp_path / "a"}, {**files, "http_token_file": tmp_path / "t"}):
        assert not made(http="0.0.0.0:7602", insecure=True, **asked).is_open()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"http_tls_cert": "c"}, "--http-tls-cert and --http-tls-key go together"),
        ({"http_tls_ca": "a"}, "--http-tls-ca checks clients' certificates, so it needs --http-tls-cert"),
        ({"http": "0.0.0.0:7602", "http_token_file": "t"}, "--http-token-file needs --http-tls-cert"),
    ],
)
def test_flags_of_the_port_go_together(given, told):
    with pytest.raises(ValidationError, match=told):
        made(**given)


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("", {}),
        ("gpu=a10", {"gpu": "a10"}),
        ("gpu=a10,zone=", {"gpu": "a10", "zone": ""}),
        ("gpu=a=b,", {"gpu": "a=b"}),
        ({"gpu": "a10"}, {"gpu": "a10"}),
    ],
)
def test_labels_are_pairs(text, labels):
    assert made(labels=text).labels == labels


@pytest.mark.parametrize("text", ["gpu", "=a10", "gpu=a10,zone", "gpu=a10,=b"])
def test_one_that_is_no_pair_is_refused_whatever_stands_beside_it(text):
    """A replica with other labels than were meant would serve what others are to serve."""
    with pytest.raises(ValidationError, match="is not k=v,k=v"):
        made(labels=text)
