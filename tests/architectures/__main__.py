"""Runs the matrix of architectures, keeps what was found, writes docs/architectures.md: ``make architectures``.

What was made and served stays in a folder, so that a run that was ended goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from tests.architectures.families import FAMILIES
from tests.architectures.matrix import judged, make, serve
from tests.architectures.page import PAGE, RESULTS, page
from tests.architectures.verdicts import differences

ROOT = Path(__file__).parents[2]


def main() -> None:
    """Entry point of the command."""
    parser = argparse.ArgumentParser(description="What the real engine applies of adapters, by architecture.")
    parser.add_argument("--only", default="", help="names of families, with commas between them")
    parser.add_argument("--folder", type=Path, default=ROOT / ".architectures", help="for models and answers")
    parser.add_argument("--fresh", action="store_true", help="make and serve all of it anew")
    arguments = parser.parse_args()
    wanted = set(arguments.only.split(",")) - {""}
    if unknown := wanted - {one.name for one in FAMILIES}:
        parser.error(f"--only names {', '.join(sorted(unknown))}, which tests/architectures/families.py has not")
    families = [one for one in FAMILIES if not wanted or one.name in wanted]
    if arguments.fresh:
        for one in families:
            shutil.rmtree(arguments.folder / one.name, ignore_errors=True)
    old = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    all_made = make(families, arguments.folder)
    try:
        serve(all_made)
    finally:
        done = [one for one in all_made if one.served or "error" in one.told]
        new = dict(sorted((old | {one.family.name: judged(one) for one in done}).items()))
        RESULTS.write_text(json.dumps(new, indent=1) + "\n")
        PAGE.write_text(page(new))
        print("\n".join(differences(old, new)) or "no verdict differs from the last matrix")


if __name__ == "__main__":
    main()
