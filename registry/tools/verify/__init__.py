"""The replay checker: holds a history of etcd against the guarantees.

It checks calls, logs of sidecars and listings of engines against the history.
"""
