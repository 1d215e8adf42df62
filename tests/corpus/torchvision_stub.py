"""A torchvision with nothing in it, for an environment that has none.

The classes that turn pictures into numbers name it where they are imported. No test here shows an engine a picture:
what is served, and what adapters are for, is the language model, which does without.
"""

from __future__ import annotations

from pathlib import Path

_ANYTHING = """
def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return object
"""
_FILES = {
    "torchvision-0.28.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: torchvision\nVersion: 0.28.0\n",
    "torchvision/__init__.py": "__version__ = '0.28.0'\nfrom . import io, transforms\n",
    "torchvision/io/__init__.py": _ANYTHING,
    "torchvision/transforms/__init__.py": """
import enum
_NAMES = "NEAREST NEAREST_EXACT BILINEAR BICUBIC BOX HAMMING LANCZOS"
InterpolationMode = enum.Enum("InterpolationMode", {name: name.lower().replace("_", "-") for name in _NAMES.split()})
from . import functional, v2
""",
    "torchvision/transforms/functional.py": _ANYTHING,
    "torchvision/transforms/v2/__init__.py": "from . import functional\n",
    "torchvision/transforms/v2/functional.py": _ANYTHING,
}


def write_stub(folder: Path) -> Path:
    """Writes it below a folder, which then goes onto the path of imports."""
    for name, content in _FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder
