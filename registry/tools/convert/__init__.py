"""Converts trained adapters into ones that replicas can serve, and publishes.

Only `arithmetic`, `stored` and `converter` need torch and PEFT; nothing imports them before they are needed.
"""
