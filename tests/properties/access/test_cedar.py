"""The decision beside Cedar: both are asked the same of random access files, and also which bindings allow it.

Each question is asked whole, and without one of its parts: what is refused whole and allowed without a part was refused
for that part, and so it shows that each part can refuse.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from random import Random

import pytest

from registry.access.decision import Grant, grant_of
from registry.access.file import Access, Binding, read_access
from registry.access.principal import Credential, Principal
from registry.access.questions import AccessQuestion, Resource, Verb
from registry.access.roles import OF_POOLS, OF_TENANTS, AccessRole
from registry.model.names import NamePatterns
from tests.properties.access.cedar import EVERYBODY, Cedar
from tests.support.examples import share

# 100,000 and more questions where all cases are played: each has so many whole ones for each of four principals, and
# about three forms of each.
CASES, QUESTIONS = share(500), 18
# Part of a question to the field of a binding that narrows it.
PARTS = {"pool": "pools", "tenant": "tenants", "source": "sources", "credentials": "credentials"}
COMMIT = "0123456789" * 4

TENANTS = ("acme", "ACME", "beta", "a.b", "ac", "default")
POOLS = ("qwen-7b", "Qwen-72b", "llama", "q")
CREDENTIALS = ("acme-key", "ACME-read", "beta-key", "hub")
NAMES = ("ann", "ci:acme", "ci:BETA", "ci:a..b", "spiffe://ops.example/acme/ci", "o'\"dd\\*", "team", "acme")
GROUPS = (
    "team",
    "ml-acme-pub",
    "ml-Beta-pub",
    "ml-a.b-pub",
    "ml-a..b-pub",
    "ml--pub",
    "ml-a/b-pub",
    "ml-a.-b-pub",
    "ml-*-pub",
    "ann",
)
USER_WORDS = ("ann", "ci:acme", "o'\"dd\\*", "team", "ml-acme-pub", "*")
USER_FORMS = ("ci:{tenant}", "spiffe://ops.example/{tenant}/ci", "{tenant}")
GROUP_WORDS = ("team", "ml-acme-pub", "ml-*-pub", "ann", EVERYBODY)
GROUP_FORMS = ("ml-{tenant}-pub", "ml-{tenant}", "{tenant}")
PREFIXES = (
    "s3://bucket/",
    "s3://bucket/acme",
    "https://h.example/a*/",
    "file:///srv/",
    "hf://acme",
    "gs://bucket/acme/",
)
PREFIX_FORMS = (
    "s3://bucket/{tenant}/",
    "s3://{tenant}",
    "file:///srv/{tenant}",
    "https://h.example/{tenant}/",
    "https://{tenant}/",
)
# What a source is below, in one spelling; None: it cannot be read, and is below nothing.
SOURCES: dict[str, str | None] = {
    "s3://bucket/acme/x": "s3://bucket/acme/x/",
    "s3://bucket/acme": "s3://bucket/acme/",
    "s3://bucket/acmex": "s3://bucket/acmex/",
    "s3://bucket/ACME/x": "s3://bucket/ACME/x/",
    "s3://bucket/beta/": "s3://bucket/beta/",
    "s3://acme/beta": "s3://acme/beta/",
    "gs://bucket/acme/x": "gs://bucket/acme/x/",
    "https://h.example/a*/x.tar": "https://h.example/a*/x.tar/",
    "https://H.example:443/acme/x/": "https://h.example/acme/x/",
    "https://h.example:8443/acme/x/": "https://h.example:8443/acme/x/",
    "http://h.example/acme/x/": "http://h.example/acme/x/",
    "file:///srv/acme/x": "file:///srv/acme/x/",
    "file:///srv//beta": "file:///srv/beta/",
    "file:///srv/%61cme": "file:///srv/acme/",
    f"hf://acme/repo/dir@{COMMIT}": "hf://acme/repo/dir/",
    f"hf://acmex/repo@{COMMIT}": "hf://acmex/repo/",
    "s3://bucket/acme/../beta": None,
    "s3://bucket//acme/x": None,
    "file:///srv/acme/../beta": None,
    "file:///srv/acme/%2e%2e/beta": None,
    "file://host/srv/acme/x": None,
    "https://h.example@other.example/acme/x/": None,
    "hf://acme/repo": None,
    "ftp://bucket/acme/x": None,
    "": None,
}
ACTIONS = tuple((verb, resource) for verb in Verb for resource in Resource)
LIKELY = ((Verb.GET, Resource.ADAPTERS), (Verb.APPLY, Resource.ADAPTERS), (Verb.GET, Resource.POOLS))


@dataclass(frozen=True, slots=True)
class Case:
    """An access file, and questions of several principals: each whole one, then the same without one part."""

    bindings: list[dict[str, object]]
    principals: list[Principal]
    asked: list[tuple[Principal, AccessQuestion]]


def made_case(number: int) -> Case:
    chance = Random(number)
    bindings = [_binding(chance) for _ in range(chance.randint(1, 9))]
    bindings.insert(chance.randrange(len(bindings) + 1), {"role": "security", "users": ["root"]})
    names = chance.sample(NAMES, 4)
    principals = [
        Principal(name, Credential.TOKEN, frozenset(chance.sample(GROUPS, chance.randint(0, 3)))) for name in names
    ]
    asked = [
        (principal, one)
        for whole in (_question(chance) for _ in range(QUESTIONS))
        for principal in principals
        for one in (whole, *(replace(whole, **{part: None}) for part in PARTS if getattr(whole, part) is not None))
    ]
    return Case(bindings, principals, asked)


def _binding(chance: Random) -> dict[str, object]:
    role = chance.choice([*AccessRole, *[AccessRole.PUBLISHER] * 8, *[AccessRole.VIEWER] * 3])
    has_form = chance.random() < 0.5
    users, groups = (USER_FORMS, GROUP_FORMS) if has_form else (USER_WORDS, GROUP_WORDS)
    made: dict[str, object] = {"role": role.value}
    made |= {"users": _some(chance, users, 2), "groups": _some(chance, groups, 2)}
    if not made["users"] and not made["groups"]:
        made["users"] = [users[0]]
    if role in OF_TENANTS:
        made["tenants"] = [_pattern(chance, TENANTS, has_form) for _ in range(chance.randint(1, 2))]
    if role in OF_POOLS and chance.random() < 0.6:
        made["pools"] = [_pattern(chance, POOLS, has_form) for _ in range(chance.randint(0, 2))]
    if role is AccessRole.PUBLISHER:
        made["sources"] = _some(chance, PREFIXES + PREFIX_FORMS * has_form, 3)
        made["credentials"] = [_pattern(chance, CREDENTIALS, has_form) for _ in range(chance.randint(0, 2))]
    return made


def _some(chance: Random, words: tuple[str, ...], most: int) -> list[str]:
    return chance.sample(words, chance.randint(0, most))


def _pattern(chance: Random, names: tuple[str, ...], has_form: bool) -> str:
    """A name, one with * for some part of it, or, if somebody's name holds a tenant, one with that."""
    name = chance.choice(names)
    if has_form and chance.random() < 0.6:
        return chance.choice(("{tenant}", "{tenant}", "{tenant}-*", "*{tenant}*"))
    begin, end = sorted(chance.choices(range(len(name) + 1), k=2))
    return chance.choice((name, name.swapcase(), name[:begin] + "*" + name[end:], "*", f"*{name[begin:end]}*"))


