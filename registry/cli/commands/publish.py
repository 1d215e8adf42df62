"""Commands for whoever trained an adapter: publish, expect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import click

from registry.cli import options
from registry.cli.apply import ApplyOrder, apply_changes
from registry.cli.change.sets import Change
from registry.cli.commands.check import Remap, Source, Vision, compared_with, folder_at, plain_warnings
from registry.cli.failure import CliError, CommandFailure, Exit, refused, unavailable, usage
from registry.cli.local_adapters import unfit
from registry.cli.session import Session, pool_or_only, session_of
from registry.cli.source_reader import SourceReader, known_credentials, unreadable
from registry.cli.views.output import Printer, yaml_document
from registry.client.publication import Publication, change_of
from registry.client.upload.destination import WRITABLE, Destination, DestinationTaken, Unfinished, destination
from registry.lora.findings import CannotPublish, UnfitAdapter
from registry.lora.policy import policy_of
from registry.model.errors import Reason
from registry.model.expected_answers import (
    EXPECT_TOLERANCE,
    MAX_EXPECTED_PROMPT_TOKENS,
    MAX_EXPECTED_PROMPTS,
    MAX_EXPECTED_TOKENS,
)
from registry.model.messages import Plain
from registry.sources.base import ArtifactError
from registry.sources.credentials import HeldCredential
from registry.tools.convert.options import DEFAULT_MAX_ERROR, ConversionOptions, Dtype
from registry.tools.convert.publishing import Compared, PublishedFiles, torch_or_remedy
from registry.tools.convert.publishing import publish as publish_folder

if TYPE_CHECKING:  # torch is an extra
    from registry.tools.devstack.reference import ReferenceAnswer


# What conversions call each type of numbers.
_Dtype = Literal["float32", "float16", "bfloat16"]
_DTYPES: Mapping[_Dtype, Dtype] = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
Trained = Annotated[
    str, options.argument(metavar="DIR|URI", help="The adapter as it was trained: a folder or a source.")
]
SourceCredential = Annotated[
    str | None, options.flag("--source-credential", metavar="NAME", help="Credential to read a source with.")
]
Target = Annotated[str, options.argument(metavar="DEST", help=f"Where it goes: a folder, or a {WRITABLE} URI.")]
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
    context: click.Context,
    source: Trained,
    target: Target,
    *,
    pool: options.Pool = None,
    base_model: BaseModel = None,
    max_rank: MaxRank = None,
    rank: Rank = None,
    dtype: Annotated[_Dtype | None, options.flag("--dtype", help="Type of the numbers.")] = None,
    max_error: MaxError = DEFAULT_MAX_ERROR,
    initial: Initial = None,
    remap: Remap = "auto",
    vision: Vision = "reject",
    credentials: options.Credentials = None,
    credential: options.Credential = None,
    source_credential: SourceCredential = None,
    hf_endpoint: options.HfEndpoint = None,
    timeout: Timeout = None,
    name: Annotated[
        str | None,
        options.flag("--name", metavar="NAME", help="Adapter of --pool that gets it; all else of that stays as it is."),
    ] = None,
    wait: options.Wait = False,
    request_id: options.RequestId = None,
) -> None:
    """Convert an adapter to plain LoRA where it is not, check it, upload it, and print the digest to pin.

    With --name it is then registered, as by publish of the Python client: a new adapter has the defaults.
    """
    session = session_of(context)
    if name is None and (wait or request_id is not None):
        raise usage("--wait and --request-id go with --name, the adapter that gets what is published")
    policy = policy_of({"remap": remap, "vision": vision})
    conversion = ConversionOptions(rank, dtype and _DTYPES[dtype], max_error, policy, has_initial=initial is not None)
    with _failures(source, target):
        there = destination(target)
        held = _held(there, credentials, credential)
        with folder_at(source, SourceReader(credentials, hf_endpoint), source_credential, timeout) as folder:
            modules, limits, _ = compared_with(context, pool, base_model, max_rank)
            published = publish_folder(folder, there, Compared(modules, base_model, limits), conversion, initial, held)
    printer = session.printer()
    if name is None or printer.is_table:  # one document is printed, and the change has the source
        _tell(printer, there.uri, published, is_compared=modules is not None)
    if name is not None:
        publication = Publication(name=name, source=there.uri, digest=published.digest)
        _register(session, pool, publication, ApplyOrder(request_id, wait=wait))


def _register(session: Session, pool: str | None, publication: Publication, order: ApplyOrder) -> None:
    with session.client(order.read_seconds) as client:
        where = pool_or_only(client, pool)
    apply_changes(session, [Change(where, change_of(publication), "publish")], order)


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
        raise unavailable(Reason.UPLOAD_UNFINISHED, str(error)) from error
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


PROMPTS = (
    "The quick brown fox jumps over the lazy dog.",
    "SELECT name, price FROM products WHERE",
    "Question: What is the capital of France?\nAnswer:",
    "def main() -> None:\n    ",
)
_OTHER_BASE = "name the model that it was trained on, and prompts of its vocabulary"


def expect(
    context: click.Context,
    source: Source,
    *,
    base_model: Annotated[
        Path, options.flag("--base-model", metavar="DIR", help="Directory of the base model, with its weights.")
    ],
    prompt: Annotated[
        list[str] | None,
        options.flag(
            "--prompt",
            metavar="TEXT",
            help="Prompt to continue; may be repeated. Use prompts of the adapter's own task.",
        ),
    ] = None,
    prompt_ids: Annotated[
        list[str] | None, options.flag("--prompt-ids", metavar="N,N", help="The same as token ids; may be repeated.")
    ] = None,
    tokens: Annotated[
        int, options.flag("--tokens", metavar="N", min=1, max=MAX_EXPECTED_TOKENS, help="Tokens of each answer.")
    ] = 8,
    tolerance: Annotated[
        float, options.flag("--tolerance", metavar="T", min=0.0001, max=10, help="Largest difference of a logprob.")
    ] = EXPECT_TOLERANCE,
    dtype: Annotated[_Dtype, options.flag("--dtype", help="Type of the base's numbers.")] = "float32",
    credentials: options.Credentials = None,
    credential: options.Credential = None,
    hf_endpoint: options.HfEndpoint = None,
    timeout: Timeout = None,
) -> None:
    """Print what an adapter answers by transformers and PEFT, for spec.expect of its manifest."""
    asked = [*(prompt or ()), *map(_ids_of, prompt_ids or ())] or list(PROMPTS)
    if len(asked) > MAX_EXPECTED_PROMPTS:
        raise usage(f"{len(asked)} prompts are more than the {MAX_EXPECTED_PROMPTS} that a manifest takes")
    with _failures(source, source), torch_or_remedy():
        from registry.tools.devstack.reference import expected  # noqa: PLC0415 - torch is an extra

        with folder_at(source, SourceReader(credentials, hf_endpoint), credential, timeout) as folder:
            try:
                answers = expected(str(base_model), str(folder), asked, tokens, dtype)
            except (OSError, ValueError, RuntimeError) as error:
                message = f"PEFT cannot load {source} on {base_model}: {f'{error}'[:300]}; {_OTHER_BASE}"
                raise CannotPublish(message) from error
    _tell_expected(session_of(context).printer(), source, answers, tolerance)


def _ids_of(text: str) -> list[int]:
    numbers = text.split(",")
    if not all(one.strip().isdecimal() and len(one) < 10 for one in numbers):
        raise usage(f"--prompt-ids {text[:60]!r} must be numbers of tokens with commas between them, e.g. 1,450,4996")
    return [int(one) for one in numbers]


def _tell_expected(printer: Printer, source: str, answers: Sequence[ReferenceAnswer], tolerance: float) -> None:
    long = next((one for one in answers if len(one.prompt) > MAX_EXPECTED_PROMPT_TOKENS), None)
    if long is not None:
        raise usage(f"a prompt is {len(long.prompt)} tokens, and a manifest takes {MAX_EXPECTED_PROMPT_TOKENS}: cut it")
    told = [
        {"prompt": one.prompt, "tokens": one.tokens, "logprobs": [round(each, 5) for each in one.logprobs]}
        for one in answers
    ]
    expect: Plain = {"answers": told, "tolerance": tolerance}
    distance = max(
        abs(mine - base) for one in answers for mine, base in zip(one.logprobs, one.base_logprobs, strict=True)
    )
    far = f"without the adapter the logprobs of these tokens are up to {distance:.3g} away"
    little = "; that is within the tolerance, so that they prove little: take prompts of its own task"
    warnings = [{"reason": "expect_tells_little", "message": far + little}] if distance <= tolerance else []
    if printer.is_plain:
        printer.plain({"source": source, "expect": expect, "distance": distance, "warnings": warnings})
        return
    printer.lines([f"# {one['message']}" for one in warnings] or [f"# {far}"])
    printer.lines(yaml_document({"expect": expect}).splitlines()[1:])
