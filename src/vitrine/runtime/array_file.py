"""Write arrays as .npy files so that a full disk is recognised."""

from typing import IO, Any

import numpy as np
from numpy.typing import NDArray


class _Writing:
    """The only method of a file that numpy needs; to a whole file it writes by itself, without the error's number."""

    def __init__(self, file: IO[bytes]) -> None:
        self.write = file.write


def save_array(file: IO[bytes], values: NDArray[Any]) -> None:
    """Write a .npy file; an error of the disk is the system's own, with its number."""
    np.save(_Writing(file), values, allow_pickle=False)
