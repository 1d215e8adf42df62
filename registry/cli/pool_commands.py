"""Commands that change pools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from registry.cli import options
from registry.cli.client import Client
from registry.cli.failure import CliError, usage, with_remedy
from registry.cli.local_adapters import base_here, base_message
from registry.cli.output import Item, Printer, View
from registry.cli.session import WRITE_SECONDS, request_id_or_new, session_of
from registry.cli.views import POOLS
from registry.errors import Reason
from registry.v1 import registry_pb2 as pb

PoolName = Annotated[str, typer.Argument(help="Name of the pool.")]
_BASE_MODEL = options.flag(
    "--base-model", metavar="NAME", help="Name under which the engines serve the base model; may be repeated."
)
MaxRank = Annotated[
    int | None,
    options.flag("--max-rank", metavar="N", min=0, max=options.MOST_UINT32, help="Highest LoRA rank; 0: no limit."),
]
MaxAdapters = Annotated[
    int | None,
    options.flag(
        "--max-adapters",
        metavar="N",
        min=0,
        max=options.MOST_UINT32,
        help="Adapters that one engine holds at once; 0: no limit.",
    ),
]
TargetModules = Annotated[
    list[str] | None,
    options.flag(
        "--target-module", metavar="NAME", help="One of the engines' --lora-target-modules; may be repeated; none: all."
    ),
]
RequireSignature = Annotated[
    bool | None,
    options.flag(
        "--require-signature/--no-require-signature", help="Serve only what was signed with a key that sidecars know."
    ),
]
RequireDigest = Annotated[
    bool | None,
    options.flag(
        "--require-digest/--no-require-digest", help="Refuse changes that leave an adapter's source without a digest."
    ),
]
BaseFrom = Annotated[
    Path | None,
    options.flag(
        "--from", metavar="DIR", help="Directory of the base model, whose modules adapters are compared with."
    ),
]
BaseNames = Annotated[
    list[str] | None,
    options.flag(
        "--base-name", metavar="NAME", help="What an adapter may call that base; may be repeated; none: anything."
    ),
]
EngineKind = Annotated[
    str | None,
    options.flag(
        "--engine-kind", metavar="KIND", help="Kind of its engines: vllm (default), sglang, pegainfer, dynamo, axolotl."
    ),
]
EngineNames = Annotated[
    str | None,
    options.flag(
        "--engine-names",
        metavar="plain|versioned",
        help="What engines call an adapter: its name (default), or name@generation.",
    ),
]


def create(
    context: typer.Context,
    name: PoolName,
    *,
    base_model: Annotated[list[str], _BASE_MODEL],
    max_rank: MaxRank = None,
    max_adapters: MaxAdapters = None,
    target_module: TargetModules = None,
    require_signature: RequireSignature = None,
    require_digest: RequireDigest = None,
    base_from: BaseFrom = None,
    base_name: BaseNames = None,
    engine_kind: EngineKind = None,
    engine_names: EngineNames = None,
    dry_run: options.DryRun = False,
    timeout: options.Timeout = None,
    request_id: options.RequestId = None,
) -> None:
    """Create a pool."""
    session = session_of(context)
    limits = pb.PoolLimits(
        max_rank=max_rank,
        max_adapters=max_adapters,
        target_modules=target_module,
        require_signature=bool(require_signature),
        require_digest=bool(require_digest),
    )
    base = _base(base_from, base_name)
    pool = pb.Pool(
        name=name, base_models=base_model, limits=limits, base=base, engine=engine_kind, engine_names=engine_names
    )
    request = pb.CreatePoolRequest(pool=pool, request_id=request_id_or_new(request_id), validate_only=dry_run)
    with session.client(timeout or WRITE_SECONDS) as client:
        pool = client.create_pool(request)
    print_with_request(session.printer(), POOLS, pool, request.request_id)


def _base(directory: Path | None, names: list[str] | None) -> pb.BaseShapes | None:
    if directory is None and names:
        raise usage("--base-name goes with --from DIR, the directory of the base model")
    return base_message(base_here(directory, names or ())) if directory is not None else None


def update(
    context: typer.Context,
    name: PoolName,
    *,
    base_model: Annotated[list[str] | None, _BASE_MODEL] = None,
    max_rank: MaxRank = None,
    max_adapters: MaxAdapters = None,
    target_module: TargetModules = None,
    require_signature: RequireSignature = None,
    require_digest: RequireDigest = None,
    base_from: BaseFrom = None,
    base_name: BaseNames = None,
    engine_kind: EngineKind = None,
    engine_names: EngineNames = None,
    dry_run: options.DryRun = False,
    timeout: options.Timeout = None,
    request_id: options.RequestId = None,
) -> None:
    """Change what is given of a pool, and nothing else; where its record cannot be read, replace it whole."""
    session, base = session_of(context), _base(base_from, base_name)
    with session.client(timeout or WRITE_SECONDS) as client:
        before = _before(client, name, is_whole=bool(base_model))
        pool = pb.Pool(name=name)
        pool.MergeFrom(before or pool)
        if base_model:
            pool.base_models[:] = base_model
        if target_module:
            pool.limits.target_modules[:] = target_module
        if base is not None:
            pool.base.CopyFrom(base)
        _set(pool, engine=engine_kind, engine_names=engine_names)
        _set(pool.limits, max_rank=max_rank, max_adapters=max_adapters)
        _set(pool.limits, require_signature=require_signature, require_digest=require_digest)
        request = pb.UpdatePoolRequest(pool=pool, request_id=request_id_or_new(request_id), validate_only=dry_run)
        if before is not None:
            request.update_mask.paths.extend(_changed(before, pool))
        pool = client.update_pool(request)
    print_with_request(session.printer(), POOLS, pool, request.request_id)


def _before(client: Client, name: str, *, is_whole: bool) -> pb.Pool | None:
    """The pool as it is; None: its record cannot be read, and all of it is given anew.

    Raises:
        CliError: it cannot be read, and not all of it is given; or there is none.
    """
    try:
        return client.get_pool(name)
    except CliError as error:
        if error.failure.reason != Reason.UNREADABLE_RECORD:
            raise
        if is_whole:
            return None
        remedy = "give --base-model and every limit to replace it whole"
        raise CliError(with_remedy(error.failure, remedy)) from error


def _set(message: pb.Pool | pb.PoolLimits, **values: str | int | bool | None) -> None:
    """Sets what is given."""
    for name, value in values.items():
        if value is not None:
            setattr(message, name, value)


def _changed(before: pb.Pool, after: pb.Pool) -> list[str]:
    """The mask of an update; all that every client knows if nothing changed."""
    own = ("base_models", "base", "engine", "engine_names")
    paths = [name for name in own if getattr(before, name) != getattr(after, name)]
    names = [field.name for field in pb.PoolLimits.DESCRIPTOR.fields]
    paths += [f"limits.{name}" for name in names if getattr(before.limits, name) != getattr(after.limits, name)]
    return paths or ["base_models"]


def confirm_removals(
    context: typer.Context,
    name: PoolName,
    *,
    revision: Annotated[
        int,
        options.flag(
            "--revision",
            metavar="R",
            min=1,
            max=options.MOST_INT64,
            help="The revision that the replicas name; see get replicas.",
        ),
    ],
    etag: options.Etag = "",
    dry_run: options.DryRun = False,
    timeout: options.Timeout = None,
    request_id: options.RequestId = None,
) -> None:
    """Let replicas follow a list that they hold, since it removes very much or is of a restored store."""
    session = session_of(context)
    request = pb.ConfirmRemovalsRequest(
        name=name, revision=revision, etag=etag, request_id=request_id_or_new(request_id), validate_only=dry_run
    )
    with session.client(timeout or WRITE_SECONDS) as client:
        pool = client.confirm_removals(request)
    print_with_request(session.printer(), POOLS, pool, request.request_id)


def print_with_request(printer: Printer, view: View[Item], item: Item, request_id: str) -> None:
    """Prints an item and the id of the request that made it so."""
    if printer.is_plain:
        printer.plain({**view.plain(item), "request_id": request_id})
        return
    printer.item(view, item)
    if printer.is_table:
        printer.lines([f"request id {request_id}"])


def delete(
    context: typer.Context,
    name: PoolName,
    *,
    etag: options.Etag = "",
    dry_run: options.DryRun = False,
    timeout: options.Timeout = None,
    request_id: options.RequestId = None,
) -> None:
    """Delete a pool that has no adapters left."""
    session, printer = session_of(context), session_of(context).printer()
    request = pb.DeletePoolRequest(
        name=name, etag=etag, request_id=request_id_or_new(request_id), validate_only=dry_run
    )
    with session.client(timeout or WRITE_SECONDS) as client:
        revision = client.delete_pool(request).revision
    if printer.is_plain:
        printer.plain({"name": name, "revision": revision, "request_id": request.request_id})
    elif printer.is_table:
        printer.lines([f"deleted pool {name}", f"revision {revision}, request id {request.request_id}"])
    else:
        printer.lines([name])
