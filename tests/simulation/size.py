"""How large a world is: most are small, since these find most bugs, in half of the time; the others are whole."""

from __future__ import annotations

import random
from dataclasses import dataclass

WHOLE_SHARE = 0.2


@dataclass(frozen=True)
class Size:
    """What there is in a world.

    Attributes:
        seconds: how long faults last.
        pause: what is multiplied by this is the time between two events of one kind.
        stay_seconds: how long what has converged is looked at, while it must stay so.
        members, replicas: how many there are; the world draws one of these numbers.
        admins: how many admin services there are.
        names: of the adapters.
    """

    seconds: float = 30.0
    pause: float = 1.0
    stay_seconds: float = 20.0
    members: tuple[int, ...] = (1, 3)
    replicas: tuple[int, ...] = (1, 2, 3)
    admins: int = 2
    names: tuple[str, ...] = ("a", "b", "acme/c", "acme/d", "e", "f")


WHOLE = Size()


def size_of(seed: int) -> Size:
    """The size of a seed's world."""
    rng = random.Random(f"size {seed}")
    if rng.random() < WHOLE_SHARE:
        return WHOLE
    return Size(
        seconds=rng.choice((6.0, 9.0, 14.0)),
        pause=rng.choice((0.3, 0.5, 1.0)),
        stay_seconds=rng.choice((2.0, 2.0, 20.0)),
        members=rng.choice(((1,), (1,), (3,))),
        replicas=rng.choice(((1,), (1,), (2,))),
        admins=rng.choice((1, 2)),
        names=rng.choice((("a", "acme/c", "acme/d"), ("b", "acme/c", "acme/d", "acme/e"))),
    )
