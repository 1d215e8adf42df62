"""The systemd units of the daemons, as far as systemd itself can tell without starting them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from registry.admin.settings import AdminSettings
from registry.runtime.flags import read_settings
from sidecar.settings import DRAIN_SECONDS, SidecarSettings
from tests.integration.compose.compose_file import FOLDER

UNITS = {
    "loraplane-admin": ("loraplane-admin.service", AdminSettings),
    "loraplane-sidecar": ("loraplane-sidecar@.service", SidecarSettings),
}
needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="Skipped: systemd-analyze is not here"
)


def text_of(program: str) -> str:
    return (FOLDER / "systemd" / UNITS[program][0]).read_text()


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, check=False, timeout=60)


def here(program: str, folder: Path) -> Path:
    """The unit with the programs of this environment in place of those of /opt/loraplane."""
    unit = folder / UNITS[program][0].replace("@.", "@r1.")
    unit.write_text(text_of(program).replace("/opt/loraplane/bin", str(Path(sys.executable).parent)))
    return unit


@needs_systemd
@pytest.mark.parametrize("program", UNITS)
def test_systemd_takes_every_line_of_a_unit(program, tmp_path):
    done = analyze("verify", "--man=no", str(here(program, tmp_path)))
    said = [line for line in done.stderr.splitlines() if "loraplane" in line]
    assert (done.returncode, said) == (0, [])


@needs_systemd
@pytest.mark.parametrize("program", UNITS)
def test_systemd_finds_a_unit_little_exposed(program, tmp_path):
    done = analyze("security", "--offline=true", "--threshold=25", str(here(program, tmp_path)))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("program", UNITS)
def test_every_variable_of_a_unit_is_a_setting(program):
    names = set(re.findall(r"\bLORAPLANE_([A-Z_]+)", text_of(program)))
    assert {name.lower() for name in names} <= set(UNITS[program][1].model_fields)
    required = {name for name, field in UNITS[program][1].model_fields.items() if field.is_required()}
    assert {name.upper() for name in required} <= names


@pytest.mark.parametrize("program", UNITS)
def test_a_daemon_starts_with_the_variables_that_its_unit_names_at_least(program):
    """Nothing that they leave unprotected keeps it from that."""
    names = (
        *re.findall(r"^#.*?\bLORAPLANE_.*$", text_of(program), re.MULTILINE),
        *re.findall("^Environment=.*", text_of(program), re.MULTILINE),
    )
    values = dict(re.findall(r"(LORAPLANE_[A-Z_]+)(?:=(\S+))?", " ".join(names)))
    environment = {name: value or "/etc/loraplane/file.pem" for name, value in values.items()}
    settings = UNITS[program][1]
    told = read_settings(settings, program=program, summary="", arguments=[], environment=environment)
    assert told.unprotected() == ()


def test_a_sidecar_may_hand_over_and_give_its_folders_to_the_group():
    """R20 drain, R7: SIGTERM goes to the sidecar alone, SIGKILL later than its own limit; engines read by the group."""
    lines = text_of("loraplane-sidecar").splitlines()
    (seconds,) = (int(line.partition("=")[2]) for line in lines if line.startswith("TimeoutStopSec="))
    assert seconds >= DRAIN_SECONDS + 5
    assert "KillMode=mixed" in lines
    assert "StateDirectoryMode=2750" in lines
    assert not any(line.startswith("RestrictSUIDSGID=") for line in lines)
