"""Adapters that are loaded when an engine asks for them: what it is told, and which of them stay loaded."""
