"""A secret as long as it is held: it does not show itself, and says in which forms a source may take it. Pure."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from dataclasses import dataclass, field

MAX_SECRET_BYTES = 64 << 10
# What may stand in a header; anything else would be quoted in an HTTP library's complaint.
_HEADER_VALUE = re.compile(r"[\x21-\x7e]+")


class SecretError(Exception):
    """A secret is not of the form that is needed; the message says which, and nothing of the secret."""


@dataclass(frozen=True, slots=True)
class Secret:
    """The text of a credential: a token by itself, or a JSON object."""

    text: str = field(repr=False)

    def fields(self) -> dict[str, str]:
        """The strings of the JSON object, ``AccessKeyId`` and ``access_key_id`` alike as ``accesskeyid``.

        A text that is no JSON object is a token.
        """
        try:
            value = json.loads(self.text)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            return {"token": self.text}
        return {name.replace("_", "").lower(): one for name, one in value.items() if isinstance(one, str)}

    def authorization(self) -> str:
        """The value of an Authorization header: Bearer, or Basic where there is a user name.

        Raises:
            SecretError: there is neither, or it cannot stand in a header.
        """
        fields = self.fields()
        if "username" in fields and "password" in fields:
            pair = f"{fields['username']}:{fields['password']}".encode()
            return "Basic " + b64encode(pair).decode()
        token = fields.get("token") or fields.get("accesstoken")
        if token is None:
            raise SecretError("it has neither a token nor a username and password")
        return "Bearer " + as_header(token, "token")


def as_header(value: str, shown: str) -> str:
    """A part of a secret that is sent in a header; HTTP clients break in their own ways over what cannot stand there.

    Raises:
        SecretError: it cannot; the message says `shown`, and not the value.
    """
    if not _HEADER_VALUE.fullmatch(value):
        raise SecretError(f"its {shown} is empty, or has characters that cannot stand in a header")
    return value
