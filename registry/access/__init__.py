"""Access control: principals, roles, the access file, the one decision."""
