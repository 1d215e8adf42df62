"""Deterministic simulation: the real sidecar and admin code on virtual time, with etcd and engines in memory."""
