"""Keys for signing adapters, made with openssl as docs/signatures.md shows it."""

from __future__ import annotations

import subprocess
from pathlib import Path


def make_key(folder: Path, name: str = "key") -> tuple[bytes, str]:
    """A private Ed25519 key in PEM, which is written to `folder` too, and its public key in PEM."""
    file = folder / f"{name}.pem"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", file], check=True, capture_output=True)
    private = file.read_bytes()
    return private, public_pem(private)


def public_pem(private: bytes) -> str:
    """The public key of a private one."""
    done = subprocess.run(["openssl", "pkey", "-pubout"], input=private, check=True, capture_output=True)
    return done.stdout.decode()
