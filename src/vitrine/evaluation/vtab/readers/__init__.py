"""Readers of the original archives, one file a layout.

Each has `open_splits(folder, task)`, which returns the splits that the archive has (`train`, `val`, `test`, or
`all` where it has none), or None where the folder is not laid out so.
"""
