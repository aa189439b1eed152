"""Ask a server as any client would, with nothing but Python's own library."""

import http.client
import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Reply:
    """Status, headers in lower case, and body of one answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The sentence of a refusal; it is one sentence and the only thing in it."""
        values = self.json
        assert list(values) == ["error"] and values["error"] and "\n" not in values["error"], values
        assert "Traceback" not in values["error"]
        return str(values["error"])


def ask(
    port: int,
    path: str,
    data: bytes | None = None,
    *,
    method: str | None = None,
    headers: dict[str, str] | None = None,
    seconds: float = 30,
) -> Reply:
    """Send one request; a POST where there is a body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    try:
        connection.request(
            method or ("GET" if data is None else "POST"), path, body=data, headers=headers or {}
        )
        answer = connection.getresponse()
        received = {name.lower(): value for name, value in answer.getheaders()}
        return Reply(answer.status, received, answer.read())
    finally:
        connection.close()


def form(data: bytes, *, name: str = "file", boundary: str = "frontier") -> tuple[bytes, dict[str, str]]:
    """Return body and headers of a form with one file, as curl -F sends it."""
    head = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"; filename="a.jpg"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n"
    )
    body = head.encode() + data + f"\r\n--{boundary}--\r\n".encode()
    return body, {"Content-Type": f"multipart/form-data; boundary={boundary}"}
