import subprocess
import sys
import threading
import time

import pytest

from vitrine.errors import ConfigError
from vitrine.runtime import turns
from vitrine.runtime.progress import listening
from vitrine.runtime.turns import alone_at, taking_turns

pytestmark = pytest.mark.skipif(turns.fcntl is None, reason="this system has no such locks")


class Heard:
    def __init__(self) -> None:
        self.remarks: list[str] = []

    def notice(self, text: str, advice: object = ()) -> None:
        self.remarks.append(text)


def add_one(path) -> None:
    with taking_turns(path):
        before = int(path.read_text())
        time.sleep(0.002)  # long enough for all others to read the same number, if they could
        path.write_text(str(before + 1))


def test_who_takes_turns_never_works_on_what_another_has_half_done(tmp_path):
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
        "import sys, time\nfrom pathlib import Path\nfrom vitrine.runtime.turns import taking_turns\n"
        f"with taking_turns(Path({str(tmp_path / 'a')!r})):\n"
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
            pytest.raises(ConfigError, match=r"another process is at work on .*a; wait for it"),
            alone_at(tmp_path / "a", advice="wait for it"),
        ):
            pass
        other.stdin.write("x")
        other.stdin.flush()
        with listening(heard), taking_turns(tmp_path / "a"):  # type: ignore[arg-type]
            assert (tmp_path / "done").exists()
    assert heard.remarks == [f"Waiting for another process that is at work on {tmp_path / 'a'}"]


def test_a_process_that_was_killed_holds_nobody_back(tmp_path):
    code = (
        "import time\nfrom pathlib import Path\nfrom vitrine.runtime.turns import taking_turns\n"
        f"with taking_turns(Path({str(tmp_path / 'a')!r})):\n    print('in', flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "in\n"
        other.kill()
    with alone_at(tmp_path / "a", advice=""):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_system_without_locks_lets_everyone_go_ahead(tmp_path, monkeypatch):
    monkeypatch.setattr(turns, "fcntl", None)
    with taking_turns(tmp_path / "a"), taking_turns(tmp_path / "a"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ConfigError, match=r"cannot write in .*file: .*name another folder"),
        taking_turns(tmp_path / "file" / "a"),
    ):
        pass