def _question(chance: Random) -> AccessQuestion:
    def or_none(names: tuple[str, ...], share: float) -> str | None:
        return chance.choice(names) if chance.random() < share else None

    action = chance.choice(LIKELY if chance.random() < 0.7 else ACTIONS)
    sources = tuple(SOURCES)
    return AccessQuestion(
        *action, or_none(POOLS, 0.7), or_none(TENANTS, 0.7), or_none(sources, 0.5), or_none(CREDENTIALS, 0.3)
    )


Grants = Callable[[Access, Principal], Grant]
# The binding that allows each question of a case; None: it is refused.
Answers = dict[tuple[Principal, AccessQuestion], Binding | None]


def compared(cases: range, grants: Grants = grant_of) -> Iterator[Answers]:
    """The answers to each case; fails where Cedar gives another one."""
    for number in cases:
        case = made_case(number)
        whole = {"apiVersion": "loraplane/v1", "kind": "Access", "bindings": case.bindings}
        access = read_access(json.dumps(whole).encode(), "access")
        held = {one: grants(access, one) for one in case.principals}
        told = Cedar(case.bindings, case.principals, SOURCES).allowing(case.asked)
        answers: Answers = {}
        for (principal, asked), numbers in zip(case.asked, told, strict=True):
            found = held[principal].by(asked)
            told_number = min(numbers, default=0)
            assert (found.number if found else 0) == told_number, f"case {number}: {principal} asks {asked}"
            answers[principal, asked] = access.bindings[told_number - 1] if told_number else None
        yield answers


