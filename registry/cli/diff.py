"""How an adapter would change, as a unified diff of its YAML. Pure."""

from __future__ import annotations

import difflib

import yaml

from registry.cli.wire import spec_dict
from registry.v1 import registry_pb2 as pb


def differences(before: pb.Adapter | None, after: pb.Adapter) -> list[str]:
    """The lines of the diff; empty where the specs are equal. `before` None: it does not exist yet."""
    old = f"{after.pool}/{after.name} generation {before.generation}" if before else "nothing"
    new = f"{after.pool}/{after.name} generation {after.generation}"
    return list(difflib.unified_diff(_lines(before), _lines(after), old, new, lineterm=""))


def _lines(adapter: pb.Adapter | None) -> list[str]:
    return yaml.safe_dump(spec_dict(adapter.spec), sort_keys=False).splitlines() if adapter else []
