"""Guard of the plugin's routes: their callers, and the paths that they may name.

vLLM lets pages of all origins call it, and takes any body for JSON. So a caller has to send a header that no page can
send unasked, must not be a page at all, and must mean this server by an address that nobody else's name server gives.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from .server import Forbidden, UnsupportedBody

STORE_VARIABLE = "LORAPLANE_STORE"
TOKEN_VARIABLE = "LORAPLANE_CONTROL_TOKEN_FILE"  # noqa: S105 - the name of a variable
# Holds the token; anything, where there is none.
CONTROL_HEADER = "x-loraplane-control"
WITHOUT_TOKEN = "sidecar"  # noqa: S105 - says that there is none
# Far more than a token has.
_MAX_TOKEN_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Guard:
    """Permissions that an operator gives.

    Attributes:
        store: the sidecar's store, in which all paths have to be; None: nobody said, so a new version has to lie beside
            the one that it replaces.
        token_file: holds the token that callers have to send; None: they need none.
    """

    store: str | None = None
    token_file: Path | None = None

    async def admit(self, method: str, headers: Mapping[str, str]) -> None:
        """Lets a request with our header pass.

        Raises:
            Forbidden: it is a page's, for another server, or lacks the token.
            UnsupportedBody: what it brings is not said to be JSON.
        """
        if "origin" in headers:
            raise Forbidden("pages may not call this", field="origin")
        if not is_own_host(headers.get("host", "")):
            raise Forbidden("name this server by an IP address, localhost or its own name: --engine", field="host")
        if self.token_file is not None:
            expected = await asyncio.to_thread(read_token, self.token_file)
            if not hmac.compare_digest(expected, headers.get(CONTROL_HEADER, "").encode(errors="replace")):
                raise Forbidden(
                    "the control token is missing or another: give the sidecar --control-token-file with the token "
                    f"that {TOKEN_VARIABLE} names here",
                    field=CONTROL_HEADER,
                )
        if method == "POST" and headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise UnsupportedBody("the body must be application/json", field="content-type")

    async def check_path(self, path: str, beside: str) -> None:
        """Sees that `path` is where artifacts are; `beside` is where the name has its files now.

        Raises:
            Forbidden: it is not.
        """
        if self.store is not None:
            if not await asyncio.to_thread(is_below, path, self.store):
                raise Forbidden(f"{path!r} is not in {self.store!r}, which {STORE_VARIABLE} names", field="lora_path")
        elif Path(path).parent != Path(beside).parent or ".." in Path(path).parts:
            message = f"{path!r} does not lie beside {beside!r}: {STORE_VARIABLE} can name the sidecar's --store here"
            raise Forbidden(message, field="lora_path")


ANYONE_BESIDE = Guard()


def guard_of_environment() -> Guard:
    """Guard that the variables of this process describe."""
    store, token = (os.environ.get(name, "").strip() for name in (STORE_VARIABLE, TOKEN_VARIABLE))
    return Guard(store or None, Path(token) if token else None)


def is_below(path: str, folder: str) -> bool:
    """True if `path` leads to something inside `folder`; it asks the file system."""
    real, top = (os.path.realpath(one) for one in (path, folder))
    return real.startswith(top.rstrip("/") + "/")


def is_own_host(host: str) -> bool:
    """True for a Host that cannot be the name by which some page was led here."""
    try:
        name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return False
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        # A name without a dot is nobody's in public.
        return bool(name) and ("." not in name or name.endswith(".localhost") or name == socket.gethostname().lower())
    return True


def read_token(file: Path) -> bytes:
    """The token in a file, read anew each time so that it may change.

    Raises:
        Forbidden: there is none.
    """
    try:
        with file.open("rb") as opened:
            token = opened.read(_MAX_TOKEN_BYTES + 1)
    except OSError as error:
        raise Forbidden(f"{TOKEN_VARIABLE} cannot be read in the engine: {error.strerror}") from error
    if len(token) > _MAX_TOKEN_BYTES:
        raise Forbidden(f"the file that {TOKEN_VARIABLE} names has more than {_MAX_TOKEN_BYTES} bytes in the engine")
    token = token.strip()
    if not token:
        raise Forbidden(f"the file that {TOKEN_VARIABLE} names is empty in the engine")
    return token
