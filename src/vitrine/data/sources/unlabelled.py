"""Images without labels: every image file below a folder, for pre-training and searches."""

from pathlib import Path

import numpy as np

from vitrine.data.file_list import FileList, list_images, no_images, require_path
from vitrine.data.source import NO_LABEL, Source, Strings, printable
from vitrine.errors import DataError


def open_folder(address: str) -> Source:
    """List every image below a folder, whatever its folders mean; every label is -1."""
    root = require_path(Path(address))
    if not root.is_dir():
        raise DataError(f"{printable(address)} is not a folder; images without labels are read from a folder")
    paths = Strings(list_images(root))
    if len(paths) == 0:
        raise DataError(no_images(root))
    labels = np.full(len(paths), NO_LABEL, dtype=np.int32)
    return FileList(root, paths, labels=labels, classes=(), address=address)
