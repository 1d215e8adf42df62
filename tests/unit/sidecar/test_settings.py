"""Settings of a sidecar, as they come from flags and the environment."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from registry.runtime.flags import read_settings
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


def read(changes: dict[str, str]) -> SidecarSettings:
    arguments = [part for pair in (REQUIRED | changes).items() for part in pair]
    return read_settings(SidecarSettings, program=PROGRAM, summary=SUMMARY, arguments=arguments, environment={})


def test_the_required_ones_are_enough():
    """What the next test changes is all that is wrong."""
    assert read({}).pool == "p"


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
        ({"--ready-when": "soon"}, ["--ready-when", "any", "served"]),
        ({"--degraded-share": "2"}, ["--degraded-share"]),
        ({"--frob": "x"}, ["unrecognized arguments: --frob x", "--help"]),
    ],
)
def test_a_wrong_one_is_one_line_that_names_it(capsys, changes, words):
    with pytest.raises(SystemExit) as ended:
        read(changes)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert all(word in line for word in words), line


def labels_of(folder, text: object) -> dict[str, str]:
    needed = {"etcd": "127.0.0.1:1", "pool": "p", "replica": "r1", "engine": "http://e:1", "store": folder}
    return dict(SidecarSettings(**needed, insecure=True, labels=text).labels)


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
def test_labels_are_pairs(tmp_path, text, labels):
    assert labels_of(tmp_path, text) == labels


@pytest.mark.parametrize("text", ["gpu", "=a10", "gpu=a10,zone", "gpu=a10,=b"])
def test_one_that_is_no_pair_is_refused_whatever_stands_beside_it(tmp_path, text):
    """A replica with other labels than were meant would serve what others are to serve."""
    with pytest.raises(ValidationError, match="is not k=v,k=v"):
        labels_of(tmp_path, text)
