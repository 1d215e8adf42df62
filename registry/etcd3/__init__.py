"""The only code that speaks to etcd, in etcd's own terms. `ops` and `errors` are pure; the rest is grpc.aio."""
