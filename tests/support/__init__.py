"""Real parts for tests: etcd, proxies, waiting."""
