"""Which base model a replica's adapters are compared with."""

from __future__ import annotations

from registry.lora.base import BaseModules, expand
from registry.model.records import BaseShapes, PoolSpec


class Bases:
    """The replica's own base, or else the pool's. Only one task changes it."""

    def __init__(self, own: BaseModules | None) -> None:
        """Takes the modules that the replica was told of; None: the pool's record says them."""
        self._own = own
        self._shapes: BaseShapes | None = None
        self.current = own
        self.problem = ""

    def follow(self, pool: PoolSpec | None) -> None:
        """Takes up a pool's record; costs nothing where it says what it said before."""
        shapes = pool.base if pool else None
        if shapes == self._shapes:
            return
        self._shapes = shapes
        theirs = base_of(shapes) if shapes else None
        self.problem = _problem(self._own, theirs)
        self.current = self._own if theirs is None or self.problem else theirs


def base_of(shapes: BaseShapes) -> BaseModules:
    """The modules that a pool's record describes."""
    return BaseModules(expand(shapes.modules), tuple(shapes.names))


def _problem(own: BaseModules | None, theirs: BaseModules | None) -> str:
    if own is None or theirs is None or own.fingerprint == theirs.fingerprint:
        return ""
    return (
        f"the base model of --base-model has the fingerprint {own.fingerprint}, the pool's record says "
        f"{theirs.fingerprint}: start the sidecar with the pool's base model, or update the pool"
    )
