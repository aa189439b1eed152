"""Arrays on a disk that takes no more."""

import errno
from pathlib import Path

import numpy as np
import pytest
from full_disk import files_of_at_most

from vitrine.runtime.array_file import save_array
from vitrine.runtime.files import write_atomically


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4).transpose(2, 0, 1)
    with write_atomically(tmp_path / "a.npy") as file:
        save_array(file, values)
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), values)


def test_a_disk_that_is_full_in_the_middle_of_an_array_says_so(tmp_path: Path) -> None:
    values = np.zeros(10_000, dtype=np.float32)
    with (
        files_of_at_most(20_000),
        pytest.raises(OSError, match="File too large") as refused,
        write_atomically(tmp_path / "a.npy") as file,
    ):
        save_array(file, values)
    assert refused.value.errno == errno.EFBIG  # numpy.save raises an error without a number
    assert not any(tmp_path.iterdir())
