"""Observed state: one process beside each engine that makes the engine serve what the registry says."""
