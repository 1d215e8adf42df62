"""Generated stubs of the admin API (make proto)."""
