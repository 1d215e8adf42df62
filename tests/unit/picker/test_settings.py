"""Settings of the picker: flags, what does not fit together, and what they come to."""

from __future__ import annotations

import pytest

from registry.client.credentials import TokenFile
from registry.picker.settings import PickerSettings
from registry.runtime.flags import read_settings


def read(*arguments: str) -> PickerSettings:
    return read_settings(PickerSettings, program="x", summary="", arguments=arguments, environment={})


def test_flags_become_rules():
    found = read("--pool", "a,b", "--alias-separators", "-", "--fail-open", "--refuse-after", "3", "--token-file", "/t")
    assert (found.pool, found.rules().separators, found.rules().fail_open) == (("a", "b"), "", True)
    assert (found.rules().refuse_after_seconds, str(found.token())) == (3.0, str(TokenFile(found.token_file or "")))
    plain = read("--pool", "a")
    assert (plain.tls(), plain.token(), bool(plain.admin_tls()), plain.rules().separators) == (None, None, False, ":|")
    secure = read("--pool", "a", "--listen", "0.0.0.0:1", "--tls-cert", "/c", "--tls-key", "/k", "--tls-ca", "/a")
    assert secure.tls() is not None


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "--pool is missing"),
        (["--pool", ","], "--pool:"),
        (["--pool", "a", "--tls-cert", "/c"], "--tls-cert and --tls-key go together"),
        (["--pool", "a", "--admin-tls-key", "/c"], "--admin-tls-cert and --admin-tls-key go together"),
        (["--pool", "a", "--tls-ca", "/c"], "--tls-ca checks gateways' certificates"),
        (["--pool", "a", "--alias-separators", "x"], "--alias-separators takes"),
        (["--pool", "a", "--max-body-bytes", "3"], "--max-body-bytes:"),
        (["--pool", "a", "--listen", "0.0.0.0:7603"], "--insecure where the network may be trusted"),
    ],
)
def test_what_is_wrong_is_named_by_its_flag(capsys, arguments, complaint):
    with pytest.raises(SystemExit) as caught:
        read(*arguments)
    assert (caught.value.code, complaint in capsys.readouterr().err) == (2, True)
