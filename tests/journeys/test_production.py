"""The server as operators run it: its own process under load, signals, foreign clients, a real proxy in front."""

import asyncio
import http.client
import json
import re
import shutil
import signal
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections import Counter
from contextlib import contextmanager

import numpy as np
import pytest
from journeys.commandline import started
from servers import jpeg, saved_vit, serving, until

from vitrine.serving.predictor import Predictor

# Other batches add in another order; the same as in test_serve.py.
TOLERANCE = 1e-4
NGINX = """
daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log; worker_processes 1;
events {{ worker_connections 256; }}
http {{
  access_log off; client_max_body_size 20m;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port};
    location /kept/ {{ proxy_pass http://127.0.0.1:{kept}; }}
    location /removed/ {{ proxy_pass http://127.0.0.1:{removed}/; proxy_set_header X-Request-ID $request_id; }}
  }}
}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return saved_vit(tmp_path_factory.mktemp("served") / "small")


@contextmanager
def command(*words):
    """Run `vitrine serve` in a process of its own; give the process and its port."""
    process = started("serve", *words, "--port", "0")
    try:
        address = next(
            one for line in process.stderr if (one := re.search(r"http://127\.0\.0\.1:(\d+) ", line))
        )
        yield process, int(address[1])
    finally:
        process.kill()
        process.communicate()


class Clients:
    """Threads that post one picture after another over kept connections and count what they get."""

    def __init__(self, port, *, number=8):
        self.port, self.statuses, self.lost, self.refused = port, Counter(), [], []
        self.is_over = threading.Event()
        self.threads = [threading.Thread(target=self._ask, args=(which,)) for which in range(number)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.is_over.set()
        for thread in self.threads:
            thread.join(30)

    def _ask(self, which):
        picture = jpeg(which)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        while not self.is_over.is_set():
            is_new = connection.sock is None
            try:
                if is_new:
                    connection.connect()
            except OSError:
                return  # the server no longer listens
            try:
                connection.request("POST", "/predict", picture, {"Content-Type": "image/jpeg"})
                answer = connection.getresponse()
                body = answer.read()
            except Exception as error:
                # A new connection may not have been accepted yet when the server stopped listening.
                (self.refused if is_new else self.lost).append(repr(error))
                connection.close()
                continue
            assert answer.status != 200 or len(json.loads(body)["answers"]) == 5
            self.statuses[answer.status] += 1


@pytest.mark.slow
def test_sigterm_under_load_answers_every_request_that_was_accepted(folder, tmp_path):
    log = tmp_path / "requests.log"
    with command(folder, "--log", log) as (process, port), Clients(port) as clients:
        until(lambda: clients.statuses[200] > 100)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert set(clients.statuses) == {200} and clients.lost == []
    assert len(clients.refused) <= len(clients.threads)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(lines) == clients.statuses.total() == len({line["id"] for line in lines})


@pytest.mark.slow
def test_weights_are_reloaded_again_and_again_under_load_without_a_failed_request(folder, tmp_path):
    live, newer = tmp_path / "live", saved_vit(tmp_path / "newer", seed=7)
    shutil.copytree(folder, live)
    with command(f"live={live}") as (_, port), Clients(port) as clients:
        until(lambda: clients.statuses[200] > 50)
        for source in (newer, folder) * 3:
            shutil.copytree(source, live, dirs_exist_ok=True)
            before = clients.statuses[200]
            load = urllib.request.Request(
                f"http://127.0.0.1:{port}/v2/repository/models/live/load", method="POST"
            )
            assert urllib.request.urlopen(load, timeout=30).status == 200
            until(lambda before=before: clients.statuses[200] > before + 20)
    assert set(clients.statuses) == {200} and clients.lost == clients.refused == []


@contextmanager
def nginx(folder, **ports):
    """Run nginx in front of servers for the block; give its port."""
    program = shutil.which("nginx")
    if program is None:
        pytest.skip("nginx is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = folder / "nginx.conf"
    config.write_text(NGINX.format(folder=folder, port=port, **ports))
    process = subprocess.Popen([program, "-p", folder, "-e", folder / "error.log", "-c", config])
    try:
        until(lambda: process.poll() is not None or _listens(port))
        assert process.poll() is None, (folder / "error.log").read_text()
        yield port
    finally:
        process.terminate()
        process.wait(10)


def _listens(port):
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def test_nginx_in_front_with_and_without_taking_the_path_away(folder, tmp_path, caplog):
    caplog.set_level("INFO", logger="vitrine.requests")
    with (
        serving([folder], root_path="/kept", api_key="secret") as kept,
        serving([folder], root_path="/removed", api_key="secret") as removed,
        nginx(tmp_path, kept=kept.port, removed=removed.port) as port,
    ):
        for path in ("kept", "removed"):
            address = f"http://127.0.0.1:{port}/{path}"
            page = urllib.request.urlopen(f"{address}/", timeout=10).read().decode()
            files = re.findall(r'(?:href|src)="([^":#]+\.(?:css|js|svg))"', page)
            assert files
            for file in files:  # relative, so that they lie below the path
                assert urllib.request.urlopen(f"{address}/{file}", timeout=10).status == 200
            assert urllib.request.urlopen(f"{address}/v2/health/ready", timeout=10).status == 200
            asked = urllib.request.Request(
                f"{address}/predict", jpeg(), {"Content-Type": "image/jpeg", "X-API-Key": "secret"}
            )
            answer = urllib.request.urlopen(asked, timeout=10)
            assert len(json.load(answer)["answers"]) == 5
            identifier = answer.headers["X-Request-ID"]
            until(lambda one=identifier: any(one in record.message for record in caplog.records))
            asked.remove_header("X-api-key")
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(asked, timeout=10)
        assert re.fullmatch("[0-9a-f]{32}", identifier)  # nginx's own $request_id


def test_kserves_own_client_gets_the_same_logits(folder):
    kserve = pytest.importorskip("kserve", reason="KServe's client is not installed")
    picture = jpeg(3)
    predictor = Predictor.open(folder)
    expected = predictor.logits([picture]).rows.numpy()
    given = kserve.InferInput("pixels", [1, 3, *predictor.preprocess.size], "FP32")
    given.set_data_from_numpy(predictor.preprocess(picture)[None].numpy(), binary_data=True)
    photo = kserve.InferInput("image", [1], "BYTES")
    photo.set_data_from_numpy(np.array([picture], dtype=object), binary_data=True)

    async def ask(address):
        client = kserve.InferenceRESTClient(kserve.RESTConfig(protocol="v2", retries=1))
        assert await client.is_server_live(address) and await client.is_server_ready(address)
        assert await client.is_model_ready(address, "m")
        requests = [kserve.InferRequest("m", [one], request_id="mine") for one in (given, photo)]
        return [await client.infer(address, one, model_name="m") for one in requests]

    with serving([f"m={folder}"]) as server:
        answers = asyncio.run(ask(server.address))
    for answer in answers:
        [logits] = [output for output in answer.outputs if output.name == "logits"]
        assert answer.id == "mine"
        np.testing.assert_allclose(logits.as_numpy(), expected, rtol=0, atol=TOLERANCE)
