"""Values that all processes agree on, as they stand in etcd. Pure."""
