import platform
import sys

from vitrine.serving import memory
from vitrine.serving.memory import keep_freed_memory


def test_freed_memory_is_kept_where_the_c_library_is_glibc():
    is_glibc = sys.platform.startswith("linux") and platform.libc_ver()[0] == "glibc"
    assert keep_freed_memory() == is_glibc


def test_elsewhere_nothing_is_done(monkeypatch):
    monkeypatch.setattr(memory.sys, "platform", "darwin")
    assert keep_freed_memory() is False
