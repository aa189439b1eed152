"""A server under way, and clients on loopback that send it pictures: what `benchmarks/serve.py` measures with."""

import asyncio
import io
import json
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
FILLING_SECONDS = 1.5
KEPT_PHOTOS = 256


@dataclass
class Load:
    """The responses seen by the clients."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)
    memory: list[float] = field(default_factory=list)
    rate: float = 0.0
    """Responses per second while the queue is full."""
    processor_ms: float = 0.0
    """Processor time of server and clients together, per response."""
    others: float = 0.0
    """Share of the machine's processors that other processes took meanwhile."""

    def quantile(self, share: float) -> float:
        return sorted(self.latencies)[min(len(self.latencies) - 1, int(share * len(self.latencies)))]


@contextmanager
def running(command: list[str]) -> Iterator[tuple[int, int]]:
    """Start a server and yield its port and process id, then stop it."""
    # Packages that are installed elsewhere for a measurement stay within reach.
    path = os.pathsep.join([str(ROOT / "src"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    environment = {**os.environ, "PYTHONPATH": path}
    server = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environment
    )
    try:
        yield port_of(server), server.pid
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(90)


def port_of(server: "subprocess.Popen[str]") -> int:
    assert server.stderr is not None
    for line in server.stderr:
        if address := re.search(r"http://127\.0\.0\.1:(\d+) ", line):
            return int(address.group(1))
    raise SystemExit("the server did not start")


async def clients(
    port: int, photos: list[bytes], *, number: int, seconds: float, pid: int, keeps: bool
) -> Load:
    load = Load()
    begin = time.perf_counter()
    end = begin + FILLING_SECONDS + seconds

    async def client(which: int) -> None:
        rng = random.Random(which)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.perf_counter() < end:
            start = time.perf_counter()
            status, _, is_open = await post(reader, writer, rng.choice(photos))
            load.latencies.append(time.perf_counter() - start)
            load.statuses[status] = load.statuses.get(status, 0) + 1
            if not (is_open and keeps):
                writer.close()
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()

    async def watch() -> None:
        while time.perf_counter() < end:
            load.memory.append(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES)
            await asyncio.sleep(min(1.0, seconds / 20))

    async def measure() -> None:
        """Exclude the time in which the queue fills or empties."""
        await asyncio.sleep(FILLING_SECONDS)
        start, count = time.perf_counter(), len(load.latencies)
        spent, busy = processor_seconds(pid) + time.process_time(), busy_seconds()
        await asyncio.sleep(seconds)
        answers = max(1, len(load.latencies) - count)
        took = time.perf_counter() - start
        spent = processor_seconds(pid) + time.process_time() - spent
        load.rate, load.processor_ms = answers / took, spent / answers * 1000
        load.others = (busy_seconds() - busy - spent) / took / (os.cpu_count() or 1)

    await asyncio.gather(watch(), measure(), *(client(which) for which in range(number)))
    load.seconds = time.perf_counter() - begin
    return load


async def post(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes
) -> tuple[int, bytes, bool]:
    """Send a picture over an open connection; return status, response, and whether it stays open."""
    return await exchange(reader, writer, predict_request(body))


def predict_request(body: bytes) -> bytes:
    head = f"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
) -> tuple[int, bytes, bool]:
    writer.write(request)
    answer = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = re.search(rb"content-length: (\d+)", answer)
    data = await reader.readexactly(int(length.group(1))) if length else await reader.read()
    return int(answer.split()[1]), data, b"connection: close" not in answer and length is not None


def processor_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def busy_seconds() -> float:
    """CPU time of all processes on this machine so far."""
    user, nice, system, _, _, *interrupts = map(
        int, Path("/proc/stat").read_text().split("\n")[0].split()[1:]
    )
    return (user + nice + system + sum(interrupts[:2])) / os.sysconf("SC_CLK_TCK")


async def is_ready(port: int) -> dict[str, object]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    status: dict[str, object] = json.loads(answer.partition(b"\r\n\r\n")[2])
    return status


async def send_mutated(port: int, whole: list[bytes], mutated: object, *, count: int) -> dict[int, int]:
    statuses: dict[int, int] = {}

    async def client(first: int, step: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for seed in range(first, count, step):
            status, _, is_open = await post(reader, writer, mutated(whole[seed % len(whole)], seed))  # type: ignore[operator]
            statuses[status] = statuses.get(status, 0) + 1
            if not is_open:
                writer.close()
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()

    await asyncio.gather(*(client(first, 16) for first in range(16)))
    return statuses


def read_photos(folder: str) -> list[bytes]:
    paths = sorted(Path(folder).rglob("*.jpg"))
    step = max(1, len(paths) // KEPT_PHOTOS)
    return [path.read_bytes() for path in paths[::step][:KEPT_PHOTOS]]


def shrunk(photo: bytes, side: int) -> bytes:
    """Resize a photo's shorter side and encode it as JPEG again."""
    with Image.open(io.BytesIO(photo)) as image:
        factor = side / min(image.size)
        size = (max(side, round(image.width * factor)), max(side, round(image.height * factor)))
        buffer = io.BytesIO()
        image.convert("RGB").resize(size, Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=90)
        return buffer.getvalue()
