"""Resolver of lazy adapters: answers an engine's questions."""
