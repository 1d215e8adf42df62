"""Access control of a real admin service: client certificates, tokens, the host's socket, and its HTTP port."""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import time
from asyncio.subprocess import PIPE, STDOUT
from contextlib import aclosing, asynccontextmanager
from importlib.metadata import version
from pathlib import Path

import grpc
import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from grpc import StatusCode
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from loraplane import AsyncRegistry, Tls, TokenFile, Unauthenticated
from registry.access import tokens
from registry.access.tokens import LEEWAY_SECONDS
from registry.admin.server import running
from registry.admin.settings import AdminSettings
from registry.etcd3.options import TlsFiles
from registry.v1 import registry_pb2 as pb
from registry.v1 import registry_pb2_grpc
from tests.support.admin import change_set, put, refusal, works
from tests.support.tls import Authority
from tests.support.waiting import eventually
from tests.support.web import Site, serving

KEY = ec.generate_private_key(ec.SECP256R1())
ACCESS = """apiVersion: loraplane/v1
kind: Access
authentication:
  trustDomains: [ops.example]
  issuers: [{{issuer: https://ci, audiences: [loraplane], prefix: "ci:", algorithms: [ES256], jwks: {jwks}}}]
bindings:
  - {{role: security, users: [spiffe://ops.example/root]}}
  - {{role: pool-operator, users: [spiffe://ops.example/alice]}}
  - {{role: publisher, groups: ["ci:ml-{{tenant}}"], tenants: ["{{tenant}}"]}}
"""


def token(group: str, seconds: float = 600) -> str:
    claims = {"iss": "https://ci", "aud": "loraplane", "sub": "job", "exp": time.time() + seconds, "groups": [group]}
    return jwt.encode(claims, KEY, "ES256", headers={"kid": "k"})


def bearer(group: str, seconds: float = 600) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token(group, seconds)}"),)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"), "ours")


@asynccontextmanager
async def guarded(etcd, folder: Path, authority: Authority, **more: object):
    """A service with an access file: its ports, the certificate of its authority, and its settings."""
    jwk = jwt.algorithms.ECAlgorithm.to_jwk(KEY.public_key(), as_dict=True)
    (folder / "jwks").write_text(json.dumps({"keys": [{**jwk, "kid": "k", "alg": "ES256"}]}))
    (folder / "access.yaml").write_text(ACCESS.format(jwks=folder / "jwks"))
    host = authority.issue("server")
    free = "127.0.0.1:0"
    settings = AdminSettings.model_validate(
        {
            "etcd": ",".join(etcd.endpoints),
            "prefix": etcd.prefix,
            "listen": free,
            "http": free,
            "tls_ca": host.ca,
            "tls_cert": host.certificate,
            "tls_key": host.key,
            "token_listen": free,
            "access": folder / "access.yaml",
            "socket": folder / "socket",
            **more,
        }
    )
    async with running(settings, drain_seconds=0) as ports:
        yield ports, host.ca.read_bytes()


def with_certificate(ports, ca: bytes, own) -> grpc.aio.Channel:
    credentials = grpc.ssl_channel_credentials(ca, own.key.read_bytes(), own.certificate.read_bytes())
    return grpc.aio.secure_channel(f"127.0.0.1:{ports.grpc_port}", credentials)


def stub_of(channel: grpc.aio.Channel):
    return registry_pb2_grpc.AdapterRegistryStub(channel)


async def loraplane(*arguments: str) -> tuple[int, str]:
    """The exit code of one command, and what it writes."""
    program = (sys.executable, "-m", "registry.cli.main", *arguments)
    ran = await asyncio.create_subprocess_exec(*program, stdout=PIPE, stderr=STDOUT)
    told, _ = await ran.communicate()
    return await ran.wait(), told.decode()


@asynccontextmanager
async def lines_of(*arguments: str):
    """What `loraplane` writes while it runs."""
    program = (sys.executable, "-m", "registry.cli.main", *arguments)
    ran = await asyncio.create_subprocess_exec(*program, stdout=PIPE)
    try:
        yield ran.stdout
    finally:
        ran.terminate()
        await ran.wait()


