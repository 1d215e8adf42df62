"""A local stack for development: etcd, the admin service, engines and sidecars as child processes."""
