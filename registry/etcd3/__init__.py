"""The etcd client, in etcd's own terms.

`ops` and `errors` are pure; the rest is grpc.aio. No other code speaks to etcd.
"""
