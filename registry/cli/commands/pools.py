"""Commands that change pools and tenants."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import click

from registry.cli import options
from registry.cli.client import AdminClient
from registry.cli.failure import CliError, refused, usage, with_remedy
from registry.cli.local_adapters import base_here, base_message
from registry.cli.removal import ask_protected
from registry.cli.session import WRITE_SECONDS, request_id_or_new, session_of
from registry.cli.views.columns import POOLS, TENANTS
from registry.cli.views.output import Item, OutputView, Printer
from registry.cli.views.report import request_line
from registry.client import admin_api as api
from registry.model.errors import Reason, RegistryError
from registry.model.messages import evidence_message
from registry.v1 import registry_pb2 as pb

# No longer than what the messages take.
_NUMBER = re.compile(r"[0-9]{1,9}")
# Takes back what roles a pool asks for.
_NO_ROLE = "any"
ChangeRequest = pb.CreatePoolRequest | pb.UpdatePoolRequest | pb.ConfirmRemovalsRequest | pb.SetTenantRequest
PoolName = Annotated[str, options.naming(help="Name of the pool.")]
_BASE_MODEL = options.flag(
    "--base-model", metavar="NAME", help="Name under which the engines serve the base model; may be repeated."
)


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """Settings of a pool when it is made or changed; None: it is not given."""

    max_rank: Annotated[
        int | None,
        options.flag("--max-rank", metavar="N", min=0, max=options.MOST_UINT32, help="Highest LoRA rank; 0: no limit."),
    ] = None
    max_adapters: Annotated[
        int | None,
        options.flag(
            "--max-adapters",
            metavar="N",
            min=0,
            max=options.MOST_UINT32,
            help="Adapters that one engine holds at once; 0: no limit.",
        ),
    ] = None
    expect: Annotated[
        int | None,
        options.flag(
            "--expect",
            metavar="N",
            min=0,
            max=options.MOST_UINT32,
            help="Number of replicas that the pool expects; 0: those that lived within the last day.",
        ),
    ] = None
    expect_labels: Annotated[
        list[str] | None,
        options.flag(
            "--expect-labels",
            metavar="K=V[,K=V]:N",
            help="Number of replicas with these labels that the pool expects; :0 removes the group; may be repeated.",
        ),
    ] = None
    target_module: Annotated[
        list[str] | None,
        options.flag(
            "--target-module",
            metavar="NAME",
            help="One of the engines' --lora-target-modules; may be repeated; none: all.",
        ),
    ] = None
    require_signature: Annotated[
        bool | None,
        options.flag(
            "--require-signature/--no-require-signature",
            help="Serve only what was signed with a key that sidecars know.",
        ),
    ] = None
    require_digest: Annotated[
        bool | None,
        options.flag(
            "--require-digest/--no-require-digest",
            help="Refuse changes that leave an adapter's source without a digest.",
        ),
    ] = None
    engine_host: Annotated[
        list[str] | None,
        options.flag(
            "--engine-host",
            metavar="HOST|NETWORK[:PORT]",
            help="Host or network that engines' URLs may name, e.g. 10.0.0.0/8; may be repeated; none or '*': any.",
        ),
    ] = None
    prove: Annotated[
        str | None,
        options.flag(
            "--prove",
            metavar="effect|off",
            help="Check on engines with the plugin that an adapter has an effect before its name is bound.",
        ),
    ] = None
    role: Annotated[
        list[str] | None,
        options.flag(
            "--role",
            metavar="prefill|decode|any",
            help="Role (label llm-d.ai/role) of which a replica is to serve each adapter; may be repeated.",
        ),
    ] = None
    base_from: Annotated[
        Path | None,
        options.flag(
            "--from", metavar="DIR", help="Directory of the base model, whose modules adapters are compared with."
        ),
    ] = None
    base_name: Annotated[
        list[str] | None,
        options.flag(
            "--base-name",
            metavar="NAME",
            help="Name that adapters may give this base model; may be repeated; none: any name.",
        ),
    ] = None
    engine_kind: Annotated[
        str | None,
        options.flag(
            "--engine-kind",
            metavar="KIND",
            help="Kind of its engines: vllm (default), sglang, pegainfer, axolotl, or another driver's.",
        ),
    ] = None
    engine_names: Annotated[
        str | None,
        options.flag(
            "--engine-names",
            metavar="plain|versioned",
            help="Name of an adapter in engines: its name (default), or name@generation.",
        ),
    ] = None

    def base(self) -> pb.BaseShapes | None:
        """The base model, read from its directory.

        Raises:
            CliError: it cannot be read, or has names and no directory.
        """
        if self.base_from is None and self.base_name:
            raise usage("--base-name goes with --from DIR, the directory of the base model")
        return base_message(base_here(self.base_from, self.base_name or ())) if self.base_from is not None else None

    def put_on(self, pool: pb.Pool, base: pb.BaseShapes | None) -> None:
        """Sets what is given, `base` as it was read, and leaves the rest of the pool as it is."""
        limits = pool.limits
        limits.target_modules[:] = self.target_module or limits.target_modules
        limits.engine_hosts[:] = self.engine_host or limits.engine_hosts
        limits.roles[:] = [one for one in self.role if one != _NO_ROLE] if self.role else limits.roles
        if base is not None:
            _replace_base(pool.base, base)
        options.set_given(pool, engine=self.engine_kind, engine_names=self.engine_names)
        options.set_given(limits, max_rank=self.max_rank, max_adapters=self.max_adapters)
        options.set_given(limits, expected_replicas=self.expect, prove=self.prove)
        if self.expect_labels:
            _regroup(limits, self.expect_labels)
        options.set_given(limits, require_signature=self.require_signature, require_digest=self.require_digest)


def _regroup(limits: pb.PoolLimits, words: Sequence[str]) -> None:
    """Sets how many replicas of which labels are expected, as ``K=V[,K=V]:N`` say; the other groups stay.

    Raises:
        CliError: a word is none of these.
    """
    counts = {tuple(sorted(one.labels.items())): one.replicas for one in limits.expected_groups}
    for word in words:
        labels, _, number = word.rpartition(":")
        if not _NUMBER.fullmatch(number):
            raise usage(f"--expect-labels {word}: write KEY=VALUE:N, or KEY=VALUE,KEY=VALUE:N")
        pairs = options.pairs("--expect-labels ", labels.split(","), "KEY=VALUE:N, or KEY=VALUE,KEY=VALUE:N")
        counts[tuple(sorted(pairs.items()))] = int(number)
    groups = [pb.ReplicaGroup(labels=dict(labels), replicas=count) for labels, count in counts.items() if count]
    del limits.expected_groups[:]
    limits.expected_groups.extend(groups)


def create(
    context: click.Context,
    name: PoolName,
    *,
    base_model: Annotated[list[str], _BASE_MODEL],
    given: PoolOptions,
    dry_run: options.DryRun = False,
    timeout: options.Timeout = None,
    request_id: options.RequestId = None,
) -> None:
    """Create a pool."""
    session, pool = session_of(context), pb.Pool(name=name, base_models=base_model)
    given.put_on(pool, given.base())
    request = pb.CreatePoolRequest(pool=pool, request_id=request_id_or_new(request_id), validate_only=dry_run)
    with session.client(timeout or WRITE_SECONDS) as client:
        pool = client.unary(api.CREATE_POOL, request)
    print_with_request(session.printer(), POOLS, pool, request)


def update(
    context: click.Context,
    name: PoolName,
    *,
    base_model: Annotated[list[str] | None, _BASE_MODEL] = None,
    given: PoolOptions,
    evidence_from: Annotated[
        str | None,
        options.flag(
            "--evidence-from",
            metavar="REPLICA",
            help="Replica whose engine says which modules it applies; check and apply refuse others.",
        ),
    ] = None,
    dry_run: options.DryRun = False,
    timeout: options.Timeout = None,
    request_id: options.RequestId = None,
) -> None:
    """Change what is given of a pool, and nothing else; where its record cannot be read, replace it whole."""
    session, base = session_of(context), given.base()
    with session.client(timeout or WRITE_SECONDS) as client:
        before = _before(client, name, is_whole=bool(base_model))
        pool = pb.Pool(name=name)
        pool.MergeFrom(before or pool)
        pool.base_models[:] = base_model or pool.base_models
        given.put_on(pool, base)
        if evidence_from is not None:
            replica = client.unary(api.GET_REPLICA, pb.GetReplicaRequest(pool=name, name=evidence_from))
            pool.base.evidence.CopyFrom(_evidence(replica, pool))
        request = pb.UpdatePoolRequest(pool=pool, request_id=request_id_or_new(request_id), validate_only=dry_run)
        if before is not None:
            request.update_mask.paths.extend(_changed(before, pool))
        pool = client.unary(api.UPDATE_POOL, request)
    print_with_request(session.printer(), POOLS, pool, request)


def _replace_base(before: pb.BaseShapes, base: pb.BaseShapes) -> None:
    """Compares with another base model from now on; what an engine said stays where it is the same."""
    said = pb.EngineEvidence()
    if before.fingerprint == base.fingerprint:
        said.CopyFrom(before.evidence)
    before.CopyFrom(base)
    if said.engine:
        before.evidence.CopyFrom(said)


def _evidence(replica: pb.Replica, pool: pb.Pool) -> pb.EngineEvidence:
    """Modules that a replica's engine said it applies.

    Raises:
        CliError: it said nothing, or the pool has no base to compare adapters with.
    """
    from registry.model.status import ReplicaStatus  # noqa: PLC0415 - pydantic, which no other command of these needs

    if not pool.base.modules:
        raise usage("--evidence-from goes with a base model to compare adapters with: give --from DIR as well")
    try:
        said = ReplicaStatus.parse(replica.status_json.encode()).engine.evidence
    except RegistryError as error:
        raise refused(Reason.UNSUPPORTED, f"the status of {replica.name!r} cannot be read: {error}") from error
    if said is None:
        why = "it needs vLLM with the plugin, and a sidecar that has seen it"
        raise refused(Reason.UNSUPPORTED, f"the engine of {replica.name!r} does not say what it applies: {why}")
    return evidence_message(said)


def _before(client: AdminClient, name: str, *, is_whole: bool) -> pb.Pool | None:
    """The pool as it is; None: its record cannot be read, and all of it is given anew.

    Raises:
        CliError: it cannot be read, and not all of it is given; or there is none.
    """
    try:
        return client.unary(api.GET_POOL, pb.GetPoolRequest(name=name))
    except CliError as error:
        if error.failure.reason != Reason.UNREADABLE_RECORD:
            raise
        if is_whole:
            return None
        remedy = "give --base-model and every limit to replace it whole"
        raise CliError(with_remedy(error.failure, remedy)) from error


def _changed(before: pb.Pool, after: pb.Pool) -> list[str]:
    """The mask of an update; all that every client knows if nothing changed."""
    own = ("base_models", "base", "engine", "engine_names")
    paths = [name for name in own if getattr(before, name) != getattr(after, name)]
    names = [field.name for field in pb.PoolLimits.DESCRIPTOR.fields]
    paths += [f"limits.{name}" for name in names if getattr(before.limits, name) != getattr(after.limits, name)]
    return paths or ["base_models"]


def confirm_removals(
    context: click.Context,
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
    yes: options.Yes = False,
    dry_run: options.DryRun = False,
    timeout: options.Timeout = None,
    request_id: options.RequestId = None,
) -> None:
    """Approve a large removal that replicas are blocking."""
    session = session_of(context)
    if not dry_run:
        ask_protected(session, [f"{name} up to revision {revision}"], yes=yes, what="confirm removals of pool")
    request = pb.ConfirmRemovalsRequest(
        name=name, revision=revision, etag=etag, request_id=request_id_or_new(request_id), validate_only=dry_run
    )
    with session.client(timeout or WRITE_SECONDS) as client:
        pool = client.unary(api.CONFIRM_REMOVALS, request)
    print_with_request(session.printer(), POOLS, pool, request)


def print_with_request(printer: Printer, view: OutputView[Item], item: Item, request: ChangeRequest) -> None:
    """Prints an item and the id of the request that made it so, or would."""
    if printer.is_plain:
        printer.plain({**view.plain(item), "request_id": request.request_id, "dry_run": request.validate_only})
        return
    printer.item(view, item)
    if printer.is_table:
        printer.lines([request_line(request.request_id, dry_run=request.validate_only)])


def delete(
    context: click.Context,
    name: PoolName,
    *,
    etag: options.Etag = "",
    yes: options.Yes = False,
    dry_run: options.DryRun = False,
    timeout: options.Timeout = None,
    request_id: options.RequestId = None,
) -> None:
    """Delete a pool that has no adapters left."""
    session, printer = session_of(context), session_of(context).printer()
    if not dry_run:
        ask_protected(session, [name], yes=yes, what="delete pool")
    request = pb.DeletePoolRequest(
        name=name, etag=etag, request_id=request_id_or_new(request_id), validate_only=dry_run
    )
    with session.client(timeout or WRITE_SECONDS) as client:
        revision = client.unary(api.DELETE_POOL, request).revision
    if printer.is_plain:
        values = {"name": name, "revision": revision, "request_id": request.request_id}
        printer.plain({**values, "dry_run": dry_run})
    elif printer.is_table:
        printer.lines([f"deleted pool {name}", request_line(request.request_id, revision, dry_run=dry_run)])
    else:
        printer.lines([name])


def set_tenant(
    context: click.Context,
    name: Annotated[str, options.argument(help="Name of the tenant: the part of an adapter's name before the slash.")],
    *,
    max_adapters: Annotated[
        int,
        options.flag(
            "--max-adapters",
            metavar="N",
            min=0,
            max=options.MOST_UINT32,
            help="Adapters it may have over all pools; 0: no limit.",
        ),
    ],
    dry_run: options.DryRun = False,
    timeout: options.Timeout = None,
    request_id: options.RequestId = None,
) -> None:
    """Set how many adapters a tenant may have."""
    session = session_of(context)
    request = pb.SetTenantRequest(
        tenant=pb.Tenant(name=name, max_adapters=max_adapters),
        request_id=request_id_or_new(request_id),
        validate_only=dry_run,
    )
    with session.client(timeout or WRITE_SECONDS) as client:
        tenant = client.unary(api.SET_TENANT, request)
    print_with_request(session.printer(), TENANTS, tenant, request)
