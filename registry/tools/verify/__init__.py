"""The replay checker: a history of etcd against the guarantees that it shows."""
