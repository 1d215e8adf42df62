"""What may follow what under one name: generations, and the rollouts that canaries begin (W6). Pure."""

from __future__ import annotations

from collections.abc import Iterator

from registry.check.values import Document


def same_generation(old: Document | None, new: Document | None) -> bool:
    """True if a record was replaced by one of its own generation, so that history has nothing to keep."""
    return old is not None and new is not None and "generation" in old and old["generation"] == new.get("generation")


def generation_faults(before: int, old: Document | None, new: Document) -> Iterator[str]:
    """What is wrong with a record that was put.

    Args:
        before: the last generation of that name.
        old: the record that it replaces; None: there was none.
        new: the record.
    """
    now = new.get("generation")
    if same_generation(old, new):
        yield from _rewritten(old or {}, new)
        return
    if now != before + 1:
        yield f"generation {now} follows {before}"
    if old is not None and old.get("spec") == new.get("spec"):
        yield f"generation {now} has the same spec as the one before"
    if new.get("rollout") and _stable(new) != _served_by_all(old or {}):
        yield f"generation {now} says that others serve {_stable(new)!r:.200}, and they serve another"


def _rewritten(old: Document, new: Document) -> Iterator[str]:
    """A generation stays what it is but for its rollout, which may be halted or come to its end."""
    now = new.get("generation")
    others = old.keys() | new.keys()
    if any(old.get(key) != new.get(key) for key in others - {"rollout"}):
        yield f"generation {now} follows {now}, and is not the same"
    if old.get("rollout") == new.get("rollout"):
        yield f"generation {now} was written twice"
    elif not old.get("rollout") or (new.get("rollout") and _stable(new) != _stable(old)):
        yield f"generation {now} was for all replicas, or for others than its canaries to serve another"


def _stable(record: Document) -> tuple[object, object]:
    rollout = record.get("rollout") or {}
    return rollout.get("stable_generation"), rollout.get("stable_spec")


def _served_by_all(record: Document) -> tuple[object, object]:
    """Generation and spec that all but canaries serve."""
    return _stable(record) if record.get("rollout") else (record.get("generation"), record.get("spec"))
