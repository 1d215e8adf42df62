"""The command line over TLS to the real admin service."""

from __future__ import annotations

from tests.integration.cli.conftest import Cli, make_admin
from tests.support.tls import Authority


def test_mutual_tls(etcd, tmp_path):
    """W7 audit-complete: who changed something is whom the certificate names; without a right one nobody comes in."""
    ours, theirs = Authority(tmp_path / "ours", "ours"), Authority(tmp_path / "theirs", "theirs")
    server, alice, mallory = ours.issue("server"), ours.issue("alice"), theirs.issue("mallory")
    admin = make_admin(tmp_path, etcd)
    admin.program.arguments += [
        *("--tls-ca", str(server.ca)),
        *("--tls-cert", str(server.certificate), "--tls-key", str(server.key)),
    ]
    admin.start()
    try:
        cli = Cli(admin, tmp_path)
        known = ["--tls-ca", str(ours.certificate), "--tls-cert", str(alice.certificate), "--tls-key", str(alice.key)]
        assert cli(*known, "pool", "create", "dev", "--base-model", "tiny").code == 0
        assert cli(*known, "apply", "-f", cli.manifest("a")).code == 0
        assert cli.json(*known, "get", "adapter", "a")["updated_by"] == "alice"
        stranger = ["--tls-cert", str(mallory.certificate), "--tls-key", str(mallory.key)]
        for flags in ([], ["--tls-ca", str(ours.certificate), *stranger], ["--tls-ca", str(theirs.certificate)]):
            ran = cli(*flags, "get", "pools", "--timeout", "0.5")
            assert (ran.code, ran.err.count("\n")) == (6, 1)
            assert ran.err.startswith(("error: ADMIN_UNAVAILABLE: ", "error: DEADLINE_EXCEEDED: "))
    finally:
        admin.program.kill()
