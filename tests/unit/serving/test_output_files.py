import errno

import numpy as np
import pytest
from full_disk import files_of_at_most

from vitrine.serving import output_files
from vitrine.serving.output_files import write_features

parquet = pytest.importorskip("pyarrow.parquet")

ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)
NAMES = ["a.jpg", "b.jpg", "c.jpg", "d.jpg"]


@pytest.mark.parametrize("failures", [{}, {1: "b.jpg is damaged"}])
@pytest.mark.parametrize("longest", [2**31 - 1, 5])
def test_a_parquet_file_gives_back_every_row_even_where_32_bits_cannot_count_them(
    tmp_path, monkeypatch, failures, longest
):
    monkeypatch.setattr(output_files, "_LONGEST_LIST", longest)
    (file,) = write_features(tmp_path / "f.parquet", ROWS, names=NAMES, failures=failures)
    table = parquet.read_table(file)
    assert table.column("features").to_pylist() == [
        None if index in failures else row.tolist() for index, row in enumerate(ROWS)
    ]
    assert ("large_list" in str(table.schema.field("features").type)) == (longest == 5)


@pytest.mark.parametrize("failures", [{}, {1: "b.jpg is damaged"}])
def test_an_npy_file_holds_the_rows_that_there_are_and_its_table_says_whose(tmp_path, failures):
    file, table = write_features(tmp_path / "f.npy", ROWS, names=NAMES, failures=failures)
    kept = [index for index in range(4) if index not in failures]
    np.testing.assert_array_equal(np.load(file), ROWS[kept])
    lines = table.read_text().splitlines()[1:]
    assert [line.split(",")[0] for line in lines if line.split(",")[0]] == [
        str(row) for row in range(len(kept))
    ]


def test_on_a_full_disk_there_is_neither_the_features_nor_their_table(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("vitrine.runtime.files.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_features(tmp_path / "f.npy", ROWS, names=NAMES, failures={})
    monkeypatch.undo()
    long_names = [name.rjust(200, "x") for name in NAMES]  # so that the rows fit, and the table does not
    with files_of_at_most(400), pytest.raises(OSError, match="File too large"):
        write_features(tmp_path / "f.npy", ROWS, names=long_names, failures={})
    assert not any(tmp_path.iterdir())
