"""The command that sets what a tenant may have."""

from __future__ import annotations

from typing import Annotated

import typer

from registry.cli import options
from registry.cli.pool_commands import print_with_request
from registry.cli.session import WRITE_SECONDS, request_id_or_new, session_of
from registry.cli.views import TENANTS
from registry.v1 import registry_pb2 as pb


def set_tenant(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the tenant: the part of an adapter's name before the slash.")],
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
        tenant = client.set_tenant(request)
    print_with_request(session.printer(), TENANTS, tenant, request.request_id)
