"""Commands that publish and sign an adapter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from registry.cli import options
from registry.cli.commands.check import (
    Remap,
    Source,
    Vision,
    compared_with,
    digest_of_source,
    folder_at,
    plain_warnings,
)
from registry.cli.failure import CliError, CommandFailure, Exit, refused, usage
from registry.cli.local_adapters import unfit
from registry.cli.session import session_of
from registry.cli.source_reader import SourceReader, known_credentials, unreadable
from registry.cli.views.output import Printer
from registry.lora.findings import UnfitAdapter
from registry.lora.policy import policy_of
from registry.model.errors import Reason
from registry.sources.base import ArtifactError
from registry.sources.credentials import HeldCredential
from registry.tools.convert.destination import Destination, DestinationTaken, Unfinished, destination
from registry.tools.convert.options import DEFAULT_MAX_ERROR, CannotPublish, ConversionOptions
from registry.tools.convert.publishing import Compared, PublishedFiles
from registry.tools.convert.publishing import publish as publish_folder


class Dtype(StrEnum):
    """Choices of --dtype."""

    F32 = "float32"
    F16 = "float16"
    BF16 = "bfloat16"


Trained = Annotated[str, typer.Argument(metavar="DIR|URI", help="The adapter as it was trained: a folder or a source.")]
SourceCredential = Annotated[
    str | None, options.flag("--source-credential", metavar="NAME", help="The one to read a source with.")
]
Target = Annotated[
    str, typer.Argument(metavar="DEST", help="Where it goes: a folder, or a file://, s3://, gs:// or az:// URI.")
]
BaseModel = Annotated[
    Path | None, options.flag("--base-model", metavar="DIR", help="Directory of the base model, with its weights.")
]
MaxRank = Annotated[
    int | None, options.flag("--max-rank", metavar="N", min=1, help="Highest LoRA rank of the engines.")
]
Rank = Annotated[
    int | None, options.flag("--rank", metavar="N", min=1, help="Rank to reduce to, or to convert DoRA to.")
]
MaxError = Annotated[float, options.flag("--max-error", metavar="E", min=0, help="Largest relative error of a module.")]
Initial = Annotated[
    Path | None, options.flag("--initial", metavar="DIR", help="The adapter as it was before its training.")
]
Timeout = Annotated[
    float | None, options.flag("--timeout", metavar="S", min=0.1, help="Seconds for reading a source (default: 600).")
]


def publish(
    context: typer.Context,
    source: Trained,
    target: Target,
    *,
    pool: options.Pool = None,
    base_model: BaseModel = None,
    max_rank: MaxRank = None,
    rank: Rank = None,
    dtype: Annotated[Dtype | None, options.flag("--dtype", help="Type of the numbers.")] = None,
    max_error: MaxError = DEFAULT_MAX_ERROR,
    initial: Initial = None,
    remap: Annotated[Remap, options.flag("--remap", help="As prepare.remap of a manifest.")] = Remap.AUTO,
    vision: Annotated[Vision, options.flag("--vision", help="As prepare.vision of a manifest.")] = Vision.REJECT,
    credentials: options.Credentials = None,
    credential: options.Credential = None,
    source_credential: SourceCredential = None,
    hf_endpoint: options.HfEndpoint = None,
    timeout: Timeout = None,
) -> None:
    """Convert an adapter to plain LoRA where it is not, check it, upload it, and print the digest to pin."""
    session = session_of(context)
    policy = policy_of({"remap": remap.value, "vision": vision.value})
    conversion = ConversionOptions(rank, dtype and dtype.name, max_error, policy, has_initial=initial is not None)  # type: ignore[arg-type]
    with _failures(source, target):
        there = destination(target)
        held = _held(there, credentials, credential)
        with folder_at(source, SourceReader(credentials, hf_endpoint), source_credential, timeout) as folder:
            modules, limits = compared_with(context, pool, base_model, max_rank)
            published = publish_folder(folder, there, Compared(modules, base_model, limits), conversion, initial, held)
    _tell(session.printer(), there.uri, published, is_compared=modules is not None)


def _held(there: Destination, credentials: Path | None, credential: str | None) -> HeldCredential | None:
    if isinstance(there.place, Path):
        return None
    return known_credentials(credentials).hold(credential, there.place)


@contextmanager
def _failures(source: str, target: str) -> Iterator[None]:
    try:
        yield
    except UnfitAdapter as error:
        raise unfit(source, error.findings) from error
    except CannotPublish as error:
        raise refused(Reason.CANNOT_PUBLISH, str(error)) from error
    except DestinationTaken as error:
        message = f"{error} is there with other content; what is published is never replaced: choose another place"
        raise CliError(CommandFailure(Exit.CONFLICT, Reason.DESTINATION_TAKEN, message)) from error
    except Unfinished as error:
        raise CliError(CommandFailure(Exit.UNAVAILABLE, Reason.UPLOAD_UNFINISHED, str(error))) from error
    except ArtifactError as error:
        raise unreadable(target, error) from error
    except OSError as error:
        raise usage(f"cannot read or write {error.filename or source}: {error.strerror}") from error


def _tell(printer: Printer, uri: str, published: PublishedFiles, *, is_compared: bool) -> None:
    warnings = plain_warnings(published.warnings, is_compared=is_compared)
    if printer.is_plain:
        modules = [one.as_dict() for one in published.outcomes]
        printer.plain({"uri": uri, "modules": modules, "warnings": warnings, "digest": published.digest})
        return
    if printer.is_table:
        rows = [
            (one.module, one.kind, f"{one.trained_rank}", f"{one.rank}", f"{one.error:.2e}")
            for one in published.outcomes
        ]
        if rows:
            printer.table(("MODULE", "KIND", "TRAINED RANK", "RANK", "ERROR"), rows)
        printer.lines(f"warning: {one['reason']}: {one['message']}" for one in warnings)
        printer.lines([f"{uri} {'was there already' if published.was_there else 'is written'}"])
    printer.lines([published.digest])


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
    digest = digest_of_source(source, SourceReader(credentials, hf_endpoint), credential, timeout)
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
