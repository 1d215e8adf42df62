"""docs/errors.md from the code: every reason with its status and exit code. As a program: writes it."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from registry.admin.rpc.interceptor import CODES
from registry.cli.failure import EXIT_OF, Exit
from registry.client.errors import KIND_OF
from registry.model import errors
from registry.model.errors import Reason
from registry.model.replica_reasons import RETRY_RULES, RetryClass, RetryRule

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "errors.md"

MEANING: Mapping[Reason, str] = {
    Reason.INVALID_NAME: "This cannot be the name of an adapter, pool or tenant. The message says which characters are allowed where.",
    Reason.RESERVED_NAME: "vLLM reads this name as a type of content in chat requests, or sidecars try weights under it. Choose another.",
    Reason.NAME_IS_BASE_MODEL: "An adapter and a base model of its pool would have the same name. Choose another, or delete the adapter first.",
    Reason.INVALID_FIELD: "A field has a value that it cannot have. The field's path and what to write stand beside it.",
    Reason.INVALID_MANIFEST: "A manifest cannot be read. File, document and field are named.",
    Reason.INVALID_PAGE_TOKEN: "The page token belongs to another listing, or is not one of this service. Start again without one.",
    Reason.INVALID_FILTER: 'A filter that cannot be read. Write field=value, joined by " AND ".',
    Reason.DUPLICATE_NAME: "A change set names an adapter twice. Case does not count.",
    Reason.UNSUPPORTED: "Valid, but not supported by this release. The message says what is.",
    Reason.REQUEST_ID_REUSED: "The request_id belongs to another request of the last 24 hours, or to one that was refused. Use a new one.",
    Reason.TOO_MANY_CHANGES: "More changes than one etcd transaction takes; `max_changes` says how many do fit. Split the set, or raise --max-txn-ops of etcd and the admin service.",
    Reason.TOO_MANY_CALLS: "The calls of this caller, or of all, use up the queue or the bytes that requests may have together. Nothing was done; make fewer at once.",
    Reason.TOO_LARGE: "A record, a transaction, a request or one of its values has too many bytes. Make it smaller.",
    Reason.ADAPTER_NOT_FOUND: "There is no such adapter in that pool.",
    Reason.GENERATION_NOT_FOUND: "History does not hold that generation (the last ten are kept). List the history.",
    Reason.POOL_NOT_FOUND: "There is no such pool. Create it, or list those there are.",
    Reason.REPLICA_NOT_FOUND: "No such replica lives in that pool. Is its sidecar up?",
    Reason.REPLICA_LIVES: "Only a replica that is gone can be forgotten. End its sidecar first.",
    Reason.TENANT_NOT_FOUND: "There is no such tenant.",
    Reason.POOL_EXISTS: "There is such a pool already. Update it.",
    Reason.ADAPTER_EXISTS: "There is an adapter whose name differs in nothing but case; `name` tells it.",
    Reason.ETAG_MISMATCH: "The record changed since it was read; `etag` is the present one, 0 if there is none. Read it again and decide anew.",
    Reason.LOST_RACE: "Others changed the same records again and again. Nothing was changed; repeat it.",
    Reason.POOL_NOT_EMPTY: "The pool has adapters. Delete them first.",
    Reason.POOL_FULL: "The pool's engines have one adapter at a time, and that is `name`. Delete it first, or use another pool.",
    Reason.GENERATION_RESTORED: "Somebody (`restored_by`, at `restored_at`) put that generation into history from a backup; this store never had it. Look at it in the history, and give --restored (`restored` in the API) to go back to it.",
    Reason.GENERATION_TOO_HIGH: "A restored generation is more than 1,000 above the newest that is known of its name (`known`), or above a billion where none is. Its name could soon have no further generation. Leave it out.",
    Reason.GENERATION_MISMATCH: "The call meant the rollout of another generation than the adapter's present one, which `generation` names. Look at it and decide anew.",
    Reason.NO_ROLLOUT: "There is nothing to promote or to abort: the adapter's generation is for all replicas.",
    Reason.CANARY_TOO_LARGE: "A strategy asks for more canaries (`canaries`) than replicas of the pool report and match (`replicas`). Ask for fewer, or for a share such as 25%.",
    Reason.FUTURE_SCHEMA: "A record of a later release. It is left as it is; upgrade the admin service.",
    Reason.UNREADABLE_RECORD: "A record in etcd cannot be read; `key` names it. An upsert, update or delete replaces it; a tenant's has to be repaired by hand.",
    Reason.QUOTA_EXCEEDED: "The tenant would have more adapters than its quota. Delete some, or have the quota raised.",
    Reason.QUOTA_BELOW_USE: "The new quota is less than the tenant has. Delete some first.",
    Reason.REVISION_COMPACTED: "etcd does not keep that revision. Start again from the present one.",
    Reason.ETCD_NO_SPACE: "etcd has used up its quota. Compact and defragment it, or raise the quota, then disarm its alarm.",
    Reason.ETCD_UNAVAILABLE: "etcd does not answer the admin service. Nothing was changed; repeat it.",
    Reason.ETCD_PERMISSION: "etcd refuses the admin service, or `loraplane etcd-access`. Check its user, role and certificates.",
    Reason.UNAUTHENTICATED: "The admin service does not know who calls: no credential names somebody whom its [access file](security.md) believes. Give `--token-file`, `--token-command`, or `--tls-cert` and `--tls-key`.",
    Reason.PERMISSION_DENIED: "No role of the caller allows it; `roles` tells which would, `loraplane auth whoami` which you have, and `loraplane auth can-i VERB NAME -v` who may. See [roles](roles.md).",
    Reason.OUTCOME_UNKNOWN: "Nobody knows whether the change was made. Retry with the same request_id (`request_id` tells it): it is made once at most.",
    Reason.SIDECAR_UNAVAILABLE: "The sidecar that --sidecar names is not reached, `top` reaches none, or what answers is no sidecar.",
    Reason.ADMIN_UNAVAILABLE: "The admin service is not reached, or is shutting down. Ask again, or ask another one.",
    Reason.DEADLINE_EXCEEDED: "The time was up. The message says whether anything can have been changed.",
    Reason.DIGEST_MISMATCH: "The files here have another digest than the one that is pinned. Pin theirs, name another source, or go on with `--force`.",
    Reason.DIGEST_REQUIRED: "The pool was made with `--require-digest`, and the source of an adapter has none. `loraplane digest URI` prints it; `apply` and `add` put it in by themselves where they can read the source.",
    Reason.ADAPTER_UNFIT: "No replica of the pool would serve this adapter. The message begins with the first finding; `finding` is its reason, `findings` the number of all. See `loraplane check`.",
    Reason.CANNOT_PUBLISH: "The adapter cannot be converted or written as asked. The message says why and what would do; nothing that a replica would take was written.",
    Reason.DESTINATION_TAKEN: "Something else is published there. Nothing that is published is ever replaced; choose another place.",
    Reason.UPLOAD_UNFINISHED: "A store was not reached, or broke off, while an adapter was written to it. Replicas take nothing before all of it is there. Repeat it: what has arrived is not sent again.",
    Reason.SOURCE_REFUSED: "The source cannot be read as it is named: its URI, credential or answer is wrong, and repeating does not help. `finding` is the reason that a replica would give.",
    Reason.SOURCE_UNREADABLE: "A source could not be read from here, now. `finding` is the reason that a replica would give. Repeat it.",
    Reason.ROLLOUT_FAILED: "A rollout finished, and not every replica serves it. The message names them with their reasons.",
    Reason.USAGE: "The command line is wrong. See --help.",
    Reason.STACK_NOT_FOUND: "There is no local stack in that folder. Start one with `loraplane dev up`.",
    Reason.STACK_NOT_READY: "A part of the local stack did not come up, and its log is named; or the stack was ended. Start it with `loraplane dev up`.",
    Reason.STACK_NOT_TRUSTED: "The folder of the local stack is another user's, or others may write in it. Work in a folder of your own, take the others' right away (`chmod go-w`), or name the admin service with `--admin`.",
    Reason.INTERNAL: "A fault of LoraPlane. The log of the service has the traceback; please report it.",
}


def _again(retry: RetryClass, waits_for: str, command: str, *reasons: Reason) -> dict[Reason, RetryRule]:
    return dict.fromkeys(reasons, RetryRule(retry, waits_for, command))


_HELP = "`loraplane COMMAND --help`, `loraplane explain PATH`"
# Whether it helps whoever called to call again, and what has to be so before.
AGAIN: Mapping[Reason, RetryRule] = {
    **_again(
        *(RetryClass.CHANGE, "another request", _HELP),
        *(Reason.INVALID_NAME, Reason.RESERVED_NAME, Reason.NAME_IS_BASE_MODEL, Reason.INVALID_FIELD),
        *(Reason.INVALID_MANIFEST, Reason.INVALID_PAGE_TOKEN, Reason.INVALID_FILTER, Reason.DUPLICATE_NAME),
        *(Reason.REQUEST_ID_REUSED, Reason.TOO_MANY_CHANGES, Reason.TOO_LARGE, Reason.USAGE, Reason.CANARY_TOO_LARGE),
        *(Reason.CANNOT_PUBLISH, Reason.DESTINATION_TAKEN, Reason.SOURCE_REFUSED),
    ),
    **_again(RetryClass.CHANGE, "a later release", "`loraplane doctor`", Reason.UNSUPPORTED, Reason.FUTURE_SCHEMA),
    **_again(
        *(RetryClass.CHANGE, "what it names to be there", "`loraplane get adapters|replicas|pools|tenants`"),
        *(Reason.ADAPTER_NOT_FOUND, Reason.POOL_NOT_FOUND, Reason.REPLICA_NOT_FOUND, Reason.TENANT_NOT_FOUND),
    ),
    **_again(
        *(RetryClass.CHANGE, "another generation", "`loraplane history NAME`"),
        *(Reason.GENERATION_NOT_FOUND, Reason.GENERATION_RESTORED, Reason.GENERATION_TOO_HIGH),
    ),
    **_again(
        *(RetryClass.CHANGE, "what is in its way to be gone", "`loraplane get adapters|replicas|pools`"),
        *(Reason.REPLICA_LIVES, Reason.POOL_EXISTS, Reason.ADAPTER_EXISTS, Reason.POOL_NOT_EMPTY, Reason.POOL_FULL),
    ),
    **_again(RetryClass.CHANGE, "other files", "`loraplane check URI --pool P`", Reason.ADAPTER_UNFIT),
    **_again(
        *(RetryClass.CHANGE, "the digest of the files", "`loraplane digest URI`"),
        *(Reason.DIGEST_REQUIRED, Reason.DIGEST_MISMATCH),
    ),
    **_again(
        *(RetryClass.CHANGE, "a decision on what is so now", "`loraplane get adapters NAME`"),
        *(Reason.ETAG_MISMATCH, Reason.GENERATION_MISMATCH, Reason.NO_ROLLOUT),
    ),
    **_again(RetryClass.CHANGE, "an upsert, update or delete of it", "`loraplane apply`", Reason.UNREADABLE_RECORD),
    **_again(
        *(RetryClass.CHANGE, "fewer adapters, or another quota", "`loraplane get tenants`"),
        *(Reason.QUOTA_EXCEEDED, Reason.QUOTA_BELOW_USE),
    ),
    **_again(RetryClass.CHANGE, "a present revision", "the same command without it", Reason.REVISION_COMPACTED),
    **_again(
        RetryClass.CHANGE, "room, or a right, in etcd", "`loraplane doctor --etcd HOST:PORT`", Reason.ETCD_NO_SPACE
    ),
    **_again(
        RetryClass.CHANGE, "a credential", "[a credential](security.md#how-a-caller-is-known)", Reason.UNAUTHENTICATED
    ),
    **_again(RetryClass.CHANGE, "a role", "[a binding](security.md#bindings)", Reason.PERMISSION_DENIED),
    **_again(RetryClass.CHANGE, "a right in etcd", "`loraplane doctor --etcd HOST:PORT`", Reason.ETCD_PERMISSION),
    **_again(
        *(
            RetryClass.CHANGE,
            "what its replicas say",
            "`loraplane describe adapter NAME`; `loraplane retry adapter NAME`",
        ),
        Reason.ROLLOUT_FAILED,
    ),
    **_again(
        *(RetryClass.CHANGE, "a stack of your own", "`loraplane dev up`"),
        *(Reason.STACK_NOT_FOUND, Reason.STACK_NOT_TRUSTED),
    ),
    **_again(
        *(RetryClass.LATER, "the service to answer; clients repeat it until their time is up", "`loraplane doctor`"),
        *(Reason.ETCD_UNAVAILABLE, Reason.ADMIN_UNAVAILABLE, Reason.SIDECAR_UNAVAILABLE, Reason.DEADLINE_EXCEEDED),
    ),
    **_again(
        *(RetryClass.LATER, "the place to be reached", "the same command again"),
        *(Reason.SOURCE_UNREADABLE, Reason.UPLOAD_UNFINISHED),
    ),
    **_again(RetryClass.LATER, "its parts to come up", "`loraplane dev status`", Reason.STACK_NOT_READY),
    **_again(RetryClass.LATER, "calls that are under way to end", "the same command again", Reason.TOO_MANY_CALLS),
    **_again(RetryClass.AT_ONCE, "nothing", "the same command again", Reason.LOST_RACE),
    **_again(RetryClass.AT_ONCE, "nothing", "the same with `--request-id ID`", Reason.OUTCOME_UNKNOWN),
    **_again(RetryClass.AT_ONCE, "nothing; please report it", "`loraplane doctor`", Reason.INTERNAL),
}


def _raised_with() -> dict[str, set[str]]:
    """For each reason the names of the error classes and exit codes that it is written beside."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in (ROOT / "registry").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                for reason in _attributes(node, "Reason"):
                    found[reason] |= _beside(node)
    return found


