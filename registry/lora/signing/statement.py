"""Statements of model signing 1.0: files by sha256, and their use. Pure.

The statement is in-toto's, with the predicate that `model-signing` writes and reads: one entry for each file, and a
digest over all of these as the one subject. What a signature allows beyond "these are the files" stands in the same
predicate, in a field of our own that `model-signing` passes over. So one signature covers both, and nobody can put one
release's permission beside another release's files.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from registry.lora.signing.forms import SIGN_ANEW, BadBundle, list_of, object_of, other, text_of, whole
from registry.lora.text import printable

# Where the bundle stands, beside the files.
SIGNATURE_FILE = "model.sig"
PREDICATE_TYPE = "https://model_signing/signature/v1.0"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
BINDING_FIELD = "https://loraplane/binding/v1"
# Of git, which `model-signing` leaves out of what it signs, whether or not they are there.
GIT_PATHS = (".git", ".gitattributes", ".github", ".gitignore")
MAX_FILES = 4096
MAX_PATTERNS = 64
_SHA256 = re.compile(r"[0-9a-f]{64}")
_BINDING_KEYS = frozenset({"names", "pools", "base", "notAfter"})


@dataclass(frozen=True, slots=True)
class SignatureBinding:
    """Uses that a signature allows; empty or None: it does not limit them.

    Attributes:
        names: of adapters, with ``*`` for any part.
        pools: with ``*`` too.
        base: a name of the base model, or the fingerprint ``sha256:…`` of its modules.
        not_after: the last moment at which it allows anything, with its zone.
    """

    names: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()
    base: str | None = None
    not_after: datetime | None = None


UNBOUND = SignatureBinding()


@dataclass(frozen=True, slots=True)
class SignedFiles:
    """Content of a statement.

    Attributes:
        subject: what the signer called the folder; nothing is decided by it.
        sha256: of each file by its path, in hexadecimal.
        binding: what they may be used for.
    """

    subject: str
    sha256: Mapping[str, str]
    binding: SignatureBinding = UNBOUND


def write_statement(signed: SignedFiles, ignored: Sequence[str]) -> bytes:
    """The statement in JSON. `ignored`: paths that whoever compares the folder with it is to leave out."""
    resources = [
        {"digest": sha256, "algorithm": "sha256", "name": name} for name, sha256 in sorted(signed.sha256.items())
    ]
    predicate: dict[str, object] = {
        "serialization": {
            "method": "files",
            "hash_type": "sha256",
            "allow_symlinks": False,
            "ignore_paths": sorted(ignored),
        },
        "resources": resources,
    }
    if signed.binding != UNBOUND:
        predicate[BINDING_FIELD] = _plain(signed.binding)
    subject = {"name": signed.subject, "digest": {"sha256": _root([one["digest"] for one in resources])}}
    statement = {"_type": STATEMENT_TYPE, "subject": [subject], "predicateType": PREDICATE_TYPE, "predicate": predicate}
    return json.dumps(statement, indent=2).encode()


def _plain(binding: SignatureBinding) -> dict[str, object]:
    found = {
        "names": list(binding.names),
        "pools": list(binding.pools),
        "base": binding.base,
        "notAfter": binding.not_after and zulu(binding.not_after),
    }
    return {key: value for key, value in found.items() if value}


def zulu(moment: datetime) -> str:
    """A moment as statements and messages have it: ``2027-01-31T12:00:00Z``."""
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _root(digests: Sequence[str]) -> str:
    return hashlib.sha256(b"".join(map(bytes.fromhex, digests))).hexdigest()


def read_statement(payload: bytes) -> SignedFiles:
    """Content of a statement, whose signature was verified before.

    Raises:
        BadBundle: it is not of the form, or says something that this release does not know.
    """
    statement = whole(payload, "its statement")
    for key, expected in (("_type", STATEMENT_TYPE), ("predicateType", PREDICATE_TYPE)):
        if statement.get(key) != expected:
            raise other(key, statement.get(key), expected)
    subject = object_of(list_of(statement.get("subject"), "subject", 1, 1)[0], "subject")
    predicate = object_of(statement.get("predicate"), "predicate")
    serialization = object_of(predicate.get("serialization"), "serialization")
    hashed = serialization.get("method"), serialization.get("hash_type")
    if hashed != ("files", "sha256"):  # otherwise than we do, so that nothing could be compared
        raise other("serialization", hashed, "method files and hash_type sha256, which model_signing takes by default")
    sha256 = _resources(predicate.get("resources"))
    found = object_of(subject.get("digest"), "subject.digest").get("sha256")
    if found != (expected := _root(list(sha256.values()))):
        raise other("subject.digest.sha256", found, f"{expected}, that of its resources")
    return SignedFiles(text_of(subject.get("name"), "subject.name"), sha256, _binding(predicate.get(BINDING_FIELD, {})))


def _resources(resources: object) -> dict[str, str]:
    """The files in the order of the statement, each with its sha256."""
    found: dict[str, str] = {}
    for one in list_of(resources, "resources", 1, MAX_FILES):
        entry = object_of(one, "resources")
        name, digest = text_of(entry.get("name"), "resources.name"), entry.get("digest")
        if entry.get("algorithm") != "sha256" or not isinstance(digest, str) or not _SHA256.fullmatch(digest):
            raise other(f"resource {printable(name)!r}", digest, "a sha256 in 64 hexadecimal digits")
        if name in found:
            raise BadBundle(f"its statement lists {printable(name)!r} twice; {SIGN_ANEW}")
        found[name] = digest
    return found


def _binding(value: object) -> SignatureBinding:
    """A limit that is not understood is one that might be passed over, so it refuses all."""
    fields = object_of(value, BINDING_FIELD)
    if unknown := sorted(fields.keys() - _BINDING_KEYS):
        raise BadBundle(f"it binds {printable(unknown[0])!r}, which this release does not know; upgrade it")
    base = fields.get("base")
    return SignatureBinding(
        _patterns(fields.get("names", []), "names"),
        _patterns(fields.get("pools", []), "pools"),
        None if base is None else text_of(base, "base"),
        _moment(fields["notAfter"]) if "notAfter" in fields else None,
    )


def _patterns(value: object, field: str) -> tuple[str, ...]:
    return tuple(text_of(one, field) for one in list_of(value, field, 0, MAX_PATTERNS))


def _moment(value: object) -> datetime:
    try:
        return read_moment(text_of(value, "notAfter"))
    except ValueError:
        raise other("notAfter", value, "a moment as 2027-01-31T12:00:00Z") from None


def read_moment(text: str) -> datetime:
    """A day, whose end is meant, or a moment with its zone. Raises ValueError: it is neither."""
    if re.fullmatch(r"\d{4}-\d\d-\d\d", text):
        return datetime.fromisoformat(f"{text}T23:59:59+00:00")
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError("it has no zone")
    return found.astimezone(UTC)
