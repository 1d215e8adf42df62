"""From etcd to one frozen snapshot of what this replica should serve."""
