"""Values of etcd as plain JSON, so that a check knows nothing of how they were made. Pure."""

from __future__ import annotations

import json
from typing import Any

Document = dict[str, Any]


def tenant_of_key(key: str) -> str:
    """The tenant of a name key."""
    tenant, slash, _ = key.partition("%2F")
    return tenant if slash else "default"


def document(value: bytes | None) -> Document | None:
    """A value as a JSON object; None for no value. What is no JSON object is shown as the audit record shows it."""
    if value is None:
        return None
    try:
        parsed = json.loads(value)
    except ValueError:
        parsed = None
    return parsed if isinstance(parsed, dict) else {"unreadable": value[:4096].decode(errors="backslashreplace")}
