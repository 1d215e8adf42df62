"""Local stack for development: etcd, admin service, engines, sidecars."""
