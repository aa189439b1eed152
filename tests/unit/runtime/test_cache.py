import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from vitrine.runtime.cache import cache_folder, downloads, is_offline, may_download, why_offline


def test_the_cache_is_where_the_variable_says_or_in_the_users_own(tmp_path, monkeypatch):
    monkeypatch.setenv("VITRINE_CACHE", "/somewhere")
    assert str(cache_folder()) == "/somewhere"
    monkeypatch.setenv("VITRINE_CACHE", "~/kept")
    assert cache_folder() == Path.home() / "kept"
    monkeypatch.delenv("VITRINE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "vitrine"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "vitrine"


def test_tests_and_the_processes_they_start_use_a_cache_of_their_own_and_not_the_users():
    code = "from vitrine.runtime.cache import cache_folder; print(cache_folder())"
    started = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert started.stdout.strip() == str(cache_folder())
    assert cache_folder().is_relative_to(tempfile.gettempdir())
    assert not cache_folder().is_relative_to(Path.home() / ".cache")


def test_every_library_caches_in_the_folder_of_the_test_run():
    for name in ("HF_HOME", "XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        assert Path(os.environ[name]).parent == cache_folder().parent, name


@pytest.mark.parametrize(
    ("word", "expected"), [("1", True), ("yes", True), ("True", True), ("0", False), ("", False)]
)
def test_the_network_is_forbidden_in_huggingface_hubs_words(monkeypatch, word, expected):
    monkeypatch.setenv("HF_HUB_OFFLINE", word)
    assert is_offline() is expected


def test_nothing_is_downloaded_where_it_is_not_allowed_and_the_advice_names_the_parameter(monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    assert not is_offline()
    with downloads(allowed=False):
        assert is_offline() and not may_download()
        with downloads(allowed=True):  # no block inside can allow more than the one around it
            assert is_offline()
        assert [advice.option for advice in why_offline()[1]] == ["allow_download"]
    assert not is_offline()
