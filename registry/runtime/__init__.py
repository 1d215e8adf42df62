"""Shared parts of the daemons: settings, flags, logs, HTTP port, clock."""

import os

# gRPC reads it when it is imported; its own notes would stand between our lines.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
