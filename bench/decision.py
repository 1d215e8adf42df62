"""One decision about a caller with 20 bindings in a file of 200, and the verification of a token.

Each binding of the caller is for a team of its own. The last one allows a question, or none does. The slowest that 20
bindings can be is told beside: each fits by all but the source, so that all parts of all are looked at. Each question
has a source of its own, as each new adapter has. The floor is what cannot be less: for each binding one compiled
pattern is matched with one name. Of a token the floor is the check of its signature alone.
All is processor time: nothing here waits, and others on the machine are no matter.
"""

from __future__ import annotations

import json
import re
import statistics
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import jwt
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from bench.figures import Figure, check, of_times
from registry.access.decision import Grant, grant_of
from registry.access.file import Issuer, read_access
from registry.access.principal import Credential, Principal
from registry.access.questions import AccessQuestion, Resource, Verb
from registry.access.tokens import Tokens

BINDINGS, THEIRS = 200, 20
TURNS, DECISIONS = 200, 100
LIMIT_SECONDS = 20e-6
TOKENS = 500


async def decision(folder: Path) -> list[Figure]:  # noqa: ARG001 - as each measurement
    """In turns: the floor, questions that the last binding allows, such that none does, and the slowest ones."""
    teams, alike = _grant("team-{}-*"), _grant("team-*")
    last, pattern = f"team-{THEIRS - 1}-sql", re.compile("team-.*", re.IGNORECASE)
    asked = {"allowed": (teams, last, "b"), "refused": (teams, "other", "b"), "slowest": (alike, last, "none")}
    samples: dict[str, list[float]] = {"floor": [], **{kind: [] for kind in asked}}
    for turn in range(TURNS):
        samples["floor"].append(_timed(partial(_matched, pattern, last)))
        for kind, (grant, tenant, bucket) in asked.items():
            questions = list(_questions(tenant, bucket, turn))
            samples[kind].append(_timed(partial(_decided, grant, questions)))
            check((grant.by(questions[0]) is not None) == (kind == "allowed"), f"what is {kind} is not")
    floor, allowed, refused, slowest = (statistics.median(each) / DECISIONS for each in samples.values())
    slower = max(allowed, refused)
    told = f"floor {_us(floor)}, allowed {_us(allowed)}, refused {_us(refused)}, the slowest {_us(slowest)}"
    return [
        Figure("decision", slower / floor, "", f"{told}; {THEIRS} bindings of {BINDINGS}; n {TURNS} of {DECISIONS}"),
        Figure("decision_20us", slowest / LIMIT_SECONDS, "<= 1", f"the slowest {_us(slowest)} of {_us(LIMIT_SECONDS)}"),
    ]


def _matched(pattern: re.Pattern[str], name: str) -> None:
    for _ in range(DECISIONS * THEIRS):
        pattern.fullmatch(name)


def _decided(grant: Grant, questions: list[AccessQuestion]) -> None:
    for one in questions:
        grant.by(one)


def _grant(tenants: str) -> Grant:
    def binding(number: int) -> dict[str, object]:
        theirs, left = divmod(number, BINDINGS // THEIRS)
        return {
            "role": "publisher",
            "users": [f"user-{number}" if left else "ann"],
            "tenants": [tenants.format(theirs)],
            "pools": ["llama-*", "qwen-*"],
            "sources": ["s3://b/adapters/", f"file:///srv/{theirs}"],
            "credentials": ["team-*"],
        }

    bindings = [*map(binding, range(BINDINGS - 1)), {"role": "security", "users": ["root"]}]
    whole = {"apiVersion": "loraplane/v1", "kind": "Access", "bindings": bindings}
    grant = grant_of(read_access(json.dumps(whole).encode(), "access"), Principal("ann", Credential.TOKEN))
    check(len(grant.held) == THEIRS, f"{len(grant.held)} bindings are theirs")
    return grant


def _questions(tenant: str, bucket: str, turn: int) -> Iterator[AccessQuestion]:
    for number in range(DECISIONS):
        source = f"s3://{bucket}/adapters/sql-{turn}-{number}"
        yield AccessQuestion(Verb.APPLY, Resource.ADAPTERS, "qwen-7b", tenant, source, "team-key")


async def token_es256(folder: Path) -> list[Figure]:  # noqa: ARG001
    """For each of many tokens: its signature alone, its verification, and the same from what is known."""
    private, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    key = jwt.PyJWK({**jwt.algorithms.ECAlgorithm.to_jwk(private.public_key(), as_dict=True), "alg": "ES256"})
    issuer = Issuer.model_validate(
        {"issuer": "https://i", "audiences": ["a"], "prefix": "i:", "algorithms": ["ES256"], "jwks": "/none"}
    )

    async def key_of(*_: object) -> jwt.PyJWK:
        return key

    tokens = Tokens([issuer], key_of, lambda: datetime.now(UTC))
    public, curve = private.public_key(), ec.ECDSA(hashes.SHA256())
    floor, once, known = list[float](), list[float](), list[float]()
    for number in range(TOKENS):
        claims = {"iss": "https://i", "aud": "a", "sub": f"user-{number}", "exp": now.timestamp() + 600}
        token = jwt.encode(claims, private, "ES256")
        signature = private.sign(token.encode(), curve)
        floor.append(_timed(partial(public.verify, signature, token.encode(), curve)))
        for seconds in (once, known):
            started = time.process_time()
            await tokens.verify(token)
            seconds.append(time.process_time() - started)
    note = f"from what is known {_us(statistics.median(known))}"
    return [of_times("token_es256", floor, once, target="", note=note)]


def _timed(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} µs"
