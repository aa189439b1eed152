"""The web page: views that work behind a server and in a folder alone, and the part that differs between the two."""

from vitrine.page.files import TYPES, offline_files, served_files

__all__ = ["TYPES", "offline_files", "served_files"]
