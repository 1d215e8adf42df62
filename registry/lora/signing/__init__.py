"""Bundles that vouch for files, as OpenSSF Model Signing has them. Pure."""
