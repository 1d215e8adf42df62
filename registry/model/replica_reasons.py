"""Reasons of replicas for adapters, each with its class of repetition. Pure.

The one table of what is tried again and when. Sidecars pace their tries by it, and docs/errors.md is made from it.

- *Waits for a change*: what is wrong stays wrong until the record, the base, a policy or the files change. Where files
  are at fault, their place is looked at now and then: a stat of a directory, the headers of a web server or store.
- *Tried again*: it may pass. The pause grows to minutes and never ends. Bytes that are not those meant are of this
  class: what is wrong with them is the place that they came from.
- *At once*: it is ours, or just under way.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

# Of a replica that serves an adapter until those that are to serve it do.
LEAVING = "leaving"
# No pause before a try is longer, but for what a source asked for.
LONGEST_PAUSE_SECONDS = 300.0
# No source has to be waited for longer, whatever it asks for.
LONGEST_ASKED_SECONDS = 600.0


class RetryClass(StrEnum):
    """Moment at which a thing that failed is done again."""

    CHANGE = "waits for a change"
    LATER = "tried again"
    AT_ONCE = "at once"


@dataclass(frozen=True, slots=True)
class RetryRule:
    """Consequence of one reason for an adapter.

    Attributes:
        retry: its class.
        waits_for: what has to be so first.
        command: what helps.
        is_answer: rollouts take it for an answer at once, also where it is tried again.
    """

    retry: RetryClass
    waits_for: str
    command: str
    is_answer: bool = False


def _change(waits_for: str, command: str, *reasons: str) -> dict[str, RetryRule]:
    return dict.fromkeys(reasons, RetryRule(RetryClass.CHANGE, waits_for, command, is_answer=True))


def _later(waits_for: str, command: str, *reasons: str, is_answer: bool = False) -> dict[str, RetryRule]:
    return dict.fromkeys(reasons, RetryRule(RetryClass.LATER, waits_for, command, is_answer))


def _at_once(waits_for: str, command: str, *reasons: str) -> dict[str, RetryRule]:
    return dict.fromkeys(reasons, RetryRule(RetryClass.AT_ONCE, waits_for, command))


_FILES = "other files in its place, which is looked at every few minutes; or another record, base or policy"
_CHECK = "`loraplane check URI --pool P`"
_RETRY = "`loraplane retry adapter NAME`, once it is mended"
_RECORD = "another record"
_APPLY = "`loraplane apply -f FILE`, or `loraplane edit NAME`"
_HOST = "this sidecar's flags or credentials; its file of credentials is read again by itself"
_ENGINE = "another engine, or another process of it"
_DESCRIBE = "`loraplane describe adapter NAME`"
_REPLICA = "`loraplane describe replica R`"
_NOTHING = "nothing: it goes on by itself"

RETRY_RULES: Mapping[str, RetryRule] = MappingProxyType(
    {
        # The files are not right. By tests, all reasons of `registry.lora` are here.
        **_change(
            *(_FILES, _CHECK),
            *("ambiguous_module", "bad_archive", "bias_not_supported", "dtype_not_supported", "duplicate_module"),
            *("examination_failed", "invalid_config", "no_such_module", "no_tensors", "not_a_regular_file"),
            *("not_an_adapter", "not_applied_by_engine", "not_finite", "not_taken_by_engine", "other_base"),
            *("rank_mismatch", "shape_mismatch", "too_large", "too_many_layers", "unknown_tensor"),
            *("unpaired_tensor", "unsupported_feature", "unsupported_modules_to_save", "unsupported_pattern"),
            *("vision_modules", "wrong_peft_type", "zero_alpha"),
        ),
        **_change(
            *(_FILES, "`loraplane publish URI DEST --base-model DIR` converts it"),
            *("dora_not_supported", "rank_too_high", "unsupported_init"),
        ),
        **_change(
            *(_FILES, "`save_pretrained` of PEFT writes it anew, into the same place"),
            *("other_format", "weights_not_safetensors"),
        ),
        **_change(
            *("a signature in the record, other keys, or another policy", "`loraplane sign URI --key FILE`"),
            *("signature_invalid", "signature_keys_missing", "signature_missing"),
        ),
        **_later(
            *(
                "a model.sig beside the files that counts, or another --signature-policy",
                "`loraplane sign DIR --key FILE`",
            ),
            *("bundle_invalid", "bundle_missing", "signature_expired", "signed_for_other", "signed_other_files"),
            "signer_untrusted",
            is_answer=True,
        ),
        # The record, or this host, does not allow it.
        **_change(
            *(_RECORD, _APPLY),
            *("invalid_field", "invalid_name", "invalid_source", "key_mismatch", "name_is_base_model"),
            *("redirect_not_allowed", "reserved_name", "unreadable_record", "unsupported_scheme"),
        ),
        **_change(f"{_RECORD}, or the name to lead elsewhere", _RETRY, "address_not_allowed"),
        **_change("a sidecar of a later release", "`loraplane doctor`", "future_schema", "unsupported_policy"),
        **_change(
            *(f"{_HOST}; or {_RECORD}", _REPLICA),
            *("credential_not_bound", "source_not_allowed", "unknown_credential"),
        ),
        # The source may come to have them.
        **_later(
            *("the files that the record means", "`loraplane digest URI`, then `loraplane retry adapter NAME`"),
            "digest_mismatch",
            is_answer=True,
        ),
        **_later(
            *("the source to be there, whole and readable", _RETRY),
            *("source_changed", "source_incomplete", "source_io", "source_is_html", "source_missing"),
            *("source_timeout", "staging_timeout"),
        ),
        **_later("the command of --fetcher to work; the host's log has its last words", _RETRY, "fetcher_failed"),
        **_later("the end of the pause that the source asked for", _NOTHING, "rate_limited"),
        **_later(
            *("the credential or the certificate to be right", _RETRY),
            *("credential_unavailable", "source_denied", "source_untrusted"),
        ),
        **_later("room in the store", _REPLICA, "disk_full", "store_full"),
        # The engine.
        **_later("the engine to take it", _DESCRIBE, "engine_busy", "engine_refused", "not_listed"),
        **_later(
            *("the engine to see the store under the same path", _REPLICA),
            "engine_cannot_see_store",
        ),
        **_change(f"{_ENGINE}; or another record", _DESCRIBE, "no_effect", "not_as_expected"),
        **_change(
            *("another engine, or other limits of it or of the pool", _REPLICA),
            *("name_conflict", "name_remembered", "target_modules_mismatch"),
        ),
        **_change("room in the engine", "`loraplane pool update P --max-adapters N`", "no_room", "over_capacity"),
        **_change("the engine to go on", _REPLICA, "engine_paused"),
        # Ours, and what is under way.
        **_at_once("nothing: a fault of ours, whose log has more", "`loraplane doctor`", "internal_error", "store_io"),
        **_at_once("nothing: the files are fetched again", _DESCRIBE, "artifact_damaged"),
        **_at_once(_NOTHING, _DESCRIBE, "staging_stopped", "still_listed"),
        **_at_once(_NOTHING, _DESCRIBE, "staging", "loading", "swapping", "outcome_unknown", "replicas_unknown"),
    }
)
# Of a reason that a later release may give.
_UNKNOWN = RetryRule(RetryClass.LATER, "what its message says", _DESCRIBE)


def retry_rule(reason: str) -> RetryRule:
    """Consequence of a reason for an adapter, also of one that is not known here."""
    return RETRY_RULES.get(reason, _UNKNOWN)


_PLACEHOLDER = re.compile(r"\b(NAME|P|R)\b")


def is_nowhere(reasons: Iterable[str]) -> bool:
    """True if replicas say by their reasons that none has the files of a generation, and neither has its source.

    A source is asked only by a replica that has not the files itself.
    """
    return {*reasons} == {"source_missing"}


def told_commands(replicas: Mapping[str, str], name: str, pool: str) -> str:
    """Remedy for an adapter that failed, for messages: the commands of its reasons, then another try.

    Args:
        replicas: a replica that gave it, by reason; empty: nothing failed.
        name: of the adapter.
        pool: its pool.
    """
    by_command: dict[str, list[str]] = {}
    for reason, replica in sorted(replicas.items()):
        command = retry_rule(reason).command
        if command != _NOTHING:
            by_command.setdefault(_filled(command, name, pool, replica), []).append(reason)
    told = [f"{', '.join(reasons)}: {command}" for command, reasons in by_command.items()]
    again = f"loraplane retry adapter {name} --pool {pool}"
    is_told = not told or any(again in one for one in told)
    return "; ".join(told if is_told else [*told, f"once it is mended: {again}"])


def _filled(command: str, name: str, pool: str, replica: str) -> str:
    """A command with what is known in place of its capitals."""
    known = {"NAME": f"{name} --pool {pool}", "P": pool, "R": f"{replica} --pool {pool}"}
    return _PLACEHOLDER.sub(lambda found: known[found[0]], command).replace("`", "")
