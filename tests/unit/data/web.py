"""A web server on this machine that gives out a folder, with range requests."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@dataclass
class Request:
    method: str
    path: str
    range: str | None


# What an answer may be: a status, headers and a body.
Answer = tuple[int, dict[str, str], bytes]


@contextmanager
def answering(answer: Callable[[Request], Answer]) -> Iterator[tuple[str, list[Request]]]:
    """Serve what `answer` gives, parts of it where a range is asked; yields the address and the requests."""
    requests: list[Request] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            request = Request(self.command, self.path, self.headers.get("Range"))
            requests.append(request)
            status, headers, body = answer(request)
            headers = {"Accept-Ranges": "bytes"} | headers
            if request.range and status == 200:
                first, _, last = request.range.removeprefix("bytes=").partition("-")
                start, stop = int(first), min(int(last) + 1 if last else len(body), len(body))
                headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(body)}"
                status, body = 206, body[start:stop]
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815 (http.server names it)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, list[Request]]]:
    def answer(request: Request) -> Answer:
        path = folder / request.path.lstrip("/")
        return (200, {}, path.read_bytes()) if path.is_file() else (404, {}, b"")

    with answering(answer) as found:
        yield found
