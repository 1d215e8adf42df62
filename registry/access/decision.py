"""The one decision: may a principal do this? Pure.

Concept: whoever is known has the bindings that name it or one of its groups. Each binding is a role with a scope. A
question is allowed if one binding alone allows it: parts of several are never put together.

Deny by default: without a binding nothing is allowed, also not to learn whether something exists; so the question is
answered before anything is read, and once more for what the reading showed (source, credential, fields of a pool).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from registry.access.file import EVERYBODY, Access, Authentication, Binding
from registry.access.principal import Principal
from registry.access.questions import AccessQuestion
from registry.access.roles import OF_TENANTS, ROLES, AccessRole, Action, roles_for
from registry.access.scope import PLACEHOLDER, below, spelled, tenant_in
from registry.model.errors import PermissionDenied, Reason
from registry.model.names import NamePatterns, tenant_of
from registry.model.source_uri import without_secrets

# Of a name in a refusal. Nobody has checked it yet, and it may have megabytes.
_SHOWN_CHARACTERS = 100


@dataclass(frozen=True, slots=True)
class HeldRole:
    """A binding as somebody has it, with the tenant that a user's or group's name holds put in.

    `number`: place in the file, from 1. `sources`: beginnings that its sources have to have; none: any will do.
    """

    number: int
    role: AccessRole
    actions: frozenset[Action]
    tenants: NamePatterns | None
    pools: NamePatterns
    sources: tuple[str, ...]
    credentials: NamePatterns

    def __str__(self) -> str:
        return f"{self.role} by binding {self.number}" if self.number else f"{self.role} as the host's administrator"


@dataclass(frozen=True, slots=True)
class Grant:
    """All that somebody may do.

    `believed`: credentials by which somebody is known to be who they are; None: the host's own.
    """

    held: tuple[HeldRole, ...]
    believed: Authentication | None = field(default=None, hash=False)

    def allowing(self, asked: AccessQuestion) -> Iterator[HeldRole]:
        """The bindings that allow it, each by itself, in their order; what is alike for all is made out once."""
        action, pool, tenant, credentials = (asked.verb, asked.resource), asked.pool, asked.tenant, asked.credentials
        source = None if asked.source is None else spelled(asked.source)
        for one in self.held:
            if (
                action in one.actions
                and (tenant is None or one.tenants is None or one.tenants.match(tenant))
                and (pool is None or one.pools.match(pool))
                and (credentials is None or one.credentials.match(credentials))
                and (source is None or not one.sources or source.startswith(one.sources))
            ):
                yield one

    def by(self, asked: AccessQuestion) -> HeldRole | None:
        """The first binding that allows it; None: it is refused."""
        return next(self.allowing(asked), None)

    def sees(self, action: Action, pool: str | None) -> Callable[[str], bool]:
        """Tells, by an adapter's name, whether it is seen; whole pools are filtered, so each tenant is judged once."""
        judged: dict[str, bool] = {}

        def is_seen(name: str) -> bool:
            tenant = tenant_of(name)
            if tenant not in judged:
                judged[tenant] = self.by(AccessQuestion(*action, pool, tenant)) is not None
            return judged[tenant]

        return is_seen

    def covers(self, asked: AccessQuestion) -> bool:
        """True if one binding allows it in every pool and for every tenant that it leaves open."""
        return any(
            (asked.pool is not None or "*" in one.pools.words)
            and (asked.tenant is not None or one.tenants is None or "*" in one.tenants.words)
            for one in self.allowing(asked)
        )

    def check_any(self, *asked: AccessQuestion) -> HeldRole:
        """The binding that allows one of several questions, of which one is enough.

        Raises:
            PermissionDenied: none does; the message names the roles that would.
        """
        for one in asked:
            if found := self.by(one):
                return found
        raise refusal(asked[0])


def grant_of(access: Access, principal: Principal) -> Grant:
    """The bindings of an access file that somebody has."""
    names = {*principal.groups, EVERYBODY}
    held = (
        _filled(number, binding, tenant)
        for number, binding in enumerate(access.bindings, start=1)
        for tenant in dict.fromkeys(_tenants(binding, principal.name, names))
    )
    return Grant(tuple(held), access.authentication)


def whole_grant() -> Grant:
    """Everything, which is the host's administrator's: who may replace the access file may do that anyway."""
    every = NamePatterns(("*",))
    everything = (HeldRole(0, role, ROLES[role], None, every, (), every) for role in AccessRole)
    return Grant(tuple(everything))


def refusal(asked: AccessQuestion) -> PermissionDenied:
    """The refusal of a question: it tells what was asked and who may, and nothing of what there is."""
    named = (("in", "pool", asked.pool), ("of", "tenant", asked.tenant))
    names = {kind: value[:_SHOWN_CHARACTERS] for _, kind, value in named if value}
    about = "".join(f" {word} {kind} {names[kind]!r}" for word, kind, _ in named if kind in names)
    roles = [role.value for role in roles_for((asked.verb, asked.resource))]
    more = f" from {without_secrets(asked.source)}" if asked.source else ""
    more += f" with the credential {asked.credentials!r}" if asked.credentials else ""
    return PermissionDenied(
        Reason.PERMISSION_DENIED,
        f"you may not {asked.verb} {asked.resource}{about}{more}; the role {' or '.join(roles)} allows it: "
        "`loraplane auth whoami` lists yours",
        metadata={"verb": asked.verb.value, "resource": asked.resource.value, "roles": ",".join(roles), **names},
    )


def _tenants(binding: Binding, name: str, groups: Iterable[str]) -> Iterator[str]:
    """For each word of a binding that is this user or one of the groups the tenant that it holds, or else ""."""
    for words, names in ((binding.users, (name,)), (binding.groups, tuple(groups))):
        for word in words:
            if PLACEHOLDER in word:
                yield from (tenant for one in names if (tenant := tenant_in(word, one)))
            elif word in names:
                yield ""


def _filled(number: int, binding: Binding, tenant: str) -> HeldRole:
    def fill(words: Iterable[str]) -> tuple[str, ...]:
        return tuple(word.replace(PLACEHOLDER, tenant) for word in words)

    return HeldRole(
        number,
        binding.role,
        ROLES[binding.role],
        NamePatterns(fill(binding.tenants), any_case=True) if binding.role in OF_TENANTS else None,
        NamePatterns(fill(binding.pools)),
        tuple(map(below, fill(binding.sources))),
        # Who restores puts adapters back as they were, with whatever credential they had.
        NamePatterns(fill(binding.credentials) if binding.role is AccessRole.PUBLISHER else ("*",)),
    )
