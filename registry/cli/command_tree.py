"""Tree of commands: names and one-line helps, modules imported when run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import click

from registry.cli.options import GLOBAL_OPTIONS, global_options_first
from registry.runtime.commands import Group, command

_ANYWHERE = "Options of loraplane itself (--admin, -o, --tls-…) may stand anywhere in the line; loraplane --help."


@dataclass(frozen=True, slots=True)
class Entry:
    """A command, or a group of commands: `functions` by their names, each ``module:function`` below `registry.cli`.

    `about` is the first paragraph of its help, which a test compares with that of the function.
    """

    name: str
    about: str
    functions: Mapping[str, str]
    is_group: bool = False


def _command(name: str, function: str, about: str) -> Entry:
    return Entry(name, about, {name: function})


def _group(name: str, about: str, **functions: str) -> Entry:
    return Entry(name, about, {name.replace("_", "-"): where for name, where in functions.items()}, is_group=True)


ENTRIES = (
    _command("apply", "commands.apply:apply", "Create or change adapters as manifests say, all in one transaction."),
    _command("add", "commands.apply:add", "Create one adapter without a file."),
    _command("set", "commands.apply:set_", "Change the given fields of an adapter; print old and new values."),
    _command("get", "commands.read:get", "List adapters, replicas, pools or tenants."),
    _command("describe", "commands.read:describe", "Show everything about one adapter, replica or pool."),
    _command("why", "commands.read:why", "Say of each replica why it serves an adapter, or does not."),
    _command("export", "commands.adapters:export", "Write adapters as manifests, or as a router's configuration."),
    _command(
        "import", "commands.imports:import_", "Print adapters of another system as the manifests that apply takes."
    ),
    _command("edit", "commands.adapters:edit", "Change one adapter in an editor: VISUAL or EDITOR, else vi."),
    _command("label", "commands.adapters:label", "Set and remove labels of one adapter."),
    _command(
        "disable",
        "commands.adapters:disable",
        "Unload an adapter everywhere, and keep its name, its history and its place in the quota.",
    ),
    _command("enable", "commands.adapters:enable", "Serve an adapter again that was disabled."),
    _command(
        "delete", "commands.adapters:delete", "Delete adapters by their names, by labels, or all that manifests name."
    ),
    _command("retry", "commands.apply:retry", "Make replicas retry a failed adapter at once."),
    _command(
        "drain", "commands.replicas:drain", "Take a replica out: others take over its share, and routers leave it."
    ),
    _command("undrain", "commands.replicas:undrain", "End the drain of a replica."),
    _command(
        "events",
        "commands.events:events",
        "Show what happened: changes and who made them, halts, drains, restarts, and what replicas fail to serve.",
    ),
    _command(
        "audit",
        "commands.events:audit",
        "Show the audit: who did what, from old to new value, and which calls were refused.",
    ),
    _command(
        "top",
        "commands.top:top",
        "Show what replicas and adapters are doing: requests, tokens, loads, swaps, last use.",
    ),
    _command("history", "commands.read:history", "List an adapter's generations, the newest first."),
    _command("rollback", "commands.apply:rollback", "Make a new generation that equals an earlier one."),
    _command(
        "rollout",
        "commands.rollout:rollout",
        "Follow a generation until every replica that should serve it does, or name the others with reasons.",
    ),
    _command("diff", "commands.apply:diff", "Show what apply would change, checked as apply would check it."),
    _command("explain", "commands.explain:explain", "Explain a field of a manifest and its values."),
    _command("schema", "commands.explain:schema", "Print the JSON schema of manifests, for editors."),
    _command(
        "completion",
        "commands.explain:completion",
        "Print a shell's completion script for commands, flags, kinds, names, pools and replicas.",
    ),
    _command(
        "check",
        "commands.check:check",
        "Check an adapter against a base model: exit 0 if it fits, 4 with all findings if not.",
    ),
    _command("digest", "commands.check:digest", "Print the manifest digest of an adapter, to pin in a record."),
    _command(
        "publish",
        "commands.publish:publish",
        "Convert an adapter to plain LoRA where it is not, check it, upload it, and print the digest to pin.",
    ),
    _command(
        "expect",
        "commands.publish:expect",
        "Print what an adapter answers by transformers and PEFT, for spec.expect of its manifest.",
    ),
    _command(
        "sign", "commands.sign:sign", "Sign an adapter's folder into a bundle (model.sig), as model_signing does."
    ),
    _command(
        "doctor",
        "doctor.command:doctor",
        "Check admin service, pools, replicas and tenants (and etcd), and print a remedy for each finding.",
    ),
    _command(
        "backup",
        "commands.backup:backup",
        "Write pools, tenants, adapters and their history, as they are at one revision, into a file.",
    ),
    _command(
        "restore",
        "commands.backup:restore",
        "Restore pools, tenants and adapters from a backup, after a look at the plan.",
    ),
    _group(
        "pool",
        "Create, change and delete pools.",
        create="commands.pools:create",
        update="commands.pools:update",
        confirm_removals="commands.pools:confirm_removals",
        delete="commands.pools:delete",
    ),
    _group("replica", "Change which replicas are expected.", forget="commands.replicas:forget_replica"),
    _group(
        "config",
        "Manage contexts: names of admin services, with their certificates.",
        set_context="commands.config:set_context",
        use_context="commands.config:use_context",
        get_contexts="commands.config:get_contexts",
        delete_context="commands.config:delete_context",
    ),
    _group(
        "etcd-access",
        "Users of etcd: each process with the permissions that it needs, and no more.",
        plan="commands.etcd_access:plan",
        apply="commands.etcd_access:apply",
        enable="commands.etcd_access:enable",
        check="commands.etcd_access:check",
    ),
    _group(
        "auth",
        "Show who one is, what one may do, and what roles may do.",
        whoami="commands.auth:whoami",
        can_i="commands.auth:can_i",
        table="commands.auth:table",
    ),
    _group("tenant", "Set quotas of tenants.", set="commands.pools:set_tenant"),
    _group(
        "dev",
        "A local stack: etcd, admin service, engines, sidecars.",
        up="commands.dev:up",
        status="commands.dev:status",
        down="commands.dev:down",
    ),
)


class Root(Group):
    """The command `loraplane`, whose own options may stand anywhere in the line."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See `click.Group`. For a completion, the last word may be an option of ours that waits for its value."""
        first, rest = global_options_first(args)
        is_waiting = ctx.resilient_parsing and args and args[-1] in GLOBAL_OPTIONS
        return super().parse_args(ctx, first if is_waiting else [*first, *rest])

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - as click's own
        """See `click.Group`, which would write an empty line for an interrupt."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            raise click.Abort from interrupt
        except RuntimeError as error:
            if isinstance(error.__context__, KeyboardInterrupt):  # amid a lock of Python's own
                raise click.Abort from error.__context__
            raise


class LazyCommand(click.Command):
    """A command that says its name and what it does, and is imported once its own arguments are read."""

    def __init__(self, entry: Entry) -> None:
        super().__init__(entry.name, short_help=entry.about)
        self.entry = entry

    def load(self) -> click.Command:
        """The command itself."""
        loaded = {name: _loaded(name, where) for name, where in self.entry.functions.items()}
        if self.entry.is_group:
            return Group(self.entry.name, loaded, help=self.entry.about, epilog=_ANYWHERE)
        return loaded[self.entry.name]

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,  # noqa: ANN401 - click's
    ) -> click.Context:
        """That of the command itself, which from here on is the one that runs."""
        return self.load().make_context(info_name, args, parent, **extra)


def _loaded(name: str, where: str) -> click.Command:
    module, _, function = where.partition(":")
    return command(name, getattr(import_module(f"registry.cli.{module}"), function), epilog=_ANYWHERE)
