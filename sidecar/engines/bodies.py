"""Bodies of replies as JSON, whatever was sent. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping


def json_of(body: bytes) -> object:
    """The JSON of a body; None where it is none."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def fields_of(body: bytes) -> Mapping[str, object]:
    """The fields of a JSON object; none where it is no object."""
    fields = json_of(body)
    return fields if isinstance(fields, dict) else {}
