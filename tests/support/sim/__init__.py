"""Deterministic simulation: the real sidecar and admin code on one virtual-time loop, with an etcd and engines in memory."""
