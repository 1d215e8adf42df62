"""The Python client of the registry: publish, list, wait, roll back."""

import os

# Before gRPC is imported: what it does around a fork is for clients without asyncio, and with one it leaves the child's
# memory damaged. Whoever needs it for clients of their own sets the variable.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
