"""Files of a folder that Vitrine owns: text and tables, written atomically, never through links that lead out."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from vitrine.errors import CheckpointError, ConfigError
from vitrine.runtime.files import json_text, parse_json, require_own_file, write_atomically


@dataclass(frozen=True)
class OwnFiles:
    """The files of one folder, by name."""

    path: Path

    def text(self, name: str, default: str | None = None) -> str:
        """Read a text file; `default` is returned if the file does not exist."""
        path = self.path / name
        if default is not None and not path.exists():
            return default
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise ConfigError(f"cannot read {path}: {reason}") from None

    def table(self, name: str, default: dict[str, Any] | None = None) -> dict[str, Any]:
        """Read a JSON object; `default` is returned if the file does not exist."""
        if default is not None and not (self.path / name).exists():
            return default
        text = self.text(name)
        try:
            values = parse_json(text)
        except ValueError as error:
            raise ConfigError(f"{self.path / name} is damaged: {error}") from None
        if not isinstance(values, dict):
            raise ConfigError(f"{self.path / name} is damaged: not a table of names and values")
        return values

    def write_table(self, name: str, values: Mapping[str, Any]) -> None:
        """Write a JSON object."""
        self.write(name, json_text(values, indent=2) + "\n")

    def write(self, name: str, content: str | bytes) -> None:
        """Write a file; it becomes visible when it is complete."""
        path = self.path / name
        require_own_file(path, root=Path(os.path.realpath(self.path)))
        try:
            with write_atomically(path, mode="w" if isinstance(content, str) else "wb") as file:
                file.write(content)
        except OSError as error:
            raise CheckpointError(f"cannot write {path}: {error.strerror or error}") from None

    def append(self, name: str) -> TextIO:
        """Open a text file to append to it."""
        self.path.mkdir(parents=True, exist_ok=True)
        require_own_file(self.path / name, root=Path(os.path.realpath(self.path)))
        return (self.path / name).open("a", encoding="utf-8")
