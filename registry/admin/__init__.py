"""The admin service: the registry's gRPC API over the store."""