def _beside(call: ast.Call) -> set[str]:
    name = call.func.id if isinstance(call.func, ast.Name) else ""
    named = {name} if hasattr(errors, name) else set()
    # The command line has a function for each of its usual failures, e.g. `usage`.
    by_function = {name.upper()} & set(Exit.__members__)
    return set(_attributes(call, "Exit")) | named | by_function


def _attributes(call: ast.Call, owner: str) -> list[str]:
    """Names of ``owner.NAME`` among a call's own arguments."""
    given = (argument for argument in call.args if isinstance(argument, ast.Attribute))
    return [one.attr for one in given if isinstance(one.value, ast.Name) and one.value.id == owner]


def _row(reason: Reason, beside: set[str]) -> str:
    kinds = [kind for kind in CODES if kind.__name__ in beside]
    if reason is Reason.ADMIN_UNAVAILABLE:
        kinds = sorted({*kinds, errors.Unavailable}, key=list(CODES).index)
    codes = ", ".join(CODES[kind].name for kind in kinds) or "-"
    exits = {EXIT_OF[kind] for kind in kinds} | {Exit[name] for name in beside if name in Exit.__members__}
    exit_codes = ", ".join(str(int(one)) for one in sorted(exits))
    return f"| `{reason}` | {codes} | {exit_codes} | {MEANING[reason]} | {_rule(AGAIN[reason])} |"


