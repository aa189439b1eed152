from pathlib import Path

import pytest

from vitrine.checkpoints.writing import refusing_in_words
from vitrine.errors import CheckpointError, DownloadError, MissingCheckpointError, VitrineError


def test_an_error_of_the_system_becomes_one_of_ours(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught, refusing_in_words(tmp_path):
        raise OSError(28, "No space left on device")
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("error", [MissingCheckpointError("no such file: a"), DownloadError("no network")])
def test_our_own_error_while_writing_stays_what_it_is(tmp_path: Path, error: VitrineError) -> None:
    assert isinstance(error, OSError)
    with pytest.raises(type(error)) as caught, refusing_in_words(tmp_path / "b"):
        raise error
    assert caught.value is error
