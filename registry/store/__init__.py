"""Desired state in etcd: transactions that settle, reads that are pinned.

No other room commits.
"""
