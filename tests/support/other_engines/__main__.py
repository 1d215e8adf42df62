"""``python -m tests.support.other_engines --kind K --port N``: a simulated engine as a process."""

from __future__ import annotations

import argparse
import asyncio

from tests.support.kinds import OTHER_KINDS
from tests.support.other_engines.server import serving


async def _serve(kind: str, port: int) -> None:
    async with serving(OTHER_KINDS[kind]("base").app(), port=port):
        await asyncio.Event().wait()


def main() -> None:
    """Entry point; it is ended by a signal."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=sorted(OTHER_KINDS), required=True)
    parser.add_argument("--port", type=int, required=True)
    arguments = parser.parse_args()
    asyncio.run(_serve(arguments.kind, arguments.port))


if __name__ == "__main__":
    main()
