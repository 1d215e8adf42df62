"""What a sidecar has in memory while it does nothing: no library that only some of its work needs."""

from __future__ import annotations

import subprocess
import sys

# Together more than all records of a large catalogue; each is imported by the first work that needs it.
LATE = {"numpy", "obstore", "httpx", "httpcore", "tenacity", "cryptography", "yaml", "torch", "peft"}
_PRINT_IMPORTED = "import sidecar.main, sys; print(*{name.partition('.')[0] for name in sys.modules})"


def test_a_sidecar_starts_without_what_only_some_artifacts_need():
    """Guarantee R16: a process of its own, since this one has imported everything by now."""
    ran = subprocess.run([sys.executable, "-c", _PRINT_IMPORTED], capture_output=True, text=True, check=True)
    imported = set(ran.stdout.split())
    assert "grpc" in imported
    assert not imported & LATE
