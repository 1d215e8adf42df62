"""URIs of sources, and prefixes that allow them. Pure.

The admin service refuses at apply what a sidecar would refuse later, so both read URIs here. No message repeats a
query, a fragment or user information: these are where secrets stand.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal
from urllib.parse import SplitResult, unquote, urlsplit

# A folder of one host, a hub's repository, a prefix in a bucket, a place of a web server, an artifact of a registry of
# containers, or what a command fetches.
SourceKind = Literal["folder", "hub", "bucket", "web", "registry", "fetched"]
# The one table of schemes, in the order in which they are offered.
SCHEMES: Mapping[str, SourceKind] = MappingProxyType(
    {
        "file": "folder",
        "hf": "hub",
        "s3": "bucket",
        "gs": "bucket",
        "az": "bucket",
        "https": "web",
        "http": "web",
        "oci": "registry",
    }
)
# Schemes that commands of hosts fetch. None of ours has a hyphen, so that no slip in writing one of ours is such a one.
_FETCHED = re.compile(r"(?=.{3,40}$)[a-z][a-z0-9]*(?:-[a-z0-9]+)+")
FETCHED_EXAMPLE = "wandb-artifact"
# Of the schemes of the web.
DEFAULT_PORTS: Mapping[str, int] = MappingProxyType({"https": 443, "http": 80})
ARCHIVES = (".tar", ".tar.gz", ".tgz")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST = re.compile(rf"{_LABEL}(?:\.{_LABEL})*|\[[0-9a-f:.]+\]")
_PORT = re.compile(r"[0-9]{1,5}")
_BUCKET = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,253}[a-z0-9])?")
_FETCHED_AUTHORITY = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9._:-]{0,253}[A-Za-z0-9])?)?")
# As the distribution API has them.
_IMAGE_PART = re.compile(r"(?=.{1,128}$)[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_IMAGE_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_USUAL_TAG = "latest"
_IMAGE_FORM = "write oci://HOST/REPOSITORY[:TAG] or oci://HOST/REPOSITORY@sha256:DIGEST"
_REPOSITORY_PART = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?")
# What needs no escape anywhere, so that a key means the same to every client.
_KEY_SEGMENT = re.compile(r"[A-Za-z0-9._=+@,:~-]+")
# What no part of a path may hold behind its escapes.
_NOT_PLAIN = re.compile(r"[/\\\x00-\x1f\x7f]")
_URL_SEGMENT = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})+")


class SourceUriError(ValueError):
    """A URI names no source; the message says why and what to write instead, and holds no secret."""


@dataclass(frozen=True, slots=True)
class SourceUri:
    """A source of any scheme but file, whose paths only the host that has them can follow.

    Attributes:
        scheme: one of `SCHEMES`, or one that commands of hosts fetch.
        authority: host and port as ``host[:port]``, a bucket, a container, or a hub's organisation; may be empty for
            what is fetched by a command.
        path: the names below it, escapes as they were written.
        commit: of the hub's repository, or the tag or the digest of a registry's artifact; else empty.
        is_directory: False if the URI names one archive.
    """

    scheme: str
    authority: str
    path: tuple[str, ...]
    commit: str = ""
    is_directory: bool = True

    @property
    def kind(self) -> SourceKind:
        """The kind of source that its scheme names."""
        return kind_of(self.scheme)


@dataclass(frozen=True, slots=True)
class SourcePrefix:
    """Prefix that an operator allows, or binds a credential to: everything below it."""

    scheme: str
    authority: str
    path: tuple[str, ...]

    def covers(self, scheme: str, authority: str, path: tuple[str, ...]) -> bool:
        """True if that is this or below it; ``/ab`` is not below ``/a``."""
        return (scheme, authority, path[: len(self.path)]) == (self.scheme, self.authority, self.path)

    def __str__(self) -> str:
        return f"{self.scheme}://{'/'.join((self.authority, *self.path))}"


def scheme_of(uri: str) -> str:
    """The scheme of a URI.

    Raises:
        SourceUriError: it has none that is known.
    """
    scheme, separator, _ = uri.partition("://")
    if not separator or not (scheme in SCHEMES or is_fetched(scheme)):
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise SourceUriError(
            f"the scheme {scheme[:40]!r} is not known; use one of {known}, or one with a hyphen that a --fetcher of "
            f"sidecars has, as {FETCHED_EXAMPLE}://"
        )
    return scheme


def is_fetched(scheme: str) -> bool:
    """True for the schemes that commands of hosts may fetch: with a hyphen."""
    return _FETCHED.fullmatch(scheme) is not None


def kind_of(scheme: str) -> SourceKind:
    """The kind of source of a scheme that `scheme_of` gave."""
    return SCHEMES.get(scheme, "fetched")


def parse_source(uri: str) -> SourceUri:
    """Reads the URI of a source.

    Raises:
        SourceUriError: it is none, or one of a file.
    """
    scheme, parts = _remote(uri)
    kind = kind_of(scheme)
    if kind == "hub":
        return _hub_source(scheme, parts)
    if kind == "registry":
        return _image_source(scheme, parts)
    path = _path(scheme, parts.path)
    if kind == "fetched":
        return SourceUri(scheme, _fetched_authority(parts), _some(path))
    if kind == "bucket":
        return SourceUri(scheme, _bucket(parts), path)
    is_archive = bool(path) and path[-1].endswith(ARCHIVES) and not parts.path.endswith("/")
    if not is_archive and not parts.path.endswith("/"):
        raise SourceUriError(f"end the URL of a directory with /, or name one archive ({', '.join(ARCHIVES)})")
    return SourceUri(scheme, check_authority(scheme, parts.netloc), path, is_directory=not is_archive)


def parse_prefix(prefix: str) -> SourcePrefix:
    """Reads a prefix of URIs, of any scheme but file.

    Raises:
        SourceUriError: it is none.
    """
    scheme, parts = _remote(prefix)
    kind = kind_of(scheme)
    if kind == "hub":
        if "@" in prefix:
            raise SourceUriError("a prefix names no commit; write hf://ORGANISATION or hf://ORGANISATION/REPOSITORY")
        return SourcePrefix(scheme, _repository_part(parts.netloc), _path(scheme, parts.path))
    if kind == "registry":
        if "@" in prefix or ":" in parts.path:
            raise SourceUriError("a prefix names no tag or digest; write oci://HOST or oci://HOST/REPOSITORY")
        return SourcePrefix(scheme, check_authority("https", parts.netloc), _image_path(parts.path.removesuffix("/")))
    if kind == "fetched":
        return SourcePrefix(scheme, _fetched_authority(parts), _path(scheme, parts.path))
    authority = _bucket(parts) if kind == "bucket" else check_authority(scheme, parts.netloc)
    return SourcePrefix(scheme, authority, _path(scheme, parts.path))


def without_secrets(uri: str) -> str:
    """The URI as it may be shown: no user information, query or fragment, and not too long."""
    shown = re.split(r"[?#]", uri, maxsplit=1)[0]
    return re.sub(r"(?<=://)[^/]*@", "", shown)[:300]


def check_authority(scheme: str, netloc: str) -> str:
    """``host[:port]`` of a web URL in its one spelling: lower case, without the default port.

    Raises:
        SourceUriError: it has user information, or names no host.
    """
    if "@" in netloc:
        raise SourceUriError("a user or password in a URL is a secret; name a credential in spec.credentials instead")
    host, colon, port = netloc.lower().rpartition(":")
    if not colon or port.endswith("]"):
        host, port = netloc.lower(), ""
    if not _HOST.fullmatch(host) or (port and not (_PORT.fullmatch(port) and 0 < int(port) < 65536)):
        raise SourceUriError("the URL has no host and port that can be used")
    return host if not port or int(port) == DEFAULT_PORTS.get(scheme) else f"{host}:{int(port)}"


def _remote(uri: str) -> tuple[str, SplitResult]:
    """The scheme and the parts of a URI or prefix that more than one host can follow."""
    scheme = scheme_of(uri)
    if "?" in uri or "#" in uri:
        raise SourceUriError(
            "the URI has a query or a fragment, where presigned URLs have their secret: leave it out, and name a "
            "credential in spec.credentials"
        )
    try:
        parts = urlsplit(uri)
    except ValueError as error:
        raise SourceUriError("the URI cannot be read; look at its brackets") from error
    if kind_of(scheme) == "folder":
        raise SourceUriError("a file:// URI is a path of one host")
    return scheme, parts


def _bucket(parts: SplitResult) -> str:
    if not _BUCKET.fullmatch(parts.netloc) or ".." in parts.netloc:
        raise SourceUriError("the URI names no bucket: write SCHEME://BUCKET/PATH")
    return parts.netloc


def _fetched_authority(parts: SplitResult) -> str:
    if not _FETCHED_AUTHORITY.fullmatch(parts.netloc):
        raise SourceUriError("what stands before the path is no plain name; a secret belongs into spec.credentials")
    return parts.netloc


def _some(path: tuple[str, ...]) -> tuple[str, ...]:
    if not path:
        raise SourceUriError(f"the URI has no path: write {FETCHED_EXAMPLE}:///PATH, as its fetcher takes it")
    return path


def _path(scheme: str, path: str) -> tuple[str, ...]:
    """The names of a path; a slash at the end adds none."""
    names = path.removeprefix("/").removesuffix("/")
    segments = tuple(names.split("/")) if names else ()
    pattern = _URL_SEGMENT if kind_of(scheme) == "web" else _KEY_SEGMENT
    for segment in segments:
        plain = unquote(segment)
        if not pattern.fullmatch(segment) or plain in {".", ".."} or _NOT_PLAIN.search(plain):
            raise SourceUriError(f"the path has the part {segment[:100]!r}, which is empty, dotted or not plain")
    return segments


def _repository_part(name: str) -> str:
    if not _REPOSITORY_PART.fullmatch(name) or ".." in name:
        raise SourceUriError("write hf://ORGANISATION/REPOSITORY[/DIRECTORY]@COMMIT")
    return name


def is_movable(source: SourceUri) -> bool:
    """True for an artifact of a registry that is named by a tag, which may name another one tomorrow."""
    return source.kind == "registry" and not _IMAGE_DIGEST.fullmatch(source.commit)


def settled_uri(source: SourceUri, digest: str) -> str:
    """The URI of a registry's artifact by the digest that its tag has now."""
    return f"{SourcePrefix(source.scheme, source.authority, source.path)}@{digest}"


