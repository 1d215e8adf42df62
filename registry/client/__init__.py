"""The Python client of the registry: publish, list, wait, roll back."""
