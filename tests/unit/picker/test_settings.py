"""Settings of the picker: flags, what does not fit together, and what they come to."""

from __future__ import annotations

import pytest

from registry.client.credentials import TokenCommand, TokenFile
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
    assert (secure.tls() is not None, secure.http_tls()) == (True, None)


def test_a_port_for_pages_may_have_tls_and_a_token_may_come_from_a_program():
    found = read("--pool", "a", "--http", "0.0.0.0:1", "--http-tls-cert", "/c", "--http-tls-key", "/k")
    assert (str(found.http_tls().certificate), found.unprotected()) == ("/c", ())
    asked = read("--pool", "a", "--token-command", "kubectl 'create token'", "--listen", "0.0.0.0:1", "--insecure")
    assert (asked.token(), len(asked.unprotected())) == (TokenCommand(["kubectl", "create token"]), 1)


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
        (["--pool", "a", "--listen", "0.0.0.0:7603"], "give --tls-cert and --tls-key, or --insecure where the network"),
        (["--pool", "a", "--http", "[::]:7604"], "--http [::]:7604: others could read what is asked for there: give"),
        (["--pool", "a", "--http-tls-cert", "/c"], "--http-tls-cert and --http-tls-key go together"),
        (["--pool", "a", "--http-tls-ca", "/c"], "--http-tls-ca checks clients' certificates"),
        (["--pool", "a", "--http-names", "http://a"], "--http-names: 'http://a' is no host name"),
        (["--pool", "a", "--token-command", "a '"], "--token-command: No closing quotation; quote it as for a shell"),
        (["--pool", "a", "--token-command", "a", "--token-file", "/t"], "name one"),
    ],
)
def test_what_is_wrong_is_named_by_its_flag(capsys, arguments, complaint):
    with pytest.raises(SystemExit) as caught:
        read(*arguments)
    assert (caught.value.code, complaint in capsys.readouterr().err) == (2, True)
