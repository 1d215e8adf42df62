"""The admin service: the registry's gRPC API over the store."""

import registry.runtime  # noqa: F401 - sets what gRPC reads when it is imported
