"""Connections that are slow, silent, too many or gone: the server stays responsive and its log stays empty."""

import http.client
import logging
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from journeys.commandline import SOURCE
from journeys.web import ask
from servers import jpeg, raw, saved_vit, serving, serving_app, until

import vitrine
from vitrine.errors import ConfigError
from vitrine.serving.admission import Limits
from vitrine.serving.predictor import Predictor
from vitrine.serving.served_model import ServedModel

HEAD = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n"
LARGE = b"x" * 2**24  # more than the buffers of a loopback connection hold


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return saved_vit(tmp_path_factory.mktemp("served") / "small")


@pytest.fixture(scope="module")
def server(model):
    with serving([model]) as running:
        yield running


class Slow(ServedModel):
    """A model that waits until it may compute, and counts its pictures."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.go, self.begun, self.count = threading.Event(), threading.Event(), 0
        self.go.set()

    def compute(self, items, *, wanted):
        self.begun.set()
        assert self.go.wait(20)
        self.count += len(items)
        return super().compute(items, wanted=wanted)


@pytest.fixture
def slow(model):
    return Slow("slow", Predictor.open(model, device="cpu"), max_batch=1)


@pytest.fixture
def connected():
    """Connect to a port; all connections are closed at the end."""
    with ExitStack() as stack:

        def connect(port, sent=b"", *, receive_buffer=None):
            made = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            if receive_buffer:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            made.settimeout(20)
            made.connect(("127.0.0.1", port))
            made.sendall(sent)
            return made

        yield connect


async def large_answers(scope, receive, send):
    """Answer every request with the same large body."""
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": LARGE})


def is_closed(connection):
    """Return whether the other side has closed a connection on which nothing was sent."""
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True
    finally:
        connection.settimeout(20)


def count(running, status):
    return running.service.metrics.value("vitrine_requests_total", path="/predict", status=str(status))


def test_a_kept_alive_connection_answers_without_the_40_ms_of_a_delayed_acknowledgement(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)

    def seconds():
        begin = time.perf_counter()
        connection.request("GET", "/health")
        assert connection.getresponse().read()
        return time.perf_counter() - begin

    # Other work on the machine makes single rounds slow; without TCP_NODELAY every one of them takes 40 ms.
    medians = [statistics.median(seconds() for _ in range(20)) for _ in range(5)]
    connection.close()
    assert min(medians) < 0.01


def test_more_idle_connections_than_the_limit_close_the_least_recently_active_ones(model, connected):
    with serving([model], limits=Limits(connections=8)) as running:
        idle = [connected(running.port) for _ in range(20)]
        until(lambda: len(running.server.connections) == 8)
        assert ask(running.port, "/health").status == 200
        until(lambda: is_closed(idle[0]) and is_closed(idle[11]))
        assert not is_closed(idle[-1])


def test_a_connection_whose_request_is_being_computed_is_never_closed_for_others(slow, connected):
    with serving([slow], limits=Limits(connections=4)) as running, ThreadPoolExecutor(1) as pool:
        slow.go.clear()
        slow.begun.clear()
        first = pool.submit(ask, running.port, "/predict", jpeg())
        assert slow.begun.wait(20)
        for _ in range(12):
            connected(running.port)
        assert ask(running.port, "/health").status == 200
        slow.go.set()
        assert first.result(20).status == 200


def test_descriptors_that_run_out_neither_stop_the_server_nor_fill_its_log(model, connected, tmp_path):
    command = [sys.executable, "-m", "vitrine.cli", "serve", str(model), "--port", "0", "--device", "cpu"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    with (tmp_path / "log").open("w+") as log:
        limited = ["sh", "-c", 'ulimit -n 128; exec "$@"', "sh", *command]
        process = subprocess.Popen(limited, stdout=log, stderr=log, env=environment)
        try:
            until(lambda: "Serving at" in (tmp_path / "log").read_text(), seconds=100)
            port = int(re.search(r"127\.0\.0\.1:(\d+)", (tmp_path / "log").read_text()).group(1))
            idle = [connected(port) for _ in range(300)]
            assert ask(port, "/health", seconds=10).status == 200
            assert ask(port, "/predict", jpeg(), seconds=20).status == 200
            assert len(idle) == 300
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()
            process.wait()
        said = (tmp_path / "log").read_text()
        assert "Traceback" not in said and len(said) < 2000


def test_a_client_that_goes_away_is_no_error_and_its_queued_picture_is_not_computed(slow, connected, caplog):
    with serving([slow]) as running, ThreadPoolExecutor(1) as pool:
        slow.go.clear()
        slow.begun.clear()
        before = slow.count
        first = pool.submit(ask, running.port, "/predict", jpeg(1))
        assert slow.begun.wait(20)
        data = jpeg(2)
        leaving = connected(running.port, HEAD.replace(b"5000", str(len(data)).encode()) + data)
        until(lambda: running.service.batcher.num_waiting == 1)
        leaving.close()
        until(lambda: count(running, 499) == 1)
        slow.go.set()
        assert first.result(20).status == 200
        assert ask(running.port, "/predict", jpeg(3)).status == 200
        assert slow.count - before == 2
        assert count(running, 500) == 0
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_client_that_goes_away_in_mid_upload_is_no_error_and_leaves_nothing_behind(
    server, connected, caplog
):
    before = count(server, 499)
    connected(server.port, HEAD + b"abc").close()
    until(lambda: count(server, 499) == before + 1)
    assert (server.service.admission.held_bytes, count(server, 500)) == (0, 0)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_slow_uploads_take_no_place_in_the_queue(model, connected):
    with serving([model], limits=Limits(waiting=2)) as running:
        for _ in range(8):
            connected(running.port, HEAD + b"abc")
        until(lambda: running.service.admission.held_bytes == 8 * 3)
        assert ask(running.port, "/predict", jpeg(), seconds=10).status == 200


def test_an_upload_below_the_least_rate_is_refused_long_before_its_deadline(model, connected):
    limits = Limits(read_seconds=20, stall_seconds=0.3, bytes_per_second=100_000)
    with serving([model], limits=limits) as running:
        begin = time.monotonic()
        slow_upload = connected(running.port, HEAD + b"x" * 1000)
        assert slow_upload.recv(2000).startswith(b"HTTP/1.1 408 ")
        assert time.monotonic() - begin < 10


def test_a_client_that_never_reads_its_answer_is_cut_off(connected):
    limits = Limits(stall_seconds=0.3, answer_seconds=60)
    request = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with serving_app(large_answers, limits=limits) as (port, server):
        connected(port, request, receive_buffer=4096)
        until(lambda: len(server.connections) == 1)
        until(lambda: len(server.connections) == 0, seconds=10)
        reader = connected(port, request)
        received = 0
        while received < len(LARGE):  # slower than the server writes, and fast enough
            received += len(reader.recv(2**20))
            time.sleep(0.02)


def test_answers_that_nobody_reads_are_bounded_all_together(connected):
    limits = Limits(stall_seconds=60, unsent_bytes=2 * len(LARGE))
    with serving_app(large_answers, limits=limits) as (port, server):
        for _ in range(5):
            connected(port, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", receive_buffer=4096)
        until(lambda: server.server_state.total_requests == 5)
        until(lambda: len(server.connections) <= 2)
        unsent = sum(each.transport.get_write_buffer_size() for each in server.server_state.connections)
        assert 0 < unsent <= limits.unsent_bytes


def test_a_stop_waits_seconds_and_not_minutes_for_clients_that_neither_send_nor_read(connected, caplog):
    limits = Limits(stop_seconds=0.3, stall_seconds=60, read_seconds=60)
    with serving_app(large_answers, limits=limits) as (port, server):
        request = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
        connected(port, request, receive_buffer=4096)
        connected(port, 200 * request, receive_buffer=4096)
        connected(port)
        connected(port, b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nabc")
        until(lambda: server.server_state.total_requests >= 2)
        begin = time.monotonic()
    assert time.monotonic() - begin < 8
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("path", ["/health", "/ready", "/models", "/metrics", "/openapi.json", "/", "/docs"])
def test_head_has_the_headers_of_get_and_no_body(server, path):
    head, get = ask(server.port, path, method="HEAD"), ask(server.port, path)
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-type"] == get.headers["content-type"]
    if path not in ("/metrics", "/ready"):  # these change from one request to the next
        assert int(head.headers["content-length"]) == len(get.body)


def test_a_length_together_with_chunks_is_refused(server):
    sent = (
        b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"3\r\nabc\r\n0\r\n\r\n"
    )
    answer = raw(server.port, sent, seconds=5)
    assert answer.startswith(b"HTTP/1.1 400 ") and b"connection: close" in answer.lower()


def test_no_redirect_follows_the_host_that_a_client_names(model):
    with serving([model], hosts=None) as running:
        for path in ("/docs/", "/models/", "/health/"):
            reply = ask(running.port, path, headers={"Host": "evil.example"})
            assert (reply.status, reply.headers.get("location")) in ((404, None), (308, "../docs"))


@pytest.mark.parametrize("key", ["", "  "])
def test_an_empty_key_on_an_open_address_is_refused(tmp_path, monkeypatch, key):
    monkeypatch.setenv("VITRINE_API_KEY", key)
    with pytest.raises(ConfigError) as refused:
        vitrine.serve([str(tmp_path / "none")], host="0.0.0.0", port=0)
    assert refused.value.option == "api_key"
    monkeypatch.delenv("VITRINE_API_KEY")
    with pytest.raises(ConfigError):
        vitrine.serve([str(tmp_path / "none")], host="0.0.0.0", port=0, api_key=key)
