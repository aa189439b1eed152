"""Show this folder in the browser: double-click this file, or run `python start.py`. Needs nothing but Python."""

import functools
import http.server
import webbrowser
from pathlib import Path

TYPES = {".js": "text/javascript", ".wasm": "application/wasm", ".json": "application/json"}


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serve files with the content types that browsers require, regardless of this machine's settings."""

    def guess_type(self, path: str) -> str:  # type: ignore[override]
        """Return the type of a file."""
        return TYPES.get(Path(path).suffix) or super().guess_type(path)

    def log_message(self, *values: object) -> None:
        """Print nothing per request."""


def main() -> None:
    """Serve on a free port of this machine until Ctrl-C."""
    handler = functools.partial(Handler, directory=str(Path(__file__).resolve().parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        address = f"http://localhost:{server.server_address[1]}/"
        print(f"Showing this folder at {address} (Ctrl-C to stop)", flush=True)
        webbrowser.open(address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()


if __name__ == "__main__":
    main()
