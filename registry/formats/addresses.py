"""Sources as other systems write them, and as a manifest does. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import quote, unquote

from registry.model.source_uri import SourceUriError, parse_source

_SCHEMES: Mapping[str, str] = {"gcs://": "gs://", "huggingface://": "hf://"}
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+(?:@[\w.-]+)?", re.ASCII)
_REWRITE = "--rewrite FROM=TO puts another beginning in its place"


class SourceLeavesTree(ValueError):
    """A path leads out of the folder that it is below, or is none that replicas could follow."""


def source_of(written: str, rewrites: Mapping[str, str]) -> str:
    """The URI of a manifest for a source as it was written: a URI, an absolute path, or a hub's ``ORG/REPO``.

    Raises:
        SourceUriError: there is no such source here; the message holds no secret.
        SourceLeavesTree: it is a path with ``..`` in it.
    """
    for form in (written, _as_uri(written)):
        begun = max((one for one in rewrites if form.startswith(one)), key=len, default=None)
        if begun is not None:
            written = rewrites[begun] + form.removeprefix(begun)
            break
    written = _as_uri(written)
    if written.startswith("file://"):
        return _file(written)
    try:
        parse_source(written)
    except SourceUriError as error:
        raise SourceUriError(f"{error}; {_REWRITE}") from error
    return written


def _as_uri(written: str) -> str:
    """The same as a URI in our schemes, where it is known what it stands for."""
    for theirs, ours in _SCHEMES.items():
        if written.startswith(theirs):
            written = ours + written.removeprefix(theirs)
    if written.startswith("/"):
        return f"file://{quote(written)}"
    return f"hf://{written}" if _REPOSITORY.fullmatch(written) else written


def _file(uri: str) -> str:
    path = unquote(uri.removeprefix("file://"))
    if not path.startswith("/") or any(ord(letter) < 32 for letter in path):
        raise SourceUriError(f"a file:// URI holds an absolute path; {_REWRITE}")
    check_within(path)
    return uri


def check_within(path: str) -> None:
    """Raises SourceLeavesTree if a path has a part that leads upwards."""
    if ".." in path.split("/"):
        raise SourceLeavesTree("the path has .. in it, which leads out of its tree; write it without")
