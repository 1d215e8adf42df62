"""A sidecar that a test has changed: ``python -m tests.support.changed_sidecar HOW FLAGS…``.

HOW is the failpoint at which it kills itself; or "patient": it bears an etcd that stands still for minutes; or
"unhurried": it waits a minute for etcd at its end, and for an engine that asks it for an adapter; or "attentive": it
looks at its engine every second, merely because time has passed; or "counting": it averages load over seconds; or
"decided": what its engine refused for seconds is its answer to a rollout; or "stuck": all that its threads ask of
sources is asked of a mount that hangs.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from unittest import mock

from registry.runtime.failpoints import Point, handling
from sidecar.main import main
from tests.support.herd import patient


def dying(dies_at: Point) -> AbstractContextManager[None]:
    """Makes this process die when it first passes the point, as by kill -9."""

    def die_if_due(point: Point) -> None:
        if point is dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    return handling(die_if_due)


@contextmanager
def attentive() -> Iterator[None]:
    """Makes this process look at its engine every second."""
    with (
        mock.patch("sidecar.loop.observer.RESYNC_SECONDS", 1.0),
        mock.patch("sidecar.loop.reconciler.RESYNC_SECONDS", 1.0),
    ):
        yield


@contextmanager
def unhurried() -> Iterator[None]:
    """Makes this process wait for etcd at its end, and for whoever asks it for an adapter, however late they are."""
    with (
        mock.patch("sidecar.report.writer._LEFT_SECONDS", 60.0),
        mock.patch("sidecar.resolver.server.TRANSFER_SECONDS", 60.0),
    ):
        yield


@contextmanager
def counting() -> Iterator[None]:
    """Makes this process average the load of adapters over two seconds, and tell it at once."""
    with (
        mock.patch("sidecar.report.load.SAMPLE_SECONDS", 0.2),
        mock.patch("sidecar.report.load.WINDOW_SECONDS", 2.0),
        mock.patch("sidecar.report.load.TELL_SECONDS", 0.5),
    ):
        yield


def decided() -> AbstractContextManager[object]:
    """Makes this process tell a rollout after a second what it would tell after a minute."""
    return mock.patch("sidecar.plan.backoff.SETTLED_SECONDS", 1.0)


@contextmanager
def stuck() -> Iterator[None]:
    """Makes threads of this process wait for ever where they look at sources or stage from them."""

    def hang(*_: object) -> None:
        threading.Event().wait()

    with (
        mock.patch("sidecar.artifacts.maintenance.Maintenance.look_at_sources", hang),
        mock.patch("sidecar.artifacts.obtain.Obtainer._stage", hang),
    ):
        yield


CHANGES = {
    "patient": patient,
    "unhurried": unhurried,
    "attentive": attentive,
    "counting": counting,
    "decided": decided,
    "stuck": stuck,
}


if __name__ == "__main__":
    how = sys.argv.pop(1)
    with CHANGES[how]() if how in CHANGES else dying(Point(how)):
        main()
