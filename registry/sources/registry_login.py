"""Requests to a registry of containers, with what it wants to be shown.

That is a token of its own, or user and password. The token comes from a place that the registry names. A password goes
there only if that is the registry itself, or below a prefix that the credential is bound to: else whoever runs a
registry could have it sent anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import urlencode

from registry.model.source_uri import SourcePrefix
from registry.model.stored import read_json
from registry.sources.base import ArtifactError, beginning
from registry.sources.connections import SourceRequests
from registry.sources.credentials import HeldCredential
from registry.sources.credentials_file import SecretError, as_header
from registry.sources.failures import DENIED_STATUSES, denied, status_error
from registry.sources.getter import Getter, Headers, SourceResponse
from registry.sources.origins import OriginVisits
from registry.sources.urls import WebUrl, check_redirect, parse_url

MAX_CHALLENGE_LENGTH = 4096
MAX_TOKEN_ANSWER_BYTES = 64 << 10
_PARAMETER = re.compile(r'([A-Za-z]+)="([^"]*)"')


def read_challenge(header: str) -> tuple[str, dict[str, str]]:
    """The scheme and the parameters of a WWW-Authenticate header, in lower case; empty where there is none."""
    scheme, _, rest = header[:MAX_CHALLENGE_LENGTH].partition(" ")
    return scheme.lower(), {name.lower(): value for name, value in _PARAMETER.findall(rest)}


class RegistryGetter(Getter):
    """GETs of one staging from one repository of a registry."""

    def __init__(
        self,
        requests: SourceRequests,
        named: Sequence[SourcePrefix],
        held: HeldCredential | None,
        visits: OriginVisits,
        repository: SourcePrefix,
    ) -> None:
        """Takes the URLs that the operator named, and the one below which all of the repository is."""
        super().__init__(requests, named, held, (repository,), visits)
        self._scope = f"repository:{'/'.join(repository.path[1:])}:pull"
        self._given: str | None = None

    def _shown(self) -> str | None:
        return self._given

    def _is_let_in(self, denied_answer: SourceResponse) -> bool:
        scheme, wanted = read_challenge(denied_answer.header("www-authenticate"))
        denied_answer.skip()
        # Whoever a redirect leads to is shown nothing, and so has no say in where a password goes.
        is_here = any(denied_answer.url.is_below(prefix) for prefix in self._may_see)
        if denied_answer.status != 401 or scheme not in {"basic", "bearer"} or not is_here:
            return False
        before = self._given
        self._given = self._answer_to(scheme, wanted, denied_answer.url)
        if self._given is not None and self._given == before and self._held is not None and self._held.renew():
            self._given = self._answer_to(scheme, wanted, denied_answer.url)
        return self._given is not None and self._given != before

    def _answer_to(self, scheme: str, wanted: dict[str, str], at: WebUrl) -> str | None:
        """The header for the registry; None: there is nothing to show."""
        own = self._held.authorization() if self._held is not None else None
        if scheme == "basic" or (own is not None and own.startswith("Bearer ")):
            return own
        return f"Bearer {self._token(wanted, at, own)}"

    def _token(self, wanted: dict[str, str], at: WebUrl, own: str | None) -> str:
        """A token for reading this repository, whatever else the registry would have us ask for.

        Raises:
            ArtifactError: it cannot be had, or the place may not be asked.
        """
        url = self._token_url(wanted, at)
        headers: Headers = (("Authorization", own),) if own is not None else ()
        if own is not None:
            self._check_may_see(url, at)
        answer = self.send(url, headers)
        if answer.status in DENIED_STATUSES:
            answer.close()
            raise denied(f"{url.place} gives no token for {at.place}: it answered {answer.status}")
        if answer.status != 200:
            answer.close()
            raise status_error(answer.status, url.place)
        return _token_in(beginning(answer.chunks(), MAX_TOKEN_ANSWER_BYTES), url)

    def _token_url(self, wanted: dict[str, str], at: WebUrl) -> WebUrl:
        try:
            realm = parse_url(wanted.get("realm", ""))
        except ValueError:
            message = f"{at.place} wants a token, and names no URL where it can be had; is it a registry of containers?"
            raise ArtifactError("source_io", message) from None
        try:
            check_redirect(realm, self._named)
        except ArtifactError:
            expected = "expected https at port 443, or a URL that --allow-source names"
            message = f"{at.place} wants a token of {realm.place}, {expected}"
            raise ArtifactError("redirect_not_allowed", message) from None
        asked = {"service": wanted.get("service", ""), "scope": self._scope}
        query = urlencode({name: value for name, value in asked.items() if value})
        return WebUrl(realm.scheme, realm.authority, f"{realm.target}{'&' if '?' in realm.target else '?'}{query}")

    def _check_may_see(self, url: WebUrl, at: WebUrl) -> None:
        held = self._held
        if held is None or url.is_same_origin(at) or any(url.is_below(prefix) for prefix in held.prefixes):
            return
        message = (
            f"{at.place} wants a token of {url.place}, which the credential {held.name!r} is not bound to; add "
            f"{url.place} to its prefixes in the file of --credentials, if that place may see it"
        )
        raise ArtifactError("credential_not_bound", message)


def _token_in(content: bytes, url: WebUrl) -> str:
    try:
        value = read_json(content)
        token = value.get("token") or value.get("access_token") if isinstance(value, dict) else None
        return as_header(token if isinstance(token, str) else "", "token")
    except (ValueError, SecretError):
        message = f"{url.place} answers with no token that can be used; is it the place of a registry's tokens?"
        raise ArtifactError("source_io", message) from None
