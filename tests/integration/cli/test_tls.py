"""The command lines over TLS: to the real admin service, and to a real etcd."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import datetime, timedelta, tzinfo

from registry.cli.doctor import collect
from registry.cli.doctor import command as doctor
from registry.etcd3.ops import Put, Txn
from registry.model.keys import Keys
from registry.tools.verify.main import app, decode
from tests.integration.cli.conftest import Cli, make_admin
from tests.support.etcd import make_cluster, running_etcd
from tests.support.tls import Authority, server_flags


class InTwoDays(datetime):
    """A clock that is so far ahead that what was issued for two days has an hour left."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:
        return datetime.now(tz) + timedelta(hours=47)


def test_mutual_tls(etcd, tmp_path, monkeypatch):
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
        patient = "--timeout", "60"  # a handshake may break off on a slow machine; who gives a time tries again
        assert cli(*known, "pool", "create", "dev", "--base-model", "tiny", *patient).code == 0
        assert cli(*known, "apply", "-f", cli.manifest("a"), *patient).code == 0
        assert cli.json(*known, "get", "adapter", "a", *patient)["updated_by"] == "alice"
        monkeypatch.setattr(collect, "_CALL_SECONDS", 60.0)
        findings = cli("-o", "json", *known, "doctor").json["findings"]
        assert not [one for one in findings if one["reason"].startswith("certificate")]
        monkeypatch.setattr(doctor, "datetime", InTwoDays)
        findings = cli("-o", "json", *known, "doctor").json["findings"]
        ends = sorted(
            one["finding"].partition(" ends at")[0] for one in findings if one["reason"] == "certificate_expires"
        )
        assert ends == [
            f"certificate 1 of {ours.certificate}",
            "the certificate of the admin service",
            f"your certificate {alice.certificate}",
        ]
        monkeypatch.undo()
        ca, stranger = ["--tls-ca", str(ours.certificate)], ["--tls-cert", str(mallory.certificate)]
        stranger += ["--tls-key", str(mallory.key)]
        for flags, told in (
            ([], f"the admin service at {admin.address} speaks TLS, and this side does not: give --tls-ca"),
            (ca, f"the admin service at {admin.address} asks for a client certificate: give --tls-cert and --tls-key"),
            ([*ca, *stranger], f"the admin service at {admin.address} refuses the certificate {mallory.certificate}"),
            (
                ["--tls-ca", str(theirs.certificate)],
                f"the certificate of the admin service at {admin.address} is of none",
            ),
        ):
            ran = cli(*flags, "get", "pools", *patient)
            assert (ran.code, ran.err.count("\n"), ran.out) == (6, 1, "")
            assert ran.err.startswith(f"error: ADMIN_UNAVAILABLE: {told}")
        (finding,) = cli("-o", "json", *ca, "doctor").json["findings"]
        assert (finding["reason"], finding["finding"]) == (
            "no_handshake",
            f"the admin service at {admin.address} asks for a client certificate",
        )
    finally:
        admin.program.kill()


async def test_a_history_is_exported_from_an_etcd_that_asks_for_certificates(tmp_path):
    """Whoever checks what was promised needs no other way to etcd than the services have."""
    authority = Authority(tmp_path / "authority", "ours")
    files, out = authority.issue("client"), tmp_path / "history.jsonl"
    flags = server_flags(authority.issue("server"), client_certificates=True)
    async with running_etcd(make_cluster(tmp_path / "etcd", flags=flags, tls=files)) as cluster:
        async with aclosing(cluster.patient()) as client:
            await client.txn(Txn((), (Put(Keys().meta(), b"{}"),)))
        given = ["--etcd", ",".join(cluster.endpoints), "--out", str(out), "--etcd-tls-ca", str(files.ca)]
        given += ["--etcd-tls-cert", str(files.certificate), "--etcd-tls-key", str(files.key)]
        assert not await asyncio.to_thread(app, args=["export", *given], standalone_mode=False)
    assert [step.revision for step in decode(out.read_text().splitlines())] == [2]
