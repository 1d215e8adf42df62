"""The page of the admin service: who serves what, for a browser, read only."""
