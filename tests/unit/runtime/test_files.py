import hashlib
import os
import stat
import subprocess
import sys
import threading

import numpy as np
import pytest

from vitrine.runtime import files
from vitrine.runtime.files import (
    remove_temporary_files,
    sha256_of,
    temporary_beside,
    write_atomically,
    write_table,
)


def test_a_block_that_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("old")
    with pytest.raises(KeyboardInterrupt), write_atomically(file, mode="w") as opened:
        opened.write("half")
        raise KeyboardInterrupt
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("word", "start"), [("cat", b"path"), ("Kätzchen", b"\xef\xbb\xbfpath"), ("猫", b"\xef\xbb\xbfpath")]
)
def test_a_table_begins_with_a_byte_order_mark_if_excel_would_show_wrong_letters_without(
    tmp_path, word, start
):
    with write_table(tmp_path / "table.csv") as writer:
        writer.writerow(["path", "label"])
        writer.writerow(["a.jpg", f'{word}, "small"; old'])
    data = (tmp_path / "table.csv").read_bytes()
    assert data.startswith(start)
    assert data.decode("utf-8-sig") == f'path,label\na.jpg,"{word}, ""small""; old"\n'


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


def write(path, content=b"new"):
    with write_atomically(path) as opened:
        opened.write(content)


@pytest.mark.parametrize("is_relative", [True, False])
def test_a_symbolic_link_stays_and_its_file_is_replaced(tmp_path, is_relative):
    (tmp_path / "elsewhere").mkdir()
    target, link = tmp_path / "elsewhere" / "target", tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to(os.path.relpath(target, tmp_path) if is_relative else target)
    write(link)
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["elsewhere", "link", "target"]


def test_a_link_to_a_link_to_a_file_that_is_not_there_yet_creates_it(tmp_path):
    (tmp_path / "first").symlink_to("second")
    (tmp_path / "second").symlink_to("file")
    write(tmp_path / "first")
    assert (tmp_path / "first").is_symlink() and (tmp_path / "second").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"new"


def test_links_that_name_each_other_are_an_error_and_stay(tmp_path):
    (tmp_path / "first").symlink_to("second")
    (tmp_path / "second").symlink_to("first")
    with pytest.raises(OSError, match="symbolic links"):
        write(tmp_path / "first")
    assert (tmp_path / "first").is_symlink()


def read_from(fifo, into):
    into.append(fifo.read_bytes())


@pytest.mark.parametrize("named", ["fifo", "link"])
def test_a_pipe_stays_a_pipe_and_receives_the_content(tmp_path, named):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("fifo")
    received: list[bytes] = []
    reader = threading.Thread(target=read_from, args=(tmp_path / "fifo", received))
    reader.start()
    content = os.urandom(1 << 20)  # more than a pipe holds
    write(tmp_path / named, content)
    reader.join()
    assert received == [content]
    assert stat.S_ISFIFO((tmp_path / "fifo").stat().st_mode)


def test_a_writer_that_seeks_can_write_to_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    received: list[bytes] = []
    reader = threading.Thread(target=read_from, args=(tmp_path / "fifo", received))
    reader.start()
    with write_atomically(tmp_path / "fifo") as opened:
        np.savez(opened, numbers=np.arange(3))
    reader.join()
    assert received[0].startswith(b"PK")


def test_a_block_that_fails_writes_nothing_to_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "fifo")  # nobody reads: opening it would wait for ever
    with pytest.raises(KeyboardInterrupt), write_atomically(tmp_path / "fifo") as opened:
        opened.write(b"half")
        raise KeyboardInterrupt


def test_a_device_stays_a_device(tmp_path):
    device = tmp_path / "null"
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))  # as /dev/null
        device.open("wb").close()  # some systems let devices be made and not be opened
    except PermissionError:
        device.unlink(missing_ok=True)
        device.symlink_to("/dev/null")
    write(device)
    assert stat.S_ISCHR(device.stat().st_mode)
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)  # noqa: PTH116
    assert list(tmp_path.iterdir()) == [device]


@pytest.mark.parametrize("is_file", [True, False], ids=["to a file", "to a pipe"])
def test_standard_output_receives_the_content_after_what_was_printed(tmp_path, is_file):
    code = (
        "import pathlib, sys; from vitrine.runtime.files import write_atomically\n"
        "print('before')\n"
        "with write_atomically(pathlib.Path('/dev/stdout'), mode='w') as file: file.write('content\\n')\n"
        "print('after')"
    )
    if is_file:
        with (tmp_path / "printed").open("wb") as printed:
            subprocess.run([sys.executable, "-c", code], check=True, stdout=printed)
        text = (tmp_path / "printed").read_text()
    else:
        text = subprocess.run(
            [sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True
        ).stdout
    assert text == "before\ncontent\nafter\n"


def test_the_mode_of_a_file_that_is_replaced_is_kept(tmp_path):
    (tmp_path / "a").touch(mode=0o640)
    write(tmp_path / "a")
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_the_owner_of_a_file_that_root_replaces_is_kept(tmp_path):
    (tmp_path / "a").touch()
    os.chown(tmp_path / "a", 1234, 1235)
    write(tmp_path / "a")
    assert ((tmp_path / "a").stat().st_uid, (tmp_path / "a").stat().st_gid) == (1234, 1235)


def test_the_folder_is_synced_after_the_rename(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(files, "sync_folder", lambda folder: synced.append((folder, os.listdir(folder))))  # noqa: PTH208
    write(tmp_path / "a")
    assert synced == [(tmp_path, ["a"])]


def test_a_folder_in_the_way_is_an_error_before_anything_is_written(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(IsADirectoryError), write_atomically(tmp_path / "a"):
        pytest.fail("the block must not begin")


def test_files_of_interrupted_writes_are_removed_and_nothing_else(tmp_path):
    orphans = [tmp_path / ".last.safetensors.0123456789abcdef", temporary_beside(tmp_path / "model")]
    orphans[0].touch()
    (orphans[1] / "inner").mkdir(parents=True)
    others = [
        tmp_path / name
        for name in (".last.safetensors.lock", ".a.0123", "last.safetensors", "0123456789abcdef")
    ]
    for file in others:
        file.touch()
    remove_temporary_files(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(others)


def test_a_write_that_is_killed_leaves_what_is_removed_later(tmp_path):
    code = (
        "import os, pathlib; from vitrine.runtime.files import write_atomically\n"
        f"with write_atomically(pathlib.Path({str(tmp_path / 'last.safetensors')!r})) as file:\n"
        "    file.write(b'half'); file.flush(); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code], check=False)
    assert len(list(tmp_path.iterdir())) == 1
    remove_temporary_files(tmp_path)
    assert list(tmp_path.iterdir()) == []
