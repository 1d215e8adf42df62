"""The registry: desired state of adapters, its keys in etcd, its admin service."""
