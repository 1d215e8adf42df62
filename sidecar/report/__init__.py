"""Presence and status of this replica, derived and written."""
