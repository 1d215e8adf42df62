"""X1 secret-free, over a whole sidecar: canaries are looked for wherever something could have been written."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from registry.etcd3.ops import Put
from registry.model.keys import Keys
from registry.model.records import AdapterRecord, AdapterSpec, SourceSpec
from tests.support.fleet import POOL, Hand, Sidecar, SimulatedEngine
from tests.support.http_client import http_client
from tests.support.records import written
from tests.support.waiting import eventually
from tests.support.web import Site

CANARY = "CANARY"
REFUSED = {
    "bad": "source_denied",
    "odd": "credential_unavailable",
    "cloud": "credential_unavailable",
    "unknown": "unknown_credential",
    "elsewhere": "address_not_allowed",
}


def record(name: str, uri: str, credentials: str | None) -> AdapterRecord:
    return written(name, AdapterSpec(source=SourceSpec(uri=uri), credentials=credentials))


def arguments(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


@pytest.fixture
async def sidecar(etcd, tmp_path: Path, web: Site, certificate) -> AsyncIterator[Sidecar]:
    """A sidecar that knows a good credential, one that is refused, and two that cannot be sent."""
    engine = SimulatedEngine(tmp_path)
    await engine.start()
    credentials = {
        name: {"kind": "env", "variable": f"{name.upper()}_TOKEN", "prefixes": [f"{web.url}/team"]}
        for name in ("good", "bad", "odd")
    }
    credentials["cloud"] = {"kind": "env", "variable": "CLOUD_KEY", "prefixes": ["s3://team"]}
    (tmp_path / "credentials.json").write_text(json.dumps(credentials))
    flags = ["--allow-source", f"{web.url}/team", "--allow-source", "s3://team"]
    flags += ["--credentials", str(tmp_path / "credentials.json")]
    sidecar = Sidecar(tmp_path, etcd.endpoints, etcd.prefix, engine.url, extra=flags)
    key = {"access_key_id": f"id{CANARY}\n", "secret_access_key": f"key{CANARY}"}
    tokens = {
        "CLOUD_KEY": json.dumps(key),
        "GOOD_TOKEN": f"good{CANARY}",
        "BAD_TOKEN": f"bad{CANARY}",
        "ODD_TOKEN": f"odd{CANARY}\u00fc",
    }
    sidecar.program.environment = tokens | {"SSL_CERT_FILE": str(certificate.ca)}
    yield sidecar
    sidecar.program.kill()
    engine.program.kill()


async def test_no_secret_is_written_anywhere(etcd, etcd_client, tmp_path, web, sidecar):
    """X1, R8: etcd, status, metrics, logs, arguments and every file of the store, over successes and failures."""

    def answer(exchange: Any) -> None:
        if exchange.headers.get("Authorization") == f"Bearer good{CANARY}":
            web.serve(exchange)
        else:
            exchange.send(403, f"you sent {exchange.headers.get('Authorization')}".encode())

    web.answers = dict.fromkeys(web.files, answer)
    web.answers["/team/r/adapter_config.json"] = lambda exchange: exchange.send(
        302, Location=f"https://169.254.169.254/x?X-Signature={CANARY}"
    )
    hand = Hand(etcd_client, Keys(etcd.prefix), tmp_path)
    await hand.pool()
    await hand.commit(
        *(
            Put(hand.keys.adapter(POOL, one.name), one.to_bytes())
            for one in (
                record("good", f"{web.url}/team/a/", "good"),
                record("bad", f"{web.url}/team/a/", "bad"),
                record("odd", f"{web.url}/team/a/", "odd"),
                record("cloud", "s3://team/a/", "cloud"),
                record("unknown", f"{web.url}/team/a/", "nobody"),
                record("elsewhere", f"{web.url}/team/r/", "good"),
            )
        )
    )
    sidecar.program.start()

    async def has_settled() -> bool:
        return await sidecar.failed() == REFUSED and (await sidecar.status())["served"]["count"] == 1

    await eventually(has_settled)

    async def reported() -> str:
        stored = str(await etcd_client.list_prefix(f"{etcd.prefix}/".encode()))
        assert {word for word in ("/status/", *REFUSED.values()) if word not in stored} == set()
        return stored

    # A sidecar says it there a moment later than on its own page.
    stored = await eventually(reported)
    sinks = {"etcd": stored, **await told_by(sidecar)}
    assert {name for name, text in sinks.items() if CANARY in text} == set()
    assert all(len(text) > 20 for text in sinks.values())
    assert f"Bearer good{CANARY}" in str(web.seen)  # it was really used


async def told_by(sidecar: Sidecar) -> dict[str, str]:
    """All that a sidecar says and keeps on this host; it is ended, since files of one that runs come and go."""
    async with http_client(base_url=sidecar.http, timeout=60) as client:
        pages = [(await client.get(path)).text for path in ("/status", "/readyz", "/metrics", "/livez")]
    argv = arguments(sidecar.program.pid)
    sidecar.program.kill()
    return {
        "http": str(pages),
        "log": sidecar.program.log.read_text(),
        "argv": argv,
        "store": "".join(path.read_text(errors="replace") for path in sidecar.store.rglob("*") if path.is_file()),
    }
