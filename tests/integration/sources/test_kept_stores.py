"""Object stores that one staging leaves to the next."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from registry.sources import object_stores
from tests.integration.sources.conftest import CONFIG, WEIGHTS, content, ref, refusal
from tests.support.clouds import CLOUDS, KEY, ByPath, Cloud, blob, guarded, plain
from tests.support.web import Site, serving

BUCKET = "acme-loras"


@pytest.fixture
def site() -> Iterator[Site]:
    with serving(Site(answers=ByPath())) as site:
        for version in range(6):
            site.put(f"/{BUCKET}/v{version}/", CONFIG, WEIGHTS)
        yield site


@pytest.mark.usefixtures("fetched_alone")
@pytest.mark.parametrize("cloud", CLOUDS, ids=lambda one: one.name)
async def test_stagings_in_a_row_share_a_connection(site, open_store, tmp_path, monkeypatch, cloud):
    """X1: every request is signed as ever, and nothing that is kept shows with what."""
    monkeypatch.setattr(object_stores, "KEPT_TIMEOUT", "600s")
    secret = tmp_path / "secret"
    secret.write_text(cloud.secret)
    site.answers |= dict.fromkeys(site.files, guarded(cloud, blob))
    store = open_store(f"{cloud.scheme}://{BUCKET}", credentials={"acme": cloud.entry(site, BUCKET, secret)})
    for version in range(6):
        staged = await store.ensure(ref(f"{cloud.scheme}://{BUCKET}/v{version}/", "acme"))
        assert content(staged.path) == (CONFIG, WEIGHTS)
    assert len([path for path in site.paths if plain(path) in site.files]) == 12
    assert len(site.accepted) == 1
    shown = str(vars(store.trust.sources._stores))
    assert [secret for secret in ("CANARY", KEY) if secret in shown] == []


class Names:
    """A name server: where each connection that is made by name leads, and what is said of that name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, port: int) -> None:
        self.answers: list[str] = []
        self._port = port
        monkeypatch.setattr("socket.getaddrinfo", self._resolve)
        monkeypatch.setattr("socket.create_connection", self._connect)

    def _resolve(self, _: object, port: int, **__: object) -> list[tuple[object, ...]]:
        address = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    def _connect(self, address: tuple[str, int], timeout: float, **_: object) -> socket.socket:
        assert address == ("10.0.0.9", self._port)
        made = socket.socket()
        made.settimeout(timeout)
        made.connect(("127.0.0.1", self._port))
        return made


@pytest.fixture
def names(site, monkeypatch) -> Names:
    """Those by which the site is found at 10.0.0.9."""
    return Names(monkeypatch, int(site.url.rpartition(":")[2]))


def named(cloud: Cloud, site: Site, secret: Path) -> dict[str, Any]:
    """The credentials, with the site's name in place of its address."""
    secret.write_text(cloud.secret)
    entry = cloud.entry(site, BUCKET, secret)
    entry["store"]["endpoint"] = site.url.replace("127.0.0.1", "store.test")
    return {"acme": entry}


@pytest.mark.parametrize("cloud", CLOUDS, ids=lambda one: one.name)
async def test_a_store_that_is_named_is_judged_where_the_connection_is_made(site, open_store, tmp_path, names, cloud):
    """Fault 28: what its client sends arrives as ever, signatures and all."""
    names.answers = ["10.0.0.9"]
    site.answers |= dict.fromkeys(site.files, guarded(cloud, blob))
    store = open_store(f"{cloud.scheme}://{BUCKET}", credentials=named(cloud, site, tmp_path / "secret"))
    for version in range(2):
        staged = await store.ensure(ref(f"{cloud.scheme}://{BUCKET}/v{version}/", "acme"))
        assert content(staged.path) == (CONFIG, WEIGHTS)


@pytest.mark.usefixtures("fetched_alone")
@pytest.mark.parametrize(
    ("answers", "reason"),
    [(["127.0.0.1"], "address_not_allowed"), (["10.0.0.9", "169.254.169.254"], "source_io")],
    ids=["at once", "later"],
)
async def test_a_store_whose_name_leads_to_the_machine_is_not_asked(site, open_store, tmp_path, names, answers, reason):
    """Fault 28, DNS rebinding: the name server's second answer is judged as the first."""
    names.answers = answers
    store = open_store(f"gs://{BUCKET}", credentials=named(CLOUDS[0], site, tmp_path / "secret"))
    assert (await refusal(store, f"gs://{BUCKET}/v0/", "acme")).reason == reason
    assert site.accepted == []
