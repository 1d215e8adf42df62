"""Access control of one admin service, by a file that may be replaced."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from registry.access.decision import Grant, grant_of, whole_grant
from registry.access.file import MAX_BYTES, Access, AccessInvalid, Authentication, read_access
from registry.access.principal import RESERVED_PREFIX, SPIFFE, CallTrace, Credential, Principal, address_of, trace_of
from registry.access.quota import CallerRate, RequestQuota, too_many
from registry.access.sockets import socket_principal
from registry.access.tokens import KeySets, Known, Tokens
from registry.etcd3.tls import end_of
from registry.model.errors import Reason, Unauthenticated, Unavailable
from registry.runtime.local_files import FollowedFile, read_followed
from registry.sources.base import StoreError

LOOK_SECONDS = 1.0
# Of principals whose grants are kept.
_MAX_GRANTS = 4096
_BEARER = "bearer "
# Of one address, tokens that are not believed: a signature costs a tenth of a millisecond to look at.
_FAILURES_PER_SECOND, _FAILURES_AT_ONCE = 10.0, 100.0


@dataclass(frozen=True, slots=True)
class Shown:
    """Credentials that a call shows.

    Attributes:
        peer: as gRPC names it.
        facts: of its certificate, as gRPC tells them; none: it showed none.
        authorization: the header of that name; empty: none.
        is_private: nobody else reads the connection: it is of TLS, or does not leave the host.
        user_agent: as the client says.
    """

    peer: str
    facts: Mapping[str, Iterable[bytes]] = field(default_factory=dict)
    authorization: str = field(default="", repr=False)
    is_private: bool = True
    user_agent: str = ""

    @property
    def token(self) -> str:
        """The bearer token; empty: none."""
        scheme, token = self.authorization[: len(_BEARER)], self.authorization[len(_BEARER) :].strip()
        return token if scheme.lower() == _BEARER else ""

    @property
    def credential(self) -> Credential:
        """Kind of the first credential that is shown, whoever it names."""
        if self.facts.get("x509_pem_cert"):
            return Credential.CERTIFICATE
        return Credential.TOKEN if self.token else Credential.NONE

    def check_resumed(self, now: float) -> None:
        """Sees that the certificate of a session that was taken up again, which no handshake looks at, has not ended.

        `now`: seconds since 1970. Raises Unauthenticated.
        """
        if b"true" not in self.facts.get("ssl_session_reused", ()):
            return
        if any(end_of(pem).timestamp() <= now for pem in self.facts.get("x509_pem_cert", ())):
            raise Unauthenticated(Reason.UNAUTHENTICATED, "your certificate has expired; renew it")

    def trace(self, known: Principal | None = None) -> CallTrace:
        """Marks of the call for the audit: of the credential by which `known` is known; None: of the first shown."""
        certificate = next(iter(self.facts.get("x509_pem_cert", ())), b"")
        shown = {Credential.CERTIFICATE: certificate, Credential.TOKEN: self.token.encode(errors="replace")}
        credential = shown.get(known.credential if known else self.credential, b"")
        return trace_of(self.peer, credential, self.user_agent)


@dataclass(frozen=True, slots=True)
class _AccessState:
    access: Access
    tokens: Tokens
    grants: dict[Principal, Grant]
    loaded_at: datetime


class AccessControl:
    """Principals and their grants. What was read last counts while the file cannot be read.

    Args:
        file: the access file.
        wall: the time, for tokens.

    Raises (on construction):
        StoreError: the file cannot be read, or is none.
    """

    def __init__(self, file: Path, wall: Callable[[], datetime]) -> None:
        self._wall = wall
        self._quota = RequestQuota(_loop_time)
        self._failures = CallerRate(_loop_time)
        self._keys = KeySets()
        self._changed = asyncio.Event()
        self._followed = FollowedFile(file, _read, self._take)

    def _take(self, access: Access) -> None:
        tokens = Tokens(access.authentication.issuers, self._keys.key_of, self._wall)
        self._state = _AccessState(access, tokens, {}, self._wall())

    @property
    def digest(self) -> str:
        """Digest of the file that counts."""
        return self._state.access.digest

    def named(self) -> Iterator[tuple[int, str, str]]:
        """See `Access.named`, of the file that counts."""
        return self._state.access.named()

    @property
    def trouble(self) -> str:
        """Why the file as it is now is not taken; empty: it is."""
        return self._followed.trouble

    @property
    def loaded_at(self) -> datetime:
        """The time when the file that counts was read."""
        return self._state.loaded_at

    @property
    def failed_reloads(self) -> int:
        """States of the file that could not be used."""
        return self._followed.failures

    async def run(self) -> None:
        """Follows the file until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            state = self._state
            await asyncio.to_thread(self._followed.refresh)
            if self._state is not state:
                self._changed.set()
                self._changed = asyncio.Event()

    async def until_revoked(self, principal: Principal, grant: Grant, expires: float | None) -> None:
        """Ends with an error once somebody's credential may not count any more, or lets them do something else.

        Raises:
            Unauthenticated: it expired.
            Unavailable: what they may do has changed, or which credentials are believed.
        """
        while self.grant(principal) == grant:
            left = None if expires is None else expires - self._wall().timestamp()
            try:
                async with asyncio.timeout(left):
                    await self._changed.wait()
            except TimeoutError as error:
                if expires is not None and expires <= self._wall().timestamp():
                    raise Unauthenticated(Reason.UNAUTHENTICATED, "your token has expired; take a new one") from error
        raise Unavailable(Reason.ADMIN_UNAVAILABLE, "what you may do has changed; connect again")

    async def principal(self, shown: Shown) -> tuple[Principal, float | None]:
        """The principal that the first believed credential names, and its end in seconds since 1970.

        Raises:
            Unauthenticated: none does.
            ResourceExhausted: see `_verified`.
        """
        state, refused = self._state, None
        if (host := socket_principal(shown.peer)) is not None:
            return host, None
        if shown.facts.get("x509_pem_cert"):
            try:
                return certificate_principal(shown.facts, state.access.authentication), None
            except Unauthenticated as error:
                refused = error
        if token := shown.token:
            if not shown.is_private:
                raise _unknown("a token is taken over TLS or from this host alone, since others could read it")
            known = await self._verified(state, token, shown.peer)
            if self._state is not state:
                return await self.principal(shown)  # the file was replaced meanwhile
            return known.principal, known.expires
        raise refused or _unknown("show a client certificate (--tls-cert, --tls-key) or a token (--token-file)")

    def within_quota(self, principal: Principal) -> AbstractContextManager[None]:
        """The body is one call of somebody, within the limits of the file.

        Raises:
            ResourceExhausted: it would be too many; the error tells when to try again.
        """
        if principal.credential is Credential.SOCKET:
            return nullcontext()
        limits = self._state.access.limits
        return self._quota.held(principal.space, limits.calls_per_second, limits.calls_at_once)

    async def _verified(self, state: _AccessState, token: str, peer: str) -> Known:
        """Principal of a token. An address that shows many that are not believed has to wait before one is looked at.

        Raises:
            Unauthenticated: it is not believed.
            ResourceExhausted: too many of its address were not.
        """
        if (known := state.tokens.known(token)) is not None:
            return known
        origin = address_of(peer)
        if wait := self._failures.wait_seconds(origin, _FAILURES_PER_SECOND, _FAILURES_AT_ONCE):
            raise too_many("many tokens of your address were not believed lately", wait)
        try:
            return await state.tokens.verify(token)
        except Unauthenticated:
            self._failures.note(origin, _FAILURES_PER_SECOND)
            raise

    def grant(self, principal: Principal) -> Grant:
        """All that somebody may do."""
        if principal.credential is Credential.SOCKET:
            return whole_grant()
        state = self._state
        grant = state.grants.get(principal)
        if grant is None:
            if len(state.grants) >= _MAX_GRANTS:
                state.grants.clear()
            grant = state.grants[principal] = grant_of(state.access, principal)
        return grant


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


