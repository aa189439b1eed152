"""An exported page in a browser: a static host for its folder, and its worker asked directly."""

import base64
import functools
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from vitrine.errors import DownloadError
from vitrine.exporting.onnxruntime_web import find_onnxruntime_web

# Opens the page's own worker in the page, once, and lets it compute one picture.
COMPUTE = """async (base64) => {
  window.worker ??= new Worker("page/worker.js", { type: "module" });
  const ask = (message) => new Promise((resolve) => {
    window.worker.onmessage = ({ data }) => resolve(data);
    window.worker.postMessage({ id: 1, ...message });
  });
  window.opened ??= await ask({ kind: "open", address: document.baseURI });
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const { result, error } = await ask({ kind: "compute", bytes: bytes.buffer });
  return error ? { error } : { ...result, pixels: Array.from(result.pixels) };
}"""


def require_onnxruntime_web() -> None:
    """Skip a test where npm's registry cannot be reached."""
    try:
        find_onnxruntime_web()
    except DownloadError as error:
        pytest.skip(f"the page needs onnxruntime-web: {error}")


@contextmanager
def static_host(folder: Path) -> Iterator[str]:
    """Serve a folder as a plain static host does; give its address."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *values: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))
    ) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://localhost:{server.server_address[1]}/"
        finally:
            server.shutdown()
            thread.join()


def compute(page: Any, data: bytes) -> dict[str, Any]:
    """Return what the page's worker computes from the bytes of a picture."""
    return page.evaluate(COMPUTE, base64.b64encode(data).decode())
