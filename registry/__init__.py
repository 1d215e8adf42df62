"""Desired state of LoRA adapters: its model, its keys in etcd, and the service that writes it."""
