"""Where a request may go: below what the operator allowed, or from there by redirect to a public place. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urljoin, urlsplit

from registry.model.source_uri import SourcePrefix, SourceUriError, check_authority, parse_prefix
from registry.sources.addresses import Reach, is_literal
from registry.sources.errors import ArtifactError


@dataclass(frozen=True, slots=True)
class WebUrl:
    """A URL that a request can be sent to. `target` is path and query, and may hold a secret; `place` does not."""

    scheme: str
    authority: str
    target: str

    @property
    def place(self) -> str:
        """What may be said of it."""
        return f"{self.scheme}://{self.authority}"

    @property
    def host(self) -> str:
        host, colon, port = self.authority.rpartition(":")
        return host if colon and not port.endswith("]") else self.authority

    def __str__(self) -> str:
        return self.place + self.target

    def is_same_origin(self, other: WebUrl) -> bool:
        return self.place == other.place

    def is_below(self, prefix: SourcePrefix) -> bool:
        """True if no spelling of the path could lead out of the prefix."""
        try:
            here = parse_prefix(self.place + self.target.partition("?")[0])
        except SourceUriError:
            return False
        return prefix.covers(here.scheme, here.authority, here.path)

    def reach(self, named: Sequence[SourcePrefix]) -> Reach:
        """How far it may lead, where `named` is what the operator allowed."""
        if not any(self.is_below(prefix) for prefix in named):
            return Reach.PUBLIC
        return Reach.LITERAL if is_literal(self.host) else Reach.NAMED

    def redirected(self, location: str) -> WebUrl:
        """Where an answer's Location leads.

        Raises:
            ArtifactError: ``redirect_not_allowed``.
        """
        try:
            return parse_url(urljoin(str(self), location))
        except ValueError:
            message = f"{self.place} redirects to what is no URL that may be followed"
            raise ArtifactError("redirect_not_allowed", message, permanent=True) from None


def parse_url(url: str) -> WebUrl:
    """Reads a URL; a fragment is dropped.

    Raises:
        ValueError: it is not http(s), or has user information or no host. The message holds no secret.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"}:
        raise ValueError("it is neither http nor https")
    target = parts.path or "/"
    target += f"?{parts.query}" if parts.query else ""
    if not target.isascii() or any(character <= " " or character == "\x7f" for character in target):
        raise ValueError("its path has characters that must be escaped")
    return WebUrl(parts.scheme, check_authority(parts.scheme, parts.netloc), target)


def check_redirect(target: WebUrl, named: Sequence[SourcePrefix]) -> None:
    """Raises ArtifactError unless what a redirect leads to was allowed, or is https at its usual port."""
    if any(target.is_below(prefix) for prefix in named):
        return
    if target.scheme != "https" or target.host != target.authority:
        message = f"a redirect leads to {target.place}, expected https at port 443, or a URL that --allow-source names"
        raise ArtifactError("redirect_not_allowed", message, permanent=True)
