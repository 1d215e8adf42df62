"""The command that vouches for an adapter."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from registry.cli import options
from registry.cli.failure import usage
from registry.cli.local_adapters import digest_here, readable_folder
from registry.cli.session import session_of

MAX_KEY_BYTES = 1 << 16


def sign(
    context: typer.Context,
    source: Annotated[str, typer.Argument(metavar="DIR|URI", help="The adapter's folder, or its file:// URI.")],
    *,
    key: Annotated[Path, options.flag("--key", metavar="FILE", help="Private Ed25519 key in PEM, without password.")],
) -> None:
    """Print a signature of an adapter, for source.signature of its manifest."""
    from registry.lora.ed25519 import BadKey  # noqa: PLC0415 - megabytes that no other command needs
    from registry.lora.ed25519 import sign as signature_of  # noqa: PLC0415 - see above

    printer = session_of(context).printer()
    digest = digest_here(readable_folder(source))
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
