"""Modules that an engine applies adapters to, and what to say of the others."""
