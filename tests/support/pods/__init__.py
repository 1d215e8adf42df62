"""Plays nodes and controllers of a cluster with real processes; what they do not know of a manifest they refuse.

Pods have a network namespace with an address each, containers a root that nobody writes to but where a volume is
mounted. Images are names of programs on this machine (`images`). It takes root, and namespaces.
"""
