"""Drivers: how each kind of engine is observed and called."""