async def test_each_way_in_knows_its_callers(etcd, tmp_path, authority):
    """A1 named: by certificate, token or the host's socket; a sidecar's certificate is no operator's."""
    alice = authority.issue("alice", host="URI:spiffe://ops.example/alice")
    sidecar = authority.issue("sidecar", host="URI:spiffe://sidecars.example/r0,DNS:root")
    async with guarded(etcd, tmp_path, authority) as (ports, ca):
        async with with_certificate(ports, ca, alice) as channel:
            stub = stub_of(channel)
            await eventually(lambda: works(stub))
            await stub.CreatePool(pb.CreatePoolRequest(pool=pb.Pool(name="p", base_models=["b"])))
            told = await stub.WhoAmI(pb.WhoAmIRequest())
            assert (told.principal, told.credential) == ("spiffe://ops.example/alice", "certificate")
            refused = await refusal(stub.ApplyAdapters(change_set(put("acme/a"))))
            assert (refused.code, refused.reason) == (StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED")
        async with with_certificate(ports, ca, sidecar) as channel:
            refused = await refusal(stub_of(channel).ListPools(pb.ListPoolsRequest()))
            assert refused.code is StatusCode.UNAUTHENTICATED
        secure = grpc.ssl_channel_credentials(ca)
        async with grpc.aio.secure_channel(f"127.0.0.1:{ports.token_port}", secure) as channel:
            stub = stub_of(channel)
            reply = await stub.ApplyAdapters(change_set(put("acme/a")), metadata=bearer("ml-acme"))
            assert reply.results[0].adapter.updated_by == "ci:job"
            for metadata, code in (
                (bearer("ml-other"), StatusCode.PERMISSION_DENIED),
                (bearer("ml-acme", -60), StatusCode.UNAUTHENTICATED),
                ((), StatusCode.UNAUTHENTICATED),
            ):
                refused = await refusal(stub.ApplyAdapters(change_set(put("acme/a", priority=3)), metadata=metadata))
                assert refused.code is code
        async with grpc.aio.insecure_channel(f"unix:{tmp_path / 'socket'}") as channel:
            told = await stub_of(channel).WhoAmI(pb.WhoAmIRequest())
            assert told.principal.startswith("loraplane:host:")
            await stub_of(channel).ApplyAdapters(change_set(put("other/b")))
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{ports.http_port}") as client:
            assert (await client.get("/livez")).status_code == 200
            assert (await client.get("/v1/residency?pool=p")).status_code == 401
            answer = await client.get("/v1/residency?pool=p", headers=dict(bearer("ml-acme")))
            assert [one["name"] for one in answer.json()["adapters"]] == ["acme/a"]
            assert (await client.get("/v1/models")).status_code == 401
            answer = await client.get("/v1/models", headers=dict(bearer("ml-acme")))
            assert (answer.status_code, answer.json()) == (200, {"object": "list", "data": []})
    assert not (tmp_path / "socket").exists()


async def test_pages_over_tls_know_certificates_and_tokens(etcd, tmp_path, authority):
    """A1 named: of the HTTP port too, where nobody has to show a certificate; health answers everybody."""
    host = authority.issue("pages")
    own = {"http_tls_ca": host.ca, "http_tls_cert": host.certificate, "http_tls_key": host.key}
    alice = authority.issue("alice", host="URI:spiffe://ops.example/alice")
    sidecar = authority.issue("sidecar", host="URI:spiffe://sidecars.example/r0,DNS:root")
    async with guarded(etcd, tmp_path, authority, **own) as (ports, _):

        async def status(path: str, shown: TlsFiles | None = None, headers: tuple = ()) -> int:
            trusted = ssl.create_default_context(cafile=host.ca)
            if shown:
                trusted.load_cert_chain(shown.certificate, shown.key)
            async with httpx.AsyncClient(base_url=f"https://127.0.0.1:{ports.http_port}", verify=trusted) as client:
                return (await client.get(path, headers=dict(headers))).status_code

        assert [await status("/livez"), await status("/metrics")] == [200, 401]
        assert await status("/metrics", headers=bearer("ml-acme")) == 200
        assert await status("/v1/residency", alice) == 403  # a pool operator
        assert await status("/metrics", sidecar) == 401
    with pytest.raises(httpx.HTTPError):
        async with httpx.AsyncClient() as client:
            await client.get(f"http://127.0.0.1:{ports.http_port}/livez")


async def test_strangers_are_told_of_health_and_not_of_methods(etcd, tmp_path, authority):
    """A1 named: gRPC's own services have no verb, so that nothing is asked about their callers."""
    for number, is_told in enumerate((False, True)):
        (tmp_path / f"{number}").mkdir()
        async with guarded(etcd, tmp_path / f"{number}", authority, reflection=is_told) as (ports, ca):
            secure = grpc.ssl_channel_credentials(ca)
            async with grpc.aio.secure_channel(f"127.0.0.1:{ports.token_port}", secure) as channel:
                assert await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
                stub = reflection_pb2_grpc.ServerReflectionStub(channel)
                asked = stub.ServerReflectionInfo()
                if is_told:
                    await asked.write(reflection_pb2.ServerReflectionRequest(list_services=""))
                    assert (await asked.read()).HasField("list_services_response")
                else:  # a request that is on its way when the refusal comes would be told as an internal error
                    assert (await refusal(asked.read())).code is StatusCode.UNIMPLEMENTED


async def test_programs_and_the_command_line_show_tokens(etcd, tmp_path, authority, monkeypatch):
    """A1 named, A6 rotates: a file that is replaced is enough, also for a stream that goes on for ever.

    A stream ends when its token does: one of a program that takes no new one is told so.
    """
    monkeypatch.setenv("LORAPLANE_CONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("LORAPLANE_TIMEOUT", "60")
    file = tmp_path / "token"

    async with guarded(etcd, tmp_path, authority) as (ports, ca):
        address, tls = f"127.0.0.1:{ports.token_port}", Tls(ca=authority.certificate)
        known = "--admin", address, "--tls-ca", str(authority.certificate), "--token-file", str(file)
        host = "--admin", f"unix:{tmp_path / 'socket'}"
        assert (await loraplane(*host, "pool", "create", "p", "--base-model", "b"))[0] == 0
        assert (await loraplane(*host, "auth", "can-i", "require", "p", "-v"))[1].startswith("yes: security")
        ends = time.time() + 15  # time enough for a busy machine to begin what goes on after that
        file.write_text(first := token("ml-acme", 15 - LEEWAY_SECONDS))
        async with (
            AsyncRegistry(address, tls=tls, token=TokenFile(file)) as registry,
            grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(ca)) as channel,
        ):
            await registry.publish("s3://b/a", "acme/a", "p", digest="sha256:" + "0" * 64, wait=False)
            assert (await registry.get("acme/a", "p")).updated_by == "ci:job"
            shown = (("authorization", f"Bearer {first}"),)
            answers = stub_of(channel).WatchAdapters(pb.WatchAdaptersRequest(pool="p"), metadata=shown)
            assert (await answers.read()).snapshot
            watched = ("get", "adapters", "--pool", "p", "-w", "-o", "json")
            async with aclosing(registry.residency("p")) as states, lines_of(*known, *watched) as lines:
                assert [*(await anext(states)).adapters] == ["acme/a"]
                assert json.loads(await lines.readline())["item"]["name"] == "acme/a"
                file.write_text(token("ml-acme"))
                await asyncio.sleep(max(0.0, ends + 1 - time.time()))  # the one that the streams began with ends
                assert (await refusal(answers.read())).code is StatusCode.UNAUTHENTICATED
                await registry.publish("s3://b/b", "acme/b", "p", digest="sha256:" + "0" * 64, wait=False)
                while [*(await anext(states)).adapters] != ["acme/a", "acme/b"]:
                    pass
                # The next line of a watch that begins anew, too: nothing is told twice.
                assert json.loads(await lines.readline())["item"]["name"] == "acme/b"
        agents = {one["user_agent"] for one in json.loads((await loraplane(*host, "audit", "-o", "json"))[1])["items"]}
        assert {one.partition(" ")[0] for one in agents} == {f"loraplane/{version('loraplane')}"}
        code, out = await loraplane(*known, "auth", "whoami", "-o", "json")
        told = json.loads(out)
        assert (code, told["principal"], told["credential"], told["groups"]) == (0, "ci:job", "token", ["ci:ml-acme"])
        assert [(one["role"], one["tenants"]) for one in told["roles"]] == [("publisher", ["acme"])]
        assert await loraplane(*known, "auth", "can-i", "apply", "acme/c", "-v") == (
            0,
            "yes: publisher by binding 3\n",
        )
        assert await loraplane(*known, "auth", "can-i", "apply", "other/c") == (4, "no\n")
        assert await loraplane(*known, "auth", "can-i", "drain", "r", "--pool", "p", "-v") == (
            4,
            "no: the role operator allows it\n",
        )
        code, out = await loraplane(*known, "auth", "can-i", "drain", "--as", "x")
        assert (code, out.startswith("error: PERMISSION_DENIED: ")) == (4, True)
        code, out = await loraplane(*known, "delete", "acme/a", "--yes", "--pool", "other")
        assert (code, "`loraplane auth whoami` lists yours" in out) != (0, False)
        file.write_text(token("ml-acme", -60))
        code, out = await loraplane(*known, "get", "pools")
        assert (code, out.count("\n"), "it has expired" in out) == (4, 1, True)
        async with AsyncRegistry(address, tls=tls, token=TokenFile(file)) as registry:
            with pytest.raises(Unauthenticated):
                await registry.get("acme/a", "p")


async def test_who_shows_no_certificate_is_told_to(etcd, tmp_path, authority, monkeypatch):
    monkeypatch.setenv("LORAPLANE_CONFIG", str(tmp_path / "none"))
    async with guarded(etcd, tmp_path, authority) as (ports, _):
        away = "--admin", f"127.0.0.1:{ports.grpc_port}", "--tls-ca", str(authority.certificate)
        begun = time.monotonic()
        code, out = await loraplane(*away, "get", "pools")
        asked = f"ADMIN_UNAVAILABLE: the admin service at {away[1]} asks for a client certificate: give --tls-cert and"
        assert (code, asked in out, time.monotonic() - begun < 30) == (6, True, True)


async def test_an_issuer_of_ones_own_authority_is_asked_for_its_keys(authority, monkeypatch):
    """SSL_CERT_FILE names the authorities, here as for sources; it may change while we run."""
    monkeypatch.setattr(tokens, "FETCH_SECONDS", 60.0)
    with serving(Site({"/jwks": b"{}"}), authority.issue("issuer", host="IP:127.0.0.1")) as site:
        with pytest.raises(httpx.ConnectError, match="certificate"):
            await tokens.fetched(f"{site.url}/jwks")
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.issue("another").ca))
        assert await tokens.fetched(f"{site.url}/jwks") == b"{}"
