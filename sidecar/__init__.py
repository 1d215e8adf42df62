"""The sidecar: makes one engine serve what the registry says."""