def _rule(rule: RetryRule) -> str:
    return f"{rule.retry} | {rule.waits_for.replace('|', '&#124;')} | {rule.command.replace('|', '&#124;')}"


def _by_rule() -> str:
    """The reasons of replicas, those with the same rule together."""
    rules = dict.fromkeys(sorted(RETRY_RULES.values(), key=lambda rule: [*RetryClass].index(rule.retry)))
    named = {rule: ", ".join(f"`{one}`" for one in sorted(RETRY_RULES) if RETRY_RULES[one] == rule) for rule in rules}
    return "\n".join(f"| {reasons} | {_rule(rule)} |" for rule, reasons in named.items())


def page() -> str:
    """The whole page."""
    beside = _raised_with()
    rows = "\n".join(_row(reason, beside[reason.name]) for reason in Reason)
    return f"""# Errors

Made from the code by `make docs`; change it there.

Every refusal of the admin service carries google.rpc.ErrorInfo with domain `loraplane` and one of these reasons. Reasons stay the
same over releases. If a field is at fault, google.rpc.BadRequest names it as the caller wrote it. `loraplane` prints the reason
and ends with the exit code. Names in `code` are keys of the error's metadata.

A reply that says "nothing was changed" is true. Only UNAVAILABLE with `OUTCOME_UNKNOWN` leaves the outcome open.

Whether it helps to call again is in the last three columns: once something has changed, later, or at once.

| reason | gRPC status | exit code | meaning and remedy | again | waits for | command |
|---|---|---|---|---|---|---|
{rows}

Statuses without a reason come from gRPC itself; `loraplane` maps them: {_statuses()}.

## Reasons of replicas
A status names what a replica does not serve, with one of these reasons. Each is of one class, and sidecars go by it:

- *waits for a change*: of the record, the base, a policy, or the files. Where files are at fault, the place that they
  are in is looked at from time to time: a directory after 15 seconds and then ever more rarely, another host after two
  minutes, both at least every five minutes. Looking reads no file: it is a `stat`, or the headers of a server. What is
  there then in place of the refused files is taken. `retry_at` is empty.
- *tried again*: after a pause that grows, at first to 15 seconds, then to a tenth of the time that it has lasted, at most
  to five minutes, and never ends. A source that asks for a longer pause (`Retry-After`) gets up to ten minutes.
  `digest_mismatch` ends a wait for a rollout all the same.
- *at once*: what is ours or under way; pauses grow to 15 seconds.

`loraplane retry adapter NAME` has any of them tried at once, and so has a `publish` of what replicas refuse.

| reasons | again | waits for | command |
|---|---|---|---|
{_by_rule()}
"""


def _statuses() -> str:
    return ", ".join(f"{code.name} → exit {int(EXIT_OF[kind])}" for code, kind in KIND_OF.items())


def main() -> None:
    """Writes the page."""
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