def seen(answers: Answers) -> Iterator[tuple[str, bool]]:
    """For each part of a binding that decided a question: which part, and whether it allowed it."""
    by_question: dict[AccessQuestion, set[bool]] = {}
    for (principal, asked), by in answers.items():
        by_question.setdefault(asked, set()).add(by is not None)
        for part, field in PARTS.items():
            if getattr(asked, part) is None:
                continue
            wider = answers.get((principal, replace(asked, **{part: None})))
            narrow = getattr(by or wider, field, ())
            if narrow and "*" not in narrow:
                yield part, by is not None
                if any("{tenant}" in word for word in narrow):
                    yield f"{part} by the name", by is not None
        if asked.pool is asked.tenant is asked.source is asked.credentials is None:
            yield "action", by is not None
    yield from (("who", one) for both in by_question.values() if len(both) > 1 for one in both)


def test_cedar_decides_the_same():
    """A2 by other code: the same binding allows it, or none does; and each part of a binding often does either."""
    total, parts = Counter[bool](), Counter[tuple[str, bool]]()
    for answers in compared(range(CASES)):
        total.update(by is not None for by in answers.values())
        parts.update(seen(answers))
    assert total.total() >= 200 * CASES
    assert min(total[True], total[False]) > 40 * CASES
    assert len(parts) == 2 * (2 + 2 * len(PARTS))
    assert [one for one, times in parts.items() if times < CASES // 5] == []


def together(field: str) -> Grants:
    """The mistake that one binding counts with a part of another."""

    def grants(access: Access, principal: Principal) -> Grant:
        held = grant_of(access, principal).held
        parts = [getattr(one, field) for one in held]
        whole: object = None
        if field == "actions":
            whole = frozenset().union(*parts)
        elif field == "sources":
            whole = tuple(chain(*parts))
        elif None not in parts:
            whole = NamePatterns(tuple(chain(*(one.words for one in parts))), any_case=field == "tenants")
        return Grant(tuple(replace(one, **{field: whole}) for one in held))

    return grants


def user_is_group(access: Access, principal: Principal) -> Grant:
    """The mistake that somebody's name counts as a group."""
    return grant_of(access, replace(principal, groups=principal.groups | {principal.name}))


def one_tenant(access: Access, principal: Principal) -> Grant:
    """The mistake that of several groups only the first counts."""
    return grant_of(access, replace(principal, groups=frozenset(sorted(principal.groups)[:1])))


MISTAKES = {
    **{field: together(field) for field in ("actions", "tenants", "pools", "sources", "credentials")},
    "user is group": user_is_group,
    "one tenant": one_tenant,
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_the_decision_is_noticed(mistake):
    with pytest.raises(AssertionError, match=r"^case "):
        list(compared(range(CASES // 4), MISTAKES[mistake]))
