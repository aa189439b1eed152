"""The page's files by their path from its address, for a server and for a folder that any static host can show.

`shared` is the page itself. It asks for everything through `api.js`, which exists twice: in `served` it sends
requests to the server; in `offline` it computes in the browser. All addresses are relative, so that the page works
below any path: behind a proxy and on a static host.
"""

from importlib.resources import files

TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
INDEX = "index.html"
# Files whose place decides what they can do: a service worker governs only its own folder.
AT_ROOT = (INDEX, "docs.html", "service-worker.js", "start.py")
OFFLINE_HEAD = """\
  <meta http-equiv="Content-Security-Policy" content="default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; \
img-src 'self' blob: data:; media-src 'self' blob:; worker-src 'self'; object-src 'none'; base-uri 'none'; \
form-action 'none'">
"""


def served_files() -> dict[str, bytes]:
    """Return the files of the page behind a server."""
    return _read("shared") | _read("served")


def offline_files() -> dict[str, bytes]:
    """Return the files of the page without a server; the model and onnxruntime-web belong beside them."""
    files = _read("shared") | _read("offline")
    index = files[INDEX].decode()
    index = index.replace('data-place="server"', 'data-place="device"')
    marker = "  <title>"
    files[INDEX] = index.replace(marker, OFFLINE_HEAD + marker, 1).encode()
    return files


def _read(folder: str) -> dict[str, bytes]:
    return {
        file.name if file.name in AT_ROOT else f"page/{file.name}": file.read_bytes()
        for file in files("vitrine.page").joinpath(folder).iterdir()
        if file.is_file()
    }
