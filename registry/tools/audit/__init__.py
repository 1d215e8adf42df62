"""The audit outside of etcd: its lines, and their comparison with etcd."""
