"""A secure stack by one command, as a new user has it: TLS, users of etcd, roles, and a command line that fits."""

from __future__ import annotations

import json
import ssl
from http.client import HTTPSConnection
from pathlib import Path

from tests.integration.devstack.conftest import DevStack


def status_of(address: str, authority: Path, own: tuple[Path, Path] | None = None) -> int:
    """Code of the page ``/metrics`` for who shows this."""
    trusted = ssl.create_default_context(cafile=authority)
    if own:
        trusted.load_cert_chain(*own)
    connection = HTTPSConnection(address, timeout=30, context=trusted)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().status
    finally:
        connection.close()


def test_one_command_makes_a_stack_that_asks_who_is_there(dev, tmp_path):
    """A1 named, A4 own-keys: and commands of its owner work at once, here and by the context that it makes."""
    config = {"LORAPLANE_CONFIG": str(tmp_path / "config" / "config.json")}
    up = dev("-o", "json", "dev", "up", "--secure", "--engine", "sim", "--replicas", "1", **config)
    assert up.returncode == 0, up.stderr
    address = {part["name"]: part["address"] for part in json.loads(up.stdout)["parts"]}
    secrets = tmp_path / ".loraplane" / "secrets"
    adapter = tmp_path / ".loraplane" / "adapters" / "sql"
    added = dev("add", "sql", "--source", str(adapter), "--wait")
    assert added.returncode == 0, added.stderr
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    other = DevStack(elsewhere)
    assert "1/1" in other("--context", "dev", "get", "adapters", **config).stdout
    assert [one["name"] for one in json.loads(dev("-o", "json", "top").stdout)["replicas"]] == ["r1"]
    who = other("--admin", address["admin"], "get", "adapters", LORAPLANE_TIMEOUT="1")
    assert who.returncode == 6
    target = ("--etcd", address["etcd"], "--etcd-tls-ca", str(secrets / "etcd-ca.pem"))
    root = ("--etcd-tls-cert", str(secrets / "etcd-root.pem"), "--etcd-tls-key", str(secrets / "etcd-root.key"))
    assert dev("etcd-access", "check", *target, *root).returncode == 0
    replica = [one.replace("etcd-root", "etcd-replica-r1") for one in root]
    assert dev("etcd-access", "check", *target, *replica).returncode == 4
    assert dev("-o", "json", "etcd-access", "enable", *target, *root).stdout.strip() != ""
    services = secrets / "services-ca.pem"
    assert status_of(_pages(tmp_path), services) == 401
    scraper = (secrets / "prometheus.pem", secrets / "prometheus.key")
    assert status_of(_pages(tmp_path), services, scraper) == 200
    assert status_of(address["sidecar-r1"], services, scraper) == 200
    again = dev("-o", "json", "dev", "up", **config)
    assert again.returncode == 0, again.stderr
    assert {part["name"]: part["address"] for part in json.loads(again.stdout)["parts"]} == address
    assert dev("dev", "status").returncode == 0
    assert dev("dev", "down", "--purge", **config).returncode == 0
    assert "dev" not in json.loads(Path(config["LORAPLANE_CONFIG"]).read_text())["contexts"]


def _pages(folder: Path) -> str:
    port = json.loads((folder / ".loraplane" / "stack.json").read_text())["ports"]["admin-http"]
    return f"127.0.0.1:{port}"
