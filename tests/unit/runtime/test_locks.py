import errno
import os
import subprocess
import sys
import threading
import time

import pytest

from vitrine.errors import ConfigError
from vitrine.runtime.locks import require_lock, wait_for_lock
from vitrine.runtime.progress import listening


class Heard:
    def __init__(self) -> None:
        self.remarks: list[str] = []

    def notice(self, text: str, advice: object = ()) -> None:
        self.remarks.append(text)


def add_one(path) -> None:
    with wait_for_lock(path):
        before = int(path.read_text())
        time.sleep(0.002)  # long enough for all others to read the same number, if they could
        path.write_text(str(before + 1))


def test_nobody_sees_what_another_holder_of_the_lock_has_half_done(tmp_path):
    path = tmp_path / "sum"
    path.write_text("0")
    threads = [threading.Thread(target=lambda: [add_one(path) for _ in range(10)]) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_text() == "60"
    assert list(tmp_path.iterdir()) == [path], "the lock is taken away with the last user"


def test_another_process_is_waited_for_and_that_is_said(tmp_path):
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom vitrine.runtime.locks import wait_for_lock\n"
        f"with wait_for_lock(Path({str(tmp_path / 'a')!r})):\n"
        "    print('in', flush=True); sys.stdin.read(1); time.sleep(0.3)\n"
        f"    Path({str(tmp_path / 'done')!r}).touch()\n"
    )
    heard = Heard()
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdin is not None
        assert other.stdout.readline() == "in\n"
        with (
            pytest.raises(ConfigError, match=r"process .*/a; wait for it"),
            require_lock(tmp_path / "a", advice="wait for it"),
        ):
            pass
        other.stdin.write("x")
        other.stdin.flush()
        with listening(heard), wait_for_lock(tmp_path / "a"):  # type: ignore[arg-type]
            assert (tmp_path / "done").exists()
    [remark] = heard.remarks
    assert remark.startswith("Waiting ") and remark.endswith(str(tmp_path / "a"))


def test_a_process_that_was_killed_holds_nobody_back(tmp_path):
    code = (
        "import time\nfrom pathlib import Path\nfrom vitrine.runtime.locks import wait_for_lock\n"
        f"with wait_for_lock(Path({str(tmp_path / 'a')!r})):\n    print('in', flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "in\n"
        other.kill()
    with require_lock(tmp_path / "a", advice=""):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK])
def test_a_file_system_without_locks_lets_everyone_go_ahead(tmp_path, monkeypatch, code):
    def flock(descriptor, operation):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", flock)
    with wait_for_lock(tmp_path / "a"), require_lock(tmp_path / "a", advice=""):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_link_in_the_place_of_the_lock_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".a.lock").symlink_to(tmp_path / "elsewhere" / "created")
    with pytest.raises(ConfigError, match="symbolic links"), wait_for_lock(tmp_path / "a"):
        pass
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ConfigError, match=r"cannot write .*file: File exists"),
        wait_for_lock(tmp_path / "file" / "a"),
    ):
        pass
