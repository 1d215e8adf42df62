"""Rollouts: how far a generation has come, and what becomes of canaries."""
