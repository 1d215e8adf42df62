"""Adapters in the order in which they are served: a sorted tuple of ranks, amended in place of sorted anew. Pure."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection

Rank = tuple[int, str]  # -priority, name key
Order = tuple[Rank, ...]
# Above so many changes at once, sorting anew is cheaper than inserting one by one.
_SORT_ANEW = 64


def reorder(order: Order, gone: Collection[Rank], come: Collection[Rank]) -> Order:
    """The order without ranks that are in it, and with some that are not."""
    if not gone and not come:
        return order
    if len(gone) + len(come) > _SORT_ANEW:
        former = set(gone)
        return tuple(sorted([*(rank for rank in order if rank not in former), *come]))
    ranks = list(order)
    for rank in gone:
        del ranks[bisect_left(ranks, rank)]
    for rank in come:
        insort(ranks, rank)
    return tuple(ranks)


def is_in(order: Order, rank: Rank) -> bool:
    """True if the rank is in the order."""
    at = bisect_left(order, rank)
    return at < len(order) and order[at] == rank
