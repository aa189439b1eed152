import hashlib
import os
import threading

import pytest

from vitrine.runtime.files import sha256_of, write_atomically


def test_a_block_that_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("old")
    with pytest.raises(KeyboardInterrupt), write_atomically(file, mode="w") as opened:
        opened.write("half")
        raise KeyboardInterrupt
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_has_the_mode_that_any_other_new_file_has(tmp_path):
    (tmp_path / "plain").touch()
    with write_atomically(tmp_path / "ours") as opened:
        opened.write(b"x")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_the_mask_of_the_process_is_never_touched_since_other_threads_make_files_meanwhile(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("the mask of all threads was changed"))
    with write_atomically(tmp_path / "a") as opened:
        opened.write(b"x")
    assert (tmp_path / "a").read_bytes() == b"x"


def test_a_name_as_long_as_a_file_system_takes_can_be_written(tmp_path):
    file = tmp_path / ("\N{CAT FACE}" * 63)  # 252 bytes of the 255 that most allow
    with write_atomically(file, mode="w") as opened:
        opened.write("x")
    assert file.read_text() == "x"


def test_many_who_write_one_file_at_once_leave_one_of_theirs_whole(tmp_path):
    file, texts = tmp_path / "a", [str(number) * 100_000 for number in range(8)]

    def write(text: str) -> None:
        with write_atomically(file, mode="w") as opened:
            opened.write(text)

    threads = [threading.Thread(target=write, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert file.read_text() in texts
    assert list(tmp_path.iterdir()) == [file]


def test_the_sha256_of_a_file_is_that_of_its_bytes(tmp_path):
    (tmp_path / "a").write_bytes(bytes(range(256)) * 9000)
    assert sha256_of(tmp_path / "a") == hashlib.sha256(bytes(range(256)) * 9000).hexdigest()
