"""The browser that tests drive pages with."""

import atexit
import functools
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="no browser to drive the page with: apt-get install chromium"
)
# WebGPU on the processor: Chromium's own software Vulkan.
SOFTWARE_WEBGPU = ("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--enable-features=Vulkan")


@contextmanager
def open_browser(*options: str) -> Iterator[Any]:
    """Open Chromium for the block, with a camera that shows a test picture."""
    camera = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")
    opened = driver().chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", *camera, *options])
    yield opened
    opened.close()


@functools.cache
def driver() -> Any:
    """Start Playwright once: a thread can hold one of them, and several browsers."""
    from playwright.sync_api import sync_playwright

    started = sync_playwright().start()
    atexit.register(started.stop)
    return started


def until(page: Any, expression: str, *, seconds: float = 15) -> None:
    """Wait until an expression holds; Playwright's own way is forbidden by the page's security policy."""
    end = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < end, expression
        page.wait_for_timeout(20)
