"""The command that makes an adapter servable and puts it where replicas read it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from registry.cli import options
from registry.cli.check_commands import Remap, Vision, compared_with, folder_at, plain_warnings
from registry.cli.desk import Desk, known_credentials, unreadable
from registry.cli.failure import CliError, Exit, Failure, refused, usage
from registry.cli.local_adapters import unfit
from registry.cli.output import Printer
from registry.cli.session import session_of
from registry.errors import Reason
from registry.lora.findings import UnfitAdapter
from registry.lora.policy import policy_of
from registry.publish.destination import Destination, DestinationTaken, Unfinished, destination
from registry.publish.outcome import CannotPublish
from registry.publish.publishing import Compared, Published
from registry.publish.publishing import publish as publish_folder
from registry.publish.wish import DEFAULT_MAX_ERROR, Wish
from registry.sources.credentials import Held
from registry.sources.errors import ArtifactError


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
    wish = Wish(rank, dtype and dtype.name, max_error, policy, has_initial=initial is not None)  # type: ignore[arg-type]
    with _failures(source, target):
        there = destination(target)
        held = _held(there, credentials, credential)
        with folder_at(source, Desk(credentials, hf_endpoint), source_credential, timeout) as folder:
            modules, limits = compared_with(context, pool, base_model, max_rank)
            published = publish_folder(folder, there, Compared(modules, base_model, limits), wish, initial, held)
    _tell(session.printer(), there.uri, published, is_compared=modules is not None)


def _held(there: Destination, credentials: Path | None, credential: str | None) -> Held | None:
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
        raise CliError(Failure(Exit.CONFLICT, Reason.DESTINATION_TAKEN, message)) from error
    except Unfinished as error:
        raise CliError(Failure(Exit.UNAVAILABLE, Reason.UPLOAD_UNFINISHED, str(error))) from error
    except ArtifactError as error:
        raise unreadable(target, error) from error
    except OSError as error:
        raise usage(f"cannot read or write {error.filename or source}: {error.strerror}") from error


def _tell(printer: Printer, uri: str, published: Published, *, is_compared: bool) -> None:
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
