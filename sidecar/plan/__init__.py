"""Planner: from desired and observed state to exactly what shall be done. Pure."""
