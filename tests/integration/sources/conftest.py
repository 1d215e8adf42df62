"""Web servers with a certificate of their own authority, and stores that may read from them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from registry.cli import source_reader
from registry.cli.local_adapters import base_here, base_message
from registry.cli.main import run
from registry.etcd3.options import TlsFiles
from registry.sources.allowed import RemoteOptions
from registry.sources.base import ArtifactError, SourceLimits
from registry.sources.credentials import Credentials
from registry.sources.credentials_file import read_credentials
from registry.v1 import registry_pb2 as pb
from sidecar.artifacts import ingest
from sidecar.artifacts.store import LocalStore
from sidecar.artifacts.types import ArtifactRef
from tests.corpus.drafts import LLAMA
from tests.support.adapters import adapter_config, adapter_weights
from tests.support.fake_admin import FakeAdmin, applied, connected
from tests.support.tls import Authority
from tests.support.web import Site, serving

CONFIG, WEIGHTS = adapter_config(8), adapter_weights(8, 1, hidden=512, layers=4)
# For sources that keep nobody waiting, on any machine; and for those that do, which end as fast in the same way.
PATIENT = SourceLimits(connect_seconds=60, idle_seconds=60, pace_seconds=60)
QUICK = SourceLimits(connect_seconds=60, idle_seconds=0.5, pace_seconds=0.5)

OpenStore = Callable[..., LocalStore]


@pytest.fixture(scope="session")
def certificate(tmp_path_factory) -> TlsFiles:
    """A server's certificate, for 127.0.0.1 and localhost."""
    return Authority(tmp_path_factory.mktemp("tls"), "test").issue("web", host="IP:127.0.0.1,DNS:localhost")


@pytest.fixture
def web(certificate, monkeypatch) -> Iterator[Site]:
    """A server with TLS, whose authority is trusted, with an adapter at /team/a/."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.ca))
    with serving(Site(), certificate) as site:
        site.put("/team/a/", CONFIG, WEIGHTS)
        yield site


@pytest.fixture
def other(certificate) -> Iterator[Site]:
    """Another server with TLS."""
    with serving(Site(), certificate) as site:
        yield site


@pytest.fixture
def open_store(tmp_path) -> Iterator[OpenStore]:
    """Opens the store of a host; its credentials are given as they stand in the file."""
    opened: list[LocalStore] = []

    def open_one(
        *allowed: str,
        credentials: dict[str, Any] | None = None,
        replica: str = "r1",
        limits: SourceLimits = PATIENT,
        **remote: Any,
    ) -> LocalStore:
        file = tmp_path / "credentials.json"
        file.write_text(json.dumps(credentials or {}))
        options = RemoteOptions(Credentials(read_credentials(file)), limits=limits, **remote)
        opened.append(LocalStore(tmp_path / "store", replica, allowed, remote=options))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


def ref(uri: str, credentials: str | None = None) -> ArtifactRef:
    """A reference that is not pinned."""
    return ArtifactRef(uri, None, credentials=credentials, pin_key="p/a@1")


async def refusal(store: LocalStore, uri: str, credentials: str | None = None) -> ArtifactError:
    """The error of a staging, which leaves nothing behind."""
    with pytest.raises(ArtifactError) as refused:
        await store.ensure(ref(uri, credentials))
    assert left_behind(store) == []
    return refused.value


def left_behind(store: LocalStore) -> list[Path]:
    """What a failed staging must not leave."""
    root = store._layout.root
    return [*(root / "tmp").iterdir(), *(root / "adapters").iterdir()]


def content(path: str) -> tuple[bytes, bytes]:
    """The two files of a staged adapter, beside which there is nothing."""
    folder = Path(path)
    assert len(list(folder.iterdir())) == 2
    return (folder / "adapter_config.json").read_bytes(), (folder / "adapter_model.safetensors").read_bytes()


@pytest.fixture
def base(tmp_path) -> Path:
    """A base model that the adapters of LLAMA fit."""
    return LLAMA.write_base(tmp_path / "base")


@pytest.fixture
def patient_desk(monkeypatch) -> None:
    """A command line that waits for sources on any machine."""
    monkeypatch.setattr(source_reader, "_LIMITS", PATIENT)


@pytest.fixture
def sent_uris() -> list[str]:
    """The URIs of sources that `apply` sent."""
    return []


@pytest.fixture
def apply(base, capsys, tmp_path, sent_uris, patient_desk):
    """Applies one adapter; gives the exit code, the digest that was sent, and standard error."""
    admin = FakeAdmin()
    pool = pb.Pool(name="dev", base_models=["tiny"], base=base_message(base_here(base)))
    admin.answers |= {"ApplyAdapters": [applied], "GetPool": [pool]}

    def call(uri: str, *more: str) -> tuple[int, str | None, str]:
        document = {
            "apiVersion": "loraplane/v1",
            "kind": "Adapter",
            "metadata": {"name": "sql", "pool": "dev"},
            "spec": {"source": {"uri": uri}},
        }
        (tmp_path / "m.yaml").write_text(json.dumps(document))
        with connected(admin) as address:
            code = run(["--admin", address, "apply", "-f", str(tmp_path / "m.yaml"), *more])
        sources = [change.upsert.spec.source for one in admin.asked("ApplyAdapters") for change in one.changes]
        if sources:
            sent_uris.append(sources[-1].uri)
        return int(code), sources[-1].digest if sources else None, capsys.readouterr().err

    return call


@pytest.fixture
def fetched_alone(monkeypatch) -> None:
    """Sources are not asked for their version, so that the requests of a fetch can be counted."""
    monkeypatch.setattr(ingest, "fetch_unproven", lambda source, receive, stop: source.fetch(receive, stop))
