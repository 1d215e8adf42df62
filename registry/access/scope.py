"""Patterns of bindings: names, prefixes of sources, tenants in names. Pure."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

from registry.model.errors import InvalidArgument
from registry.model.names import check_segment
from registry.model.source_uri import SourcePrefix, SourceUriError, parse_prefix, parse_source

PLACEHOLDER = "{tenant}"
_PATTERN = re.compile(r"[A-Za-z0-9._*-]+")


def check_pattern(pattern: str) -> None:
    """Raises ValueError unless it may stand for names of tenants or pools."""
    if not _PATTERN.fullmatch(pattern.replace(PLACEHOLDER, "tenant")):
        raise ValueError(f"write a name with letters, digits and . _ -, * for any part of it, or {PLACEHOLDER}")


def tenant_in(word: str, name: str) -> str | None:
    """The tenant for which a word with the placeholder is this name; None: for none."""
    before, _, after = word.partition(PLACEHOLDER)
    tenant = name[len(before) : len(name) - len(after)]
    if f"{before}{tenant}{after}" != name:
        return None
    try:
        check_segment(tenant, field="tenant")
    except InvalidArgument:
        return None
    return tenant.lower()


def source_prefix(text: str) -> SourcePrefix:
    """Prefix of sources, of any scheme. Raises ValueError: it is none."""
    return parse_prefix(text) if not text.startswith("file:") else SourcePrefix("file", "", _folder(text))


def below(text: str) -> str:
    """The beginning of all sources below a prefix, as `spelled`; of none if a tenant made it what is no prefix."""
    try:
        return f"{source_prefix(text)}/"
    except SourceUriError:
        return f"{text}//"  # no source has an empty part


def spelled(uri: str) -> str:
    """A source in the one spelling that it has in all bindings, with / at its end; "": it cannot be read."""
    try:
        if uri.startswith("file:"):
            return "/".join(("file://", *_folder(uri), ""))
        source = parse_source(uri)
    except SourceUriError:
        return ""
    return "/".join((f"{source.scheme}://{source.authority}", *source.path, ""))


def _folder(uri: str) -> tuple[str, ...]:
    """Names on the way to a folder. Links on it are followed by the sidecar alone, which has its own --allow-source."""
    parts = urlsplit(uri)
    names = tuple(name for name in unquote(parts.path).split("/") if name)
    if parts.netloc or parts.query or parts.fragment or not parts.path.startswith("/") or {".", ".."} & set(names):
        raise SourceUriError("write file:///absolute/directory, without . and .. in it")
    return names
