"""Desired state in etcd: changes are settled here, reads are pinned here. The one place that commits."""
