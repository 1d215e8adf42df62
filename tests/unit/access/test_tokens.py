"""Tokens: which are believed, and as whom; keys that rotate, and issuers that do not answer."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from registry.access import tokens
from registry.access.file import Issuer
from registry.access.principal import Credential, Principal
from registry.access.tokens import GOOD_SECONDS, MAX_TOKEN_CHARACTERS, PAUSE_SECONDS, KeySets, Tokens, fetched
from registry.model.errors import Unauthenticated
from tests.simulation.loop import virtual
from tests.unit.runtime.test_http import served

NOW = datetime(2026, 1, 1, tzinfo=UTC)
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC, OTHER_EC = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
P384 = ec.generate_private_key(ec.SECP384R1())
ED = ed25519.Ed25519PrivateKey.generate()
MAKERS = {
    "RS256": jwt.algorithms.RSAAlgorithm,
    "ES256": jwt.algorithms.ECAlgorithm,
    "EdDSA": jwt.algorithms.OKPAlgorithm,
}
CLAIMS = {"iss": "https://ci", "aud": "loraplane", "sub": "ann", "exp": NOW.timestamp() + 600, "repo": "a"}
# Not what any key of the issuer has signed, or for somebody else.
WRONG = {
    "sub": "",
    "aud": "other",
    "iss": "https://other",
    "exp": NOW.timestamp() - 31,
    "nbf": NOW.timestamp() + 31,
    "repo": "b",
    "groups": "admins",
}


def public(algorithm: str, key, key_id: str = "k") -> dict[str, str]:
    made = MAKERS[algorithm].to_jwk(key.public_key(), as_dict=True)
    return {**made, "kid": key_id, "alg": algorithm}


def issuer(**fields) -> Issuer:
    whole = {
        "issuer": "https://ci",
        "audiences": ["loraplane"],
        "prefix": "ci:",
        "algorithms": ["ES256", "RS256", "EdDSA"],
    }
    return Issuer.model_validate(whole | {"jwks": "https://ci/jwks", "require": {"repo": "a"}} | fields)


def signed(key=EC, algorithm: str = "ES256", key_id: str | None = "k", **claims: object) -> str:
    kept = {name: value for name, value in (CLAIMS | claims).items() if value is not None}
    return jwt.encode(kept, key, algorithm, headers={"kid": key_id} if key_id is not None else {})


class World:
    """Tokens of issuers whose keys are at an address that may fail; how often that was asked."""

    def __init__(self, *issuers: Issuer, keys=None) -> None:
        self.answer: object = {"keys": [public("ES256", EC)]} if keys is None else {"keys": keys}
        self.asked = 0
        self.hangs = 0.0
        self.now = NOW
        self.tokens = Tokens(issuers or (issuer(),), KeySets(self.fetch).key_of, lambda: self.now)

    async def fetch(self, url: str) -> bytes:
        self.asked += 1
        await asyncio.sleep(self.hangs)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer if isinstance(self.answer, bytes) else json.dumps(self.answer).encode()

    async def refused(self, token: str) -> str:
        with pytest.raises(Unauthenticated) as caught:
            await self.tokens.verify(token)
        assert len(token) < 3 or token not in caught.value.message
        return caught.value.message


@pytest.mark.parametrize(("algorithm", "key"), [("RS256", RSA), ("ES256", EC), ("EdDSA", ED)])
@virtual
async def test_a_token_names_somebody_with_groups_by_its_issuers_prefix(algorithm, key):
    world = World(keys=[public(algorithm, key)])
    known = await world.tokens.verify(signed(key, algorithm, groups=["team", "all"]))
    assert known.principal == Principal("ci:ann", Credential.TOKEN, frozenset({"ci:team", "ci:all"}))
    assert known.expires == CLAIMS["exp"] + 30


@virtual
async def test_a_token_is_verified_once_in_five_minutes_and_refused_when_it_expires():
    world = World()
    token = signed()
    known = await world.tokens.verify(token)
    world.now += timedelta(seconds=299)
    assert await world.tokens.verify(token) is world.tokens.known(token) is known
    world.now += timedelta(seconds=1)
    assert world.tokens.known(token) is None
    again = await world.tokens.verify(token)
    assert again is not known
    assert again.principal == known.principal
    world.now += timedelta(seconds=329)
    assert await world.tokens.verify(token) is world.tokens.known(token)
    world.now += timedelta(seconds=1)
    assert world.tokens.known(token) is None
    assert "it has expired" in await world.refused(token)


async def test_as_many_are_known_as_the_bound_and_what_was_shown_last_stays(monkeypatch):
    """R16 bounded: of whoever comes with a new token for each call, too."""
    monkeypatch.setattr(tokens, "MAX_KNOWN", 2)
    world, shown = World(), [signed(sub=name) for name in "abc"]
    for place in (0, 1, 0, 2):
        await world.tokens.verify(shown[place])
    assert [world.tokens.known(one) is not None for one in shown] == [True, False, True]


@virtual
async def test_a_token_of_a_withdrawn_key_is_not_believed_for_long():
    world = World()
    token = signed()
    await world.tokens.verify(token)
    world.answer = {"keys": [public("ES256", OTHER_EC, "new")]}
    world.now += timedelta(seconds=300)
    await asyncio.sleep(300)
    assert "has no key 'k'" in await world.refused(token)


@pytest.mark.parametrize(
    ("claim", "value"),
    [
        *WRONG.items(),
        ("verified", 1),
        ("groups", ["g"] * 257),
        ("groups", [7]),
        *((name, None) for name in ("iss", "aud", "exp", "sub", "repo")),
    ],
)
@virtual
async def test_a_token_with_a_claim_that_is_wrong_or_missing_is_refused(claim, value):
    world = World(issuer(require={"repo": "a", "verified": True}))
    whole = {"verified": True, "groups": ["g"] * 256}
    assert await world.tokens.verify(signed(**whole))
    assert (await world.refused(signed(**(whole | {claim: value})))).startswith("the token is not believed: ")


@pytest.mark.parametrize("value", [True, "soon", float("inf"), 1 << 60, [], {}])
@pytest.mark.parametrize("claim", ["exp", "nbf"])
@virtual
async def test_a_time_that_is_none_is_refused(claim, value):
    await World().refused(signed(**{claim: value}))


@virtual
async def test_thirty_seconds_between_clocks_are_forgiven_and_a_minute_is_not():
    world = World()
    assert await world.tokens.verify(signed(exp=NOW.timestamp() - 29))
    assert await world.tokens.verify(signed(nbf=NOW.timestamp() + 29))
    assert "expired" in await world.refused(signed(exp=NOW.timestamp() - 60))
    assert "compare the clocks" in await world.refused(signed(nbf=NOW.timestamp() + 60))


def unsigned(**claims: object) -> str:
    parts = ({"alg": "none", "typ": "JWT", "kid": "k"}, CLAIMS | claims)
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts) + "."


@pytest.mark.parametrize(
    ("token", "told"),
    [
        ("", "it is no JSON Web Token"),
        ("a.b.c", "it is no JSON Web Token"),
        ("é", "it is no JSON Web Token"),
        ("x" * (MAX_TOKEN_CHARACTERS + 1), "it has more than 16384 characters"),
        (unsigned(), "it is not signed by ES256 or RS256 or EdDSA"),
        (signed(OTHER_EC), "it is not signed by a key of https://ci"),
        (signed(P384, "ES384"), "it is not signed by ES256 or RS256 or EdDSA"),
        (signed("k" * 64, "HS256"), "it is not signed by ES256 or RS256 or EdDSA"),
        (signed(RSA, "RS256"), "it is not signed by a key of https://ci"),
        (signed(key_id="other"), "https://ci has no key 'other'"),
        (signed(key_id=None), "https://ci has no key ''"),
        *((unsigned(iss=one), "no issuer in the access file is that of it") for one in ("https://x", None, 7, [])),
        (signed(aud="other"), "it is for another service: its audience has to be loraplane"),
        (signed(sub=None), "it lacks the claim 'sub'"),
        (signed(sub="a\ud800"), "text"),
        (signed(sub="a\nb"), "text"),
        (signed(groups=["\ud800"]), "text"),
        (signed(repo="b"), "its claim 'repo' is not what the access file requires"),
    ],
)
@virtual
async def test_a_forged_token_is_refused_and_why_is_told(token, told):
    """A1 named: nor is a name believed that cannot be written down; it would stand in the audit, and in keys."""
    assert told in await World().refused(token or " ")


@virtual
async def test_the_same_subject_of_another_issuer_is_somebody_else():
    other = issuer(issuer="https://other", prefix="other:", jwks="https://other/jwks")
    world = World(issuer(), other)
    names = {(await world.tokens.verify(signed(iss=one))).principal.name for one in ("https://ci", "https://other")}
    assert names == {"ci:ann", "other:ann"}


@virtual
async def test_a_new_key_is_found_at_once_but_unknown_ones_are_looked_for_every_ten_seconds_alone():
    world = World()
    await world.tokens.verify(signed())
    await asyncio.sleep(PAUSE_SECONDS)
    world.answer = {"keys": [public("ES256", EC), public("ES256", OTHER_EC, "new")]}
    await world.tokens.verify(signed(OTHER_EC, key_id="new"))
    assert world.asked == 2
    for number in range(100):
        await world.refused(signed(key_id=f"flood-{number}"))
    assert world.asked == 2
    await asyncio.sleep(PAUSE_SECONDS)
    await world.refused(signed(key_id="flood"))
    assert world.asked == 3


@pytest.mark.parametrize(
    "answer",
    [
        OSError("down"),
        TimeoutError(),
        b"<html>",
        b"\xff",
        {"keys": []},
        {"keys": 3},
        {"keys": [public("ES256", EC) | {"alg": "RS256"}]},
        b"[]",
        b"[" * 100_000,
        {"keys": [public("ES256", EC) | {"x": "A" * 1000}]},
        {"keys": [public("RS256", RSA) | {"n": ""}]},
        {"keys": [[]]},
        {"keys": [public("RS256", RSA)]},
    ],
)
@virtual
async def test_the_last_good_keys_count_for_an_hour_where_an_issuer_is_down_or_lies(answer):
    world = World(issuer(algorithms=["ES256"]))
    world.now += timedelta(days=-1)
    await world.tokens.verify(signed())
    world.answer = answer
    await asyncio.sleep(GOOD_SECONDS - 1)
    assert await world.tokens.verify(signed(jti="1"))
    await asyncio.sleep(PAUSE_SECONDS)
    assert "has no key" in await world.refused(signed(jti="2"))
    world.answer = {"keys": [public("ES256", EC)]}
    await asyncio.sleep(PAUSE_SECONDS)
    assert await world.tokens.verify(signed(jti="3"))


@virtual
async def test_two_issuers_may_have_their_keys_at_one_address():
    """A1 named: the keys that the one may not use are not taken from the other."""
    one = issuer(algorithms=["ES256"])
    other = issuer(issuer="https://other", prefix="other:", algorithms=["RS256"])
    world = World(one, other, keys=[public("ES256", EC, "ec"), public("RS256", RSA, "rsa")])
    for turn in range(2):
        assert await world.tokens.verify(signed(key_id="ec", jti=str(turn)))
        assert await world.tokens.verify(signed(RSA, "RS256", "rsa", iss="https://other", jti=str(turn)))
    assert world.asked == 2


@virtual
async def test_nobody_waits_for_an_issuer_that_hangs_whose_key_is_known():
    """A1 named: a stranger who names an unknown key every ten seconds would hold up all new tokens."""
    world = World()
    await world.tokens.verify(signed())
    await asyncio.sleep(PAUSE_SECONDS)
    world.hangs = 1.4
    stranger = asyncio.ensure_future(world.refused(signed(key_id="unknown")))
    await asyncio.sleep(0.1)
    async with asyncio.timeout(0.1):
        assert await world.tokens.verify(signed(jti="1"))
    await stranger
    assert world.asked == 2
    world.answer = OSError("down")
    await asyncio.sleep(GOOD_SECONDS)
    stranger = asyncio.ensure_future(world.refused(signed(key_id="unknown")))
    await asyncio.sleep(0.1)
    assert "has no key 'k'" in await world.refused(signed(jti="2")), "nor is it known for ever"
    await stranger


async def dribbled() -> AsyncIterator[bytes]:
    while True:
        yield b" "
        await asyncio.sleep(0.01)


ODD = {
    "/none": Response(b"{}", 404),
    "/elsewhere": RedirectResponse("/keys"),
    "/large": Response(bytes(tokens.MAX_BYTES + 1)),
    "/slow": StreamingResponse(dribbled()),
}


async def test_keys_are_fetched_whole_in_time_and_from_where_the_access_file_says(monkeypatch):
    """R16 bounded, A1 named: what an error or another address has to say are no keys."""
    kept = {"/keys": Response(b"{}"), "/most": Response(bytes(tokens.MAX_BYTES))}
    async with served([Route(path, lambda _, it=it: it) for path, it in (kept | ODD).items()]) as port:
        found = [await fetched(f"http://{port.address}{path}") for path in kept]
        assert [*map(len, found)] == [2, tokens.MAX_BYTES]
        for path in ODD:
            monkeypatch.setattr(tokens, "FETCH_SECONDS", 0.2 if path == "/slow" else 60.0)
            with pytest.raises((httpx.HTTPError, TimeoutError, ValueError)):
                await fetched(f"http://{port.address}{path}")


@virtual
async def test_of_a_private_key_the_public_part_alone_is_read():
    """A1 named: an issuer's mistake, or malice, is no work for us."""
    private = jwt.algorithms.RSAAlgorithm.to_jwk(RSA, as_dict=True) | {"kid": "k", "alg": "RS256"}
    world = World(keys=[private])
    found = await KeySets(world.fetch).key_of(issuer(), "k")
    assert isinstance(found.key, rsa.RSAPublicKey)
    assert await world.tokens.verify(signed(RSA, "RS256"))


@virtual
async def test_keys_may_be_in_a_file(tmp_path):
    file = tmp_path / "jwks.json"
    file.write_text(json.dumps({"keys": [public("ES256", EC)]}))
    keys = KeySets()
    told = issuer(jwks=str(file))
    assert await keys.key_of(told, "k") is not None
    file.unlink()
    await asyncio.sleep(GOOD_SECONDS - 1)
    assert await keys.key_of(told, "k") is not None
    assert await keys.key_of(told, "other") is None
