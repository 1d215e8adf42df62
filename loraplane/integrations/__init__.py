"""Integrations, each on the public package and the framework that it is for."""
