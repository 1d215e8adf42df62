"""A sidecar that bears an etcd which stands still for minutes: ``python -m tests.support.patient_sidecar FLAGS…``."""

from __future__ import annotations

from sidecar.main import main
from tests.support.herd import patient

if __name__ == "__main__":
    with patient():
        main()
