"""VTAB's 19 tasks: what they are, and readers of their original archives."""
