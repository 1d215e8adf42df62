"""A registry of containers in this process, and what fills it, or a real one."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

import httpx

from tests.support.web import Exchange, Site

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
IMAGE_TAR = "application/vnd.oci.image.layer.v1.tar"
IMAGE_TAR_GZIP = "application/vnd.oci.image.layer.v1.tar+gzip"
MODEL_RAW = "application/vnd.cncf.model.weight.v1.raw"
MODEL_CONFIG_RAW = "application/vnd.cncf.model.weight.config.v1.raw"
MODEL_TAR = "application/vnd.cncf.model.weight.v1.tar"
FILE_PATH = "org.cncf.model.filepath"
TITLE = "org.opencontainers.image.title"
IS_FOLDER = "io.deis.oras.content.unpack"
USER, PASSWORD, TOKEN = "puller", "CANARY-password", "CANARY-token"


@dataclass(frozen=True)
class PushedLayer:
    """A layer as it is pushed."""

    media_type: str
    content: bytes
    annotations: Mapping[str, str] = field(default_factory=dict)

    def described(self) -> dict[str, Any]:
        """As a manifest names it."""
        more = {"annotations": dict(self.annotations)} if self.annotations else {}
        return {"mediaType": self.media_type, "digest": sha256(self.content), "size": len(self.content)} | more


def sha256(content: bytes) -> str:
    """The digest of bytes, as registries write it."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def packed(files: Mapping[str, bytes], *, is_gzipped: bool = False) -> bytes:
    """An archive of files by their names."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return gzip.compress(archive.getvalue(), mtime=0) if is_gzipped else archive.getvalue()


CONFIG_BLOB = PushedLayer("application/vnd.oci.empty.v1+json", b"{}")


def manifest_of(layers: Sequence[PushedLayer], **more: Any) -> bytes:
    """The manifest of these layers."""
    value = {"schemaVersion": 2, "mediaType": MANIFEST, "config": CONFIG_BLOB.described()}
    return json.dumps(value | {"layers": [one.described() for one in layers]} | more).encode()


@dataclass
class ContainerRegistry(Site):
    """A registry that asks for nothing, for user and password, or for a token that it gives to whoever has these.

    Attributes:
        asks: for what.
        realm: where it says that tokens are had; empty: here.
        tokens: that count.
    """

    asks: Literal["nothing", "basic", "token"] = "nothing"
    realm: str = ""
    tokens: list[str] = field(default_factory=lambda: [TOKEN])
    is_anonymous: bool = False

    def push(self, repository: str, tag: str, layers: Sequence[PushedLayer], manifest: bytes | None = None) -> str:
        """Puts an artifact there; returns its digest."""
        for layer in layers:
            self.files[f"/v2/{repository}/blobs/{sha256(layer.content)}"] = layer.content
        return self.push_manifest(repository, tag, manifest if manifest is not None else manifest_of(layers))

    def push_manifest(self, repository: str, tag: str, content: bytes) -> str:
        """Puts a manifest there, whatever it is; returns its digest."""
        digest = sha256(content)
        for reference in (tag, digest):
            self.files[f"/v2/{repository}/manifests/{reference}"] = content
        return digest

    def answer(self, exchange: Exchange) -> None:
        """See `Site.answer`."""
        shown = exchange.headers.get("Authorization", "")
        special = self.answers.get(exchange.path)
        if urlsplit(exchange.path).path == "/token" and special is not None:
            special(exchange)
        elif urlsplit(exchange.path).path == "/token":
            self._give_token(exchange, shown)
        elif self.asks == "basic" and shown != basic():
            exchange.send(401, WWW_Authenticate='Basic realm="it"')
        elif self.asks == "token" and shown.removeprefix("Bearer ") not in self.tokens:
            realm = self.realm or f"{self.url}/token"
            wanted = f'Bearer realm="{realm}",service="it",scope="repository:other/secret:pull,push"'
            exchange.send(401, WWW_Authenticate=wanted)
        else:
            super().answer(exchange)

    def _give_token(self, exchange: Exchange, shown: str) -> None:
        asked = parse_qs(urlsplit(exchange.path).query)
        is_right = asked.get("service") == ["it"] and asked.get("scope") == ["repository:acme/sql:pull"]
        if not is_right or (shown != basic() and not (self.is_anonymous and not shown)):
            exchange.send(401)
        else:
            exchange.send(200, json.dumps({"token": self.tokens[-1], "expires_in": 60}).encode())


def basic() -> str:
    """The header of the one user."""
    return "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()


def push_over_http(url: str, repository: str, tag: str, layers: Sequence[PushedLayer], headers: dict[str, str]) -> str:
    """Pushes an artifact to a registry as its clients do; returns its digest."""
    with httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=30) as client:
        for layer in (CONFIG_BLOB, *layers):
            begun = client.post(f"/v2/{repository}/blobs/uploads/").raise_for_status()
            upload = httpx.URL(begun.headers["Location"]).copy_merge_params({"digest": sha256(layer.content)})
            octets = {"Content-Type": "application/octet-stream"}
            client.put(upload, content=layer.content, headers=octets).raise_for_status()
        content = manifest_of(layers)
        there = f"/v2/{repository}/manifests/{tag}"
        client.put(there, content=content, headers={"Content-Type": MANIFEST}).raise_for_status()
    return sha256(content)
