"""What is stored in etcd: names, records and statuses, validated by pydantic. Pure."""
