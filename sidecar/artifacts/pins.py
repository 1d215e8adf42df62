"""What a reference without a digest came to mean on this host, so that it never means something else later."""

from __future__ import annotations

import hashlib
import json
import re

import structlog

from registry.lora.manifest import canonical_json
from sidecar.artifacts.files import write_atomic
from sidecar.artifacts.layout import Layout
from sidecar.artifacts.types import ArtifactRef

_log = structlog.get_logger()
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def pin_name(ref: ArtifactRef) -> str:
    """Name of the pin and of its lock. The URI is a part, in case the same generation was made twice, in two etcds."""
    return "pin-" + hashlib.sha256(canonical_json([ref.pin_key, ref.uri])).hexdigest()


class Pins:
    """The pins of a host, shared by its replicas."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def digest(self, ref: ArtifactRef) -> str | None:
        """The digest that the reference says, or else came to mean here; None if it was never read."""
        if ref.digest is not None:
            return ref.digest
        return self._read(pin_name(ref))

    def put(self, ref: ArtifactRef, digest: str) -> None:
        """Writes the pin. The caller holds the lock of that name."""
        name = pin_name(ref)
        content = canonical_json({"schema": 1, "pin_key": ref.pin_key, "digest": digest})
        write_atomic(self._layout.pin(name), content, temporary=self._layout.temporary(name, "json"))

    def _read(self, name: str) -> str | None:
        try:
            digest = json.loads(self._layout.pin(name).read_bytes())["digest"]
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError) as error:
            _log.warning("pin_damaged", file=str(self._layout.pin(name)), error=str(error))
            return None
        return digest if isinstance(digest, str) and _DIGEST.fullmatch(digest) else None
