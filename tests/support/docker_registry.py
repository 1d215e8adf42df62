"""A registry of containers as Debian has it, and what lets users in."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import jwt
import pytest

from tests.support.container_registry import PASSWORD, USER, basic
from tests.support.tls import Authority
from tests.support.waiting import eventually
from tests.support.web import Exchange, Site, serving

_HTPASSWD = f"{USER}:$2b$04$abcdefghijklmnopqrstuuDlwEjrjuS6qq82iEFt8xl3YVCDVVwd2\n"  # cheap to check


@contextmanager
def docker_registry(folder: Path, auth: Mapping[str, Any]) -> Iterator[str]:
    """HOST:PORT of a registry on loopback, with its data in a new folder. The test is skipped where there is none."""
    program = os.environ.get("DOCKER_REGISTRY") or shutil.which("docker-registry")
    if program is None:
        pytest.skip("DOCKER_REGISTRY names no docker-registry, as .ci/run unpacks it from Debian's package")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder.mkdir(parents=True)
    configuration = {
        "version": 0.1,
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        "http": {"addr": f"127.0.0.1:{port}"},
    } | ({"auth": auth} if auth else {})
    (folder / "config.yml").write_text(json.dumps(configuration))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, "serve", str(folder / "config.yml")], stdout=log, stderr=log)
    try:
        asyncio.run(eventually(lambda: _answers(port, process)))
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _answers(port: int, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, "it ended; see its log"
    try:
        return httpx.get(f"http://127.0.0.1:{port}/v2/", trust_env=False).status_code in {200, 401}
    except httpx.HTTPError:
        return False


def by_password(folder: Path) -> Mapping[str, Any]:
    """Lets in who shows the user's password."""
    (folder / "htpasswd").write_text(_HTPASSWD)
    return {"htpasswd": {"realm": "it", "path": str(folder / "htpasswd")}}


@dataclass
class TokenService(Site):
    """Gives the one user tokens for whatever is asked, as the place of a registry's tokens does.

    Attributes:
        folder: for its certificates.
        scopes: that were asked for.
    """

    folder: Path = Path()
    scopes: list[str] = field(default_factory=list)

    @property
    def auth(self) -> Mapping[str, Any]:
        """What makes a registry believe it."""
        bundle = str(self.folder / "ca.pem")
        return {"token": {"realm": f"{self.url}/token", "service": "it", "issuer": "us", "rootcertbundle": bundle}}

    def answer(self, exchange: Exchange) -> None:
        """See `Site.answer`."""
        if exchange.headers.get("Authorization") != basic():
            exchange.send(401)
            return
        asked = parse_qs(urlsplit(exchange.path).query).get("scope", [])
        self.scopes += asked
        access = [_access(scope) for scope in asked]
        now = int(time.time())
        claims = {"iss": "us", "aud": "it", "sub": USER, "nbf": now - 60, "exp": now + 300, "access": access}
        chain = [base64.b64encode(ssl.PEM_cert_to_DER_cert((self.folder / "tokens.pem").read_text())).decode()]
        token = jwt.encode(claims, (self.folder / "tokens.key").read_text(), "ES256", {"x5c": chain})
        exchange.send(200, json.dumps({"token": token, "expires_in": 300}).encode())


def _access(scope: str) -> dict[str, Any]:
    kind, name, actions = scope.split(":")
    return {"type": kind, "name": name, "actions": actions.split(",")}


@contextmanager
def token_service(folder: Path) -> Iterator[TokenService]:
    """A place of tokens on a free port."""
    Authority(folder, "us").issue("tokens")
    with serving(TokenService(folder=folder)) as service:
        assert isinstance(service, TokenService)
        yield service


def docker_login(home: Path, *hosts: str) -> None:
    """Writes a user's password for registries where `docker login` does."""
    (home / ".docker").mkdir(parents=True)
    secret = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    (home / ".docker" / "config.json").write_text(json.dumps({"auths": {host: {"auth": secret} for host in hosts}}))
