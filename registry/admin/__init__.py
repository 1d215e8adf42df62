"""The admin service: the registry's gRPC API over the store."""

import registry.daemon  # noqa: F401 - sets what gRPC reads when it is imported