def _image_source(scheme: str, parts: SplitResult) -> SourceUri:
    if "@" in parts.path:
        path, _, reference = parts.path.partition("@")
        is_named = _IMAGE_DIGEST.fullmatch(reference) is not None
    else:
        path, colon, tag = parts.path.partition(":")
        reference = tag if colon else _USUAL_TAG
        is_named = _TAG.fullmatch(reference) is not None
    names = _image_path(path)
    if not is_named or not names:
        raise SourceUriError(_IMAGE_FORM)
    return SourceUri(scheme, check_authority("https", parts.netloc), names, reference)


def _image_path(path: str) -> tuple[str, ...]:
    names = tuple(path.removeprefix("/").split("/")) if path.strip("/") else ()
    if not all(map(_IMAGE_PART.fullmatch, names)):
        raise SourceUriError(f"a repository's name has lower case, digits and . _ - between them; {_IMAGE_FORM}")
    return names


def _hub_source(scheme: str, parts: SplitResult) -> SourceUri:
    path, _, commit = parts.path.rpartition("@")
    if not _COMMIT.fullmatch(commit):
        raise SourceUriError(
            "a hub's source names the commit, 40 hexadecimal digits: hf://ORGANISATION/REPOSITORY[/DIRECTORY]@COMMIT; "
            "a branch may change under a running fleet"
        )
    names = _path(scheme, path)
    _repository_part(names[0] if names else "")
    return SourceUri(scheme, _repository_part(parts.netloc), names, commit)
