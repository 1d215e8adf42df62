"""Grafana's dashboards of a fleet, made from code."""
