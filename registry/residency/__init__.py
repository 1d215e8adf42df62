"""Residency: which replica serves which adapter, derived and streamed to routers."""
