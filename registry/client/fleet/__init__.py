"""Changes that roll out, pools, replicas, tenants and what was done, for programs."""