def _read(file: Path) -> Access:
    """Raises StoreError: it cannot be read, or is none."""
    try:
        return read_access(read_followed(file, max_bytes=MAX_BYTES), str(file))
    except OSError as error:
        raise StoreError(f"{file}: {error.strerror}") from error
    except AccessInvalid as error:
        raise StoreError(str(error)) from error


def _unknown(why: str) -> Unauthenticated:
    return Unauthenticated(Reason.UNAUTHENTICATED, f"the admin service does not know who calls: {why}")


# Of a peer whose certificate was verified, by the names of gRPC's own facts (auth_context).
_FACTS = {"dns": "peer_dns", "email": "peer_email", "commonName": "x509_common_name"}


def certificate_principal(facts: Mapping[str, Iterable[bytes]], believed: Authentication) -> Principal:
    """Principal that a verified certificate names.

    A SPIFFE id decides alone: whoever has one of a trust domain that is not named is nobody, whatever other names
    stand beside it. So the certificate of a sidecar is none of an operator. A name that a token could have is nobody's.

    Raises:
        Unauthenticated: it names nobody who is believed; the message says which of its names were looked at.
    """
    ids = [one for one in _texts(facts, "peer_uri") if one.lower().startswith(SPIFFE)]
    if ids:
        return Principal(_spiffe(ids, believed.trust_domains), Credential.CERTIFICATE)
    others = (RESERVED_PREFIX, SPIFFE, *(one.prefix for one in believed.issuers))
    for kind in believed.certificate_names:
        for name in _texts(facts, _FACTS[kind]):
            if name and not name.startswith(others):
                return Principal(name, Credential.CERTIFICATE)
    looked = ", ".join(believed.certificate_names)
    raise Unauthenticated(
        Reason.UNAUTHENTICATED,
        f"your certificate has no SPIFFE id, and no name of the kinds that count here ({looked}); see certificateNames "
        "of the access file",
    )


def _texts(facts: Mapping[str, Iterable[bytes]], name: str) -> list[str]:
    return [one.decode(errors="replace") for one in facts.get(name, ())]


def _spiffe(ids: Sequence[str], domains: Sequence[str]) -> str:
    """The one SPIFFE id, of a trust domain that is believed."""
    if len(ids) > 1:
        raise Unauthenticated(Reason.UNAUTHENTICATED, f"your certificate has {len(ids)} SPIFFE ids; it may have one")
    domain = ids[0].removeprefix(SPIFFE).partition("/")[0]
    if domain not in domains:
        raise Unauthenticated(
            Reason.UNAUTHENTICATED,
            f"your certificate is of the trust domain {domain!r}, which trustDomains of the access file does not name",
        )
    return ids[0]
