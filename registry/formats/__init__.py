"""Formats of other systems, and the strict reader of YAML. Pure."""
