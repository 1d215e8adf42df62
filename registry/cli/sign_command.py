"""The command that vouches for an adapter."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from registry.cli import options
from registry.cli.check_commands import Source, digest_of_source
from registry.cli.desk import Desk
from registry.cli.failure import usage
from registry.cli.session import session_of

MAX_KEY_BYTES = 1 << 16


def sign(
    context: typer.Context,
    source: Source,
    *,
    key: Annotated[Path, options.flag("--key", metavar="FILE", help="Private Ed25519 key in PEM, without password.")],
    credentials: options.Credentials = None,
    credential: options.Credential = None,
    hf_endpoint: options.HfEndpoint = None,
    timeout: options.Timeout = None,
) -> None:
    """Print a signature of an adapter, for source.signature of its manifest."""
    from registry.lora.ed25519 import BadKey  # noqa: PLC0415 - megabytes that no other command needs
    from registry.lora.ed25519 import sign as signature_of  # noqa: PLC0415 - see above

    printer = session_of(context).printer()
    digest = digest_of_source(source, Desk(credentials, hf_endpoint), credential, timeout)
    try:
        with key.open("rb") as file:
            signature = signature_of(digest, file.read(MAX_KEY_BYTES))
    except OSError as error:
        raise usage(f"--key {key} cannot be read: {error.strerror}") from error
    except BadKey as error:
        raise usage(f"--key {key}: {error}") from error
    if printer.is_plain:
        printer.plain({"source": source, "digest": digest, "signature": signature})
    else:
        printer.lines([signature])
