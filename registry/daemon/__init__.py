"""What the long-running processes share: settings, a command line made from them, logs, an end with a reason."""

import os

# gRPC reads it when it is imported; its own notes would stand between our lines.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
