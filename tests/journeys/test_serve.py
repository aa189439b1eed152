"""A server behind a real socket, asked as clients ask: right answers, and what every limit says."""

import json
import os
import re
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from journeys.commandline import assert_refused, inside, started
from journeys.golden import assert_transcript
from journeys.web import ask, form
from pictures import photo, save
from servers import CLASSES, encoded, jpeg, raw, saved_vit, serving, small_vit

import vitrine as library
from vitrine.errors import ConfigError
from vitrine.inspection import attention_distance, attention_from, rollout
from vitrine.serving.admission import Limits
from vitrine.serving.explanation import explain
from vitrine.serving.guard import LOOPBACK
from vitrine.serving.predictor import Predictor
from vitrine.serving.served_model import ServedModel

# fp32 sums in another order, a few layers deep.
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return saved_vit(tmp_path_factory.mktemp("served") / "small")


@pytest.fixture(scope="module")
def server(model, tmp_path_factory):
    other = saved_vit(tmp_path_factory.mktemp("other") / "second", seed=1, rule="squash")
    with serving([model, other], limits=Limits(upload_bytes=200_000, pixels=2_000_000)) as running:
        yield running


@pytest.fixture(scope="module")
def predictor(model):
    return Predictor.open(model, device="cpu")


def logits_of(reply):
    assert reply.status == 200, reply.body
    return torch.tensor(reply.json["logits"])


# Answers


def test_predict_equals_vitrine_predict_on_the_same_bytes(server, model, predictor, tmp_path):
    for number, data in enumerate(
        [jpeg(1), jpeg(2, 400, 300), encoded(photo(3), "PNG"), encoded(photo(4), "GIF")]
    ):
        reply = ask(server.port, "/predict?logits=true&top=6", data)
        expected = predictor.logits([data]).rows[0]
        torch.testing.assert_close(logits_of(reply), expected, rtol=0, atol=TOLERANCE)
        path = tmp_path / f"{number}.bin"
        path.write_bytes(data)
        out = tmp_path / f"{number}.json"
        assert inside("predict", model, path, "--out", out, "--top", "6", "--device", "cpu").returncode == 0
        [row] = json.loads(out.read_text())
        answers = row["answers"]
        assert [each["label"] for each in reply.json["answers"]] == [each["label"] for each in answers]
        for ours, theirs in zip(reply.json["answers"], answers, strict=True):
            assert ours["probability"] == pytest.approx(theirs["probability"], abs=1e-4)


def test_a_form_a_typed_body_and_a_plain_body_are_the_same_picture(server):
    data = jpeg(5)
    body, headers = form(data)
    replies = [
        ask(server.port, "/predict?logits=1", body, headers=headers),
        ask(server.port, "/predict?logits=1", data, headers={"Content-Type": "image/jpeg"}),
        ask(server.port, "/predict?logits=1", data),
    ]
    assert len({tuple(reply.json["logits"]) for reply in replies}) == 1


def test_embed_gives_the_input_of_the_head(server, predictor):
    data = jpeg(6)
    features = torch.tensor(ask(server.port, "/embed", data).json["features"])
    torch.testing.assert_close(features, predictor.embed([data]).rows[0], rtol=0, atol=TOLERANCE)
    logits = predictor.model.head(features)
    torch.testing.assert_close(
        logits, logits_of(ask(server.port, "/predict?logits=1", data)), rtol=0, atol=TOLERANCE
    )


def test_explain_equals_the_functions_of_inspection(server, predictor):
    data = jpeg(7)
    reply = ask(server.port, "/explain?layers=all&matrix=true", data).json
    images = predictor.preprocess(data)[None]
    model = predictor.model
    np.testing.assert_allclose(reply["rollout"], rollout(model, images)[0], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(reply["distance"], attention_distance(model, images), atol=0.01)
    heads = attention_from(model, images)[0]
    assert [each["layer"] for each in reply["layers"]] == [0, 1]
    for layer, expected in zip(reply["layers"], heads, strict=True):
        np.testing.assert_allclose(layer["heads"], expected, rtol=1e-4, atol=1e-6)
        rows = matrix_of(layer["matrix"])
        # A byte has 255 steps up to the largest of its row.
        np.testing.assert_allclose(rows[:, 0].reshape(expected.shape), expected, atol=expected.max() / 500)
    for row, column in [(0, 0), (2, 3)]:
        seen = attention_from(model, images, patch=(row, column))[0]  # (L, H, 4, 4)
        rows = np.stack([matrix_of(layer["matrix"])[:, 1 + 4 * row + column] for layer in reply["layers"]])
        np.testing.assert_allclose(rows.reshape(seen.shape), seen, atol=seen.max() / 500)


def matrix_of(matrix):
    import base64

    steps = np.frombuffer(base64.b64decode(matrix["data"]), dtype=np.uint8).reshape(matrix["shape"])
    return steps / 255 * np.array(matrix["maximum"])[..., None]


def test_explain_gives_the_layers_that_are_asked_for_and_refuses_others(server):
    data = jpeg(8)
    assert [each["layer"] for each in ask(server.port, "/explain", data).json["layers"]] == [1]
    assert [each["layer"] for each in ask(server.port, "/explain?layers=0", data).json["layers"]] == [0]
    reply = ask(server.port, "/explain?layers=0,7", data)
    assert reply.status == 422 and "0 to 1" in reply.error
    assert ask(server.port, "/explain?layers=-1", data).status == 422
    assert ask(server.port, "/explain?layers=9999999999999999", data).status == 422


def test_an_explanation_that_would_be_too_large_is_refused(predictor, monkeypatch):
    from vitrine.serving import explanation
    from vitrine.serving.admission import RefusedError

    monkeypatch.setattr(explanation, "MATRIX_BYTES", 100)
    with pytest.raises(RefusedError, match="fewer layers"):
        explain(predictor, torch.zeros(3, 32, 32, dtype=torch.uint8), layers=[0], with_matrix=True)


def test_sixty_four_clients_at_once_each_get_their_own_answer(server, predictor):
    pictures = [jpeg(100 + number) for number in range(64)]
    expected = predictor.logits(pictures).rows
    with ThreadPoolExecutor(64) as pool:
        replies = list(pool.map(lambda data: ask(server.port, "/predict?logits=1", data), pictures))
    for reply, logits in zip(replies, expected, strict=True):
        torch.testing.assert_close(logits_of(reply), logits, rtol=0, atol=TOLERANCE)
    metrics = server.service.metrics
    alone = metrics.value("vitrine_batch_size_bucket", task="scores", le="1.0")
    number = metrics.value("vitrine_batch_size_count", task="scores")
    assert alone < number, "no two of them were computed together"


def test_two_models_answer_side_by_side_and_a_misspelt_one_is_named(server):
    data = jpeg(9)
    names = [each["name"] for each in ask(server.port, "/models").json["models"]]
    assert names == ["small", "second"]
    first, second = (ask(server.port, f"/predict?model={name}&logits=1", data).json for name in names)
    assert (first["model"], second["model"]) == ("small", "second")
    assert first["logits"] != second["logits"]
    reply = ask(server.port, "/predict?model=smal", data)
    assert reply.status == 422 and "did you mean 'small'" in reply.error


def test_figures_and_models_say_what_is_inside(server):
    described = ask(server.port, "/models").json
    [first, _] = described["models"]
    assert first["classes"] == list(CLASSES)
    assert (first["grid"], first["num_layers"], first["num_heads"], first["width"]) == ([4, 4], 2, 2, 32)
    figures = ask(server.port, "/figures").json
    assert figures["positions"]["shape"] == [16, 4, 4]
    assert figures["filters"]["shape"][1:] == [8, 8, 3]
    assert described["run"] is None
    assert ask(server.port, "/run").status == 404


def test_a_resnet_and_a_model_without_head_say_what_they_do_not_have(tmp_path):
    bit = library.create_model("BiT-R26x1", image_size=32, num_classes=3)
    library.save(bit, tmp_path / "bit")
    library.save(small_vit(num_classes=None), tmp_path / "headless")
    with serving([tmp_path / "bit", tmp_path / "headless"]) as running:
        data = jpeg()
        assert ask(running.port, "/predict?model=bit", data).status == 200
        reply = ask(running.port, "/explain?model=bit", data)
        assert reply.status == 422 and "no attention" in reply.error
        assert ask(running.port, "/figures?model=bit").json["missing"]
        reply = ask(running.port, "/predict?model=headless", data)
        assert reply.status == 422 and "/embed" in reply.error
        assert len(ask(running.port, "/embed?model=headless", data).json["features"]) == 32


# Limits and safety


def bomb():
    from unit.serving.test_uploads import png_bomb

    return png_bomb(30_000, 30_000)


@pytest.mark.parametrize(
    ("data", "headers", "status", "words"),
    [
        (b"x" * 200_001, {}, 413, "limit of 200000 bytes"),
        ("bomb", {}, 413, "too large"),
        ("large", {}, 413, "more than the limit"),
        (b"hello world", {}, 415, "not a picture"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", {"Content-Type": "image/svg+xml"}, 415, "JPEG, PNG"),
        (b"{}", {"Content-Type": "application/json"}, 415, "curl -F"),
        (b"a=b", {"Content-Type": "application/x-www-form-urlencoded"}, 415, "curl -F"),
        (b"", {}, 422, "empty"),
        (b"", {"Content-Type": "image/jpeg"}, 422, "empty"),
        ("cut", {}, 422, "damaged"),
        ("cut png", {}, 422, "damaged"),
        (b"--b--\r\n", {"Content-Type": "multipart/form-data; boundary=b"}, 422, "0 files"),
        (b"x", {"Content-Type": "multipart/form-data"}, 422, "boundary"),
    ],
)  # fmt: skip
def test_what_cannot_be_answered_is_refused_in_one_sentence(server, data, headers, status, words):
    made = {
        "bomb": bomb,
        "large": lambda: encoded(np.zeros((2000, 1001, 3), dtype=np.uint8), "PNG"),
        "cut": lambda: jpeg(1, 200, 200)[:-900],
        "cut png": lambda: encoded(photo(1), "PNG")[:-200],
    }
    body = made[data]() if isinstance(data, str) else data
    for path in ("/predict", "/embed", "/explain"):
        reply = ask(server.port, path, body, headers=headers)
        assert (reply.status, words in reply.error) == (status, True), (path, reply.body)


def test_kinds_that_are_unpacked_whole_may_have_half_the_pixels_of_a_jpeg(server):
    pixels = np.zeros((1200, 1000, 3), dtype=np.uint8)  # the server takes 2 million of a JPEG
    assert ask(server.port, "/predict", encoded(pixels, "JPEG")).status == 200
    for kind in ("PNG", "WEBP", "BMP", "TIFF", "GIF"):
        data = encoded(pixels, kind, **({"compression": "tiff_deflate"} if kind == "TIFF" else {}))
        if len(data) <= 200_000:  # what is larger than that is refused for its bytes
            reply = ask(server.port, "/predict", data)
            assert (reply.status, "1000000 pixels" in reply.error) == (413, True), (kind, reply.body)
    limits = ask(server.port, "/models").json["limits"]
    assert (limits["pixels"], limits["whole_pixels"]) == (2_000_000, 1_000_000)


def test_an_unknown_place_and_a_wrong_method_say_where_to_look(server):
    assert "/docs" in ask(server.port, "/predictt", jpeg()).error
    assert ask(server.port, "/predict").status == 405
    assert "top" in ask(server.port, "/predict?top=0", jpeg()).error


def test_headers_without_end_and_what_is_no_http_get_a_sentence(server):
    complete = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 20_000 + b"\r\n\r\n"
    endless = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 300_000
    address = b"GET /health?" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for sent in (complete, endless, address):
        answer = raw(server.port, sent, seconds=5)
        assert answer.startswith(b"HTTP/1.1 413 "), answer[:200]
        assert b"limit of 16384" in answer
    answer = raw(server.port, b"\x16\x03\x01 what\r\n\r\n", seconds=5)
    assert answer.startswith(b"HTTP/1.1 400 ") and b"not an HTTP request" in answer
    assert ask(server.port, "/health").status == 200


def test_a_body_cut_short_harms_nobody(server):
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50000\r\n\r\n"
    raw(server.port, head + jpeg()[:500], seconds=2, then_close=True)
    end = time.monotonic() + 5
    while server.service.admission.requests and time.monotonic() < end:
        time.sleep(0.01)
    assert server.service.admission.requests == 0
    assert ask(server.port, "/predict", jpeg()).status == 200


def test_a_slow_upload_and_a_silent_connection_are_given_up(model):
    with serving([model], limits=Limits(read_seconds=0.6)) as running:
        head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\nabc"
        begin = time.monotonic()
        answer = raw(running.port, head, seconds=8)
        assert answer.startswith(b"HTTP/1.1 408 ") and b"too slow" in answer
        assert raw(running.port, b"GET /hea", seconds=8) == b""  # closed without a word
        assert time.monotonic() - begin < 6


class Slow(ServedModel):
    """A model that waits until it may answer."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.go, self.begun = threading.Event(), threading.Event()
        self.go.set()

    def compute(self, items, *, wanted):
        self.begun.set()
        assert self.go.wait(20)
        return super().compute(items, wanted=wanted)


@pytest.fixture
def slow(predictor):
    return Slow("slow", predictor, max_batch=1)


def test_large_pictures_are_decoded_one_at_a_time_and_small_ones_pass_them(predictor, monkeypatch):
    from vitrine.serving import pipeline

    monkeypatch.setattr(pipeline, "LARGE_PIXELS", 100 * 100)
    monkeypatch.setattr(pipeline, "available_cores", lambda: 4)
    go, inside_ = threading.Event(), []

    class Waiting(ServedModel):
        def pixels(self, data, *, max_pixels):
            pixels = super().pixels(data, max_pixels=max_pixels)
            if len(data) == len(large):
                inside_.append(threading.current_thread().name)
                assert go.wait(20)
            return pixels

    large = jpeg(1, 101, 101)
    with serving([Waiting("waiting", predictor, max_batch=1)]) as running, ThreadPoolExecutor(4) as pool:
        replies = [pool.submit(ask, running.port, "/predict", large) for _ in range(4)]
        while not inside_:
            time.sleep(0.005)
        assert ask(running.port, "/predict", jpeg(2, 99, 100)).status == 200
        assert len(inside_) == 1
        go.set()
        assert [reply.result(20).status for reply in replies] == [200] * 4


def test_a_full_queue_answers_429_and_says_when_to_come_back(slow):
    with serving([slow], limits=Limits(waiting=2)) as running, ThreadPoolExecutor(2) as pool:
        slow.go.clear()
        inside_ = [pool.submit(ask, running.port, "/predict", jpeg(number)) for number in range(2)]
        while running.service.admission.requests < 2:
            time.sleep(0.005)
        reply = ask(running.port, "/predict", jpeg())
        assert reply.status == 429 and "2 requests are waiting" in reply.error
        assert int(reply.headers["retry-after"]) >= 1
        assert ask(running.port, "/ready").json["waiting"] == 2
        slow.go.set()
        assert [future.result(20).status for future in inside_] == [200, 200]
        assert ask(running.port, "/predict", jpeg()).status == 200


def test_an_answer_that_takes_too_long_is_given_up_with_503(slow):
    with serving([slow], limits=Limits(answer_seconds=0.3)) as running:
        slow.go.clear()
        replies = [ask(running.port, "/predict", jpeg()) for _ in range(2)]
        slow.go.set()
        assert [reply.status for reply in replies] == [503, 503]
        assert "0.3 seconds" in replies[0].error and "retry-after" in replies[0].headers
        assert ask(running.port, "/predict", jpeg()).status == 200


def test_a_stop_finishes_what_is_in_flight_and_lets_nobody_else_in(slow):
    with serving([slow]) as running, ThreadPoolExecutor(1) as pool:
        slow.go.clear()
        slow.begun.clear()
        in_flight = pool.submit(ask, running.port, "/predict", jpeg())
        assert slow.begun.wait(10)
        running.service.admission.close()
        assert ask(running.port, "/ready").status == 503
        refused = ask(running.port, "/predict", jpeg())
        assert refused.status == 503 and "stopping" in refused.error
        running.server.should_exit = True
        time.sleep(0.2)
        assert not in_flight.done()
        slow.go.set()
        assert in_flight.result(20).status == 200


def test_a_failure_in_the_model_is_a_500_and_the_next_request_is_answered(predictor):
    class Broken(ServedModel):
        is_broken = False

        def compute(self, items, *, wanted):
            if self.is_broken:
                raise RuntimeError("secret detail")
            return super().compute(items, wanted=wanted)

    broken = Broken("broken", predictor, max_batch=1)
    with serving([broken]) as running:
        broken.is_broken = True
        reply = ask(running.port, "/predict", jpeg())
        assert reply.status == 500 and "secret" not in reply.error
        broken.is_broken = False
        assert ask(running.port, "/predict", jpeg()).status == 200


def test_with_a_key_nothing_but_the_page_and_the_watchdogs_answers_without_it(model):
    with serving([model], api_key="sesame") as running:
        for path in ("/models", "/figures", "/metrics", "/openapi.json", "/run"):
            reply = ask(running.port, path)
            assert reply.status == 401 and "X-API-Key" in reply.error
        assert ask(running.port, "/predict", jpeg()).status == 401
        assert ask(running.port, "/predict", jpeg(), headers={"X-API-Key": "wrong"}).status == 401
        assert ask(running.port, "/predict", jpeg(), headers={"X-API-Key": "sesam\xe9"}).status == 401
        assert ask(running.port, "/predict", jpeg(), headers={"X-API-Key": "sesame"}).status == 200
        assert ask(running.port, "/models", headers={"Authorization": "Bearer sesame"}).status == 200
        for path in ("/", "/docs", "/page/main.js", "/health", "/ready"):
            assert ask(running.port, path).status == 200


def test_other_sites_get_nothing(server):
    headers = {"Origin": "https://elsewhere.example", "Sec-Fetch-Site": "cross-site"}
    assert ask(server.port, "/predict", jpeg(), headers=headers).status == 403
    preflight = ask(
        server.port,
        "/predict",
        method="OPTIONS",
        headers={**headers, "Access-Control-Request-Method": "POST"},
    )
    for reply in (preflight, ask(server.port, "/models", headers=headers)):
        assert not [name for name in reply.headers if name.startswith("access-control")]
    for host in ("evil.example", "evil.example:8000", "", "127.0.0.1.evil.example"):
        assert ask(server.port, "/models", headers={"Host": host}).status == 421
    for host in ("localhost", "localhost:1234", "127.0.0.1:8000", "[::1]:8000", "[::1]"):
        assert ask(server.port, "/health", headers={"Host": host}).status == 200


def test_behind_a_proxy_its_name_is_answered_too(model):
    hosts = LOOPBACK | {"pictures.example"}
    with serving([model], hosts=hosts) as running:
        for host, status in [("pictures.example", 200), ("Pictures.Example:443", 200), ("evil.example", 421)]:
            assert ask(running.port, "/health", headers={"Host": host}).status == status
    with serving([model], hosts=None) as running:
        assert ask(running.port, "/health", headers={"Host": "anything"}).status == 200


def test_every_answer_forbids_what_the_page_does_not_need(server):
    for path in ("/", "/docs", "/models", "/nothing"):
        headers = ask(server.port, path).headers
        assert "default-src 'self'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert "server" not in headers


opened: list[str] = []
is_listening = False


def _hear(event, arguments):
    if is_listening and event == "open" and isinstance(arguments[0], (str, bytes)):
        opened.append(str(arguments[0]))


def test_no_request_touches_the_disk_and_no_upload_is_kept(server):
    """Python tells of every file that is opened, by whatever thread: there must be none."""
    global is_listening  # noqa: PLW0603
    large = encoded(np.random.default_rng(0).integers(0, 255, (180, 280, 3), dtype=np.uint8), "PNG")
    body, headers = form(large)
    posts = [("/predict", body, headers), ("/embed", large, {}), ("/explain", large, {})]
    places = [
        "/", "/docs", "/page/main.js", "/models", "/figures", "/metrics", "/page/../../../../etc/passwd",
        "/page/%2e%2e%2fapp.py", "/page//etc/passwd",
    ]  # fmt: skip
    everything = [*posts, *((place, None, {}) for place in places)]
    for path, data, given in everything:  # once before, for what is imported late
        ask(server.port, path, data, headers=given)
    sys.addaudithook(_hear)
    is_listening = True
    try:
        statuses = [ask(server.port, path, data, headers=given).status for path, data, given in everything]
    finally:
        is_listening = False
    assert opened == []
    assert statuses == [200] * 9 + [404] * 3
    assert server.service.admission.held_bytes == 0


def test_metrics_count_what_was_answered(server):
    def number(name):
        text = ask(server.port, "/metrics").body.decode()
        line = re.search(rf"^{re.escape(name)} (\S+)$", text, flags=re.MULTILINE)
        return float(line.group(1)) if line else 0.0

    good = 'vitrine_requests_total{path="/predict",status="200"}'
    bad = 'vitrine_requests_total{path="/predict",status="415"}'
    before = number(good), number(bad), number('vitrine_pictures_total{task="scores"}')
    ask(server.port, "/predict", jpeg())
    ask(server.port, "/predict", b"hello")
    ask(server.port, "/any/place/at/all")
    after = number(good), number(bad), number('vitrine_pictures_total{task="scores"}')
    assert [late - early for early, late in zip(before, after, strict=True)] == [1, 1, 1]
    assert number("vitrine_requests_inside") == 0
    assert "/any/place" not in ask(server.port, "/metrics").body.decode()


def test_the_page_is_sent_once_and_then_only_if_it_changed(server):
    first = ask(server.port, "/page/style.css")
    again = ask(server.port, "/page/style.css", headers={"If-None-Match": first.headers["etag"]})
    assert (first.status, again.status, again.body) == (200, 304, b"")


# The command


def test_the_command_serves_until_sigterm_and_ends_well(model, tmp_path):
    (tmp_path / "model").symlink_to(model)
    words = ("serve", "model", "--port", "0")
    process = started(*words, cwd=tmp_path)
    try:
        address, first = None, ""
        for line in process.stderr:
            first += line
            if announced := re.search(r"http://127\.0\.0\.1:(\d+) ", line):
                address = int(announced.group(1))
                break
        assert address, "the command did not say where it serves"
        save(tmp_path / "a.png", photo(1))
        assert ask(address, "/predict", (tmp_path / "a.png").read_bytes()).status == 200
        os.kill(process.pid, signal.SIGTERM)
        out, err = process.communicate(timeout=30)
        assert process.returncode == 0, err
        assert "1 picture computed" in out
        assert_transcript(words, first + err + out, tmp_path)
    finally:
        process.kill()


def test_mistakes_on_the_command_line_get_one_sentence(model, server, tmp_path):
    assert_refused(inside("serve", model, "--port", str(server.port)), "cannot listen on", "--port")
    assert_refused(inside("serve", f"a={model}", f"a={model}", "--port", "0"), "two models are called a")
    assert_refused(inside("serve", tmp_path / "nothing", "--port", "0"), "no such file or folder")
    assert_refused(inside("serve", model, "--port", "0", "--waiting", "0"), "--waiting: must be above 0")
    assert_refused(
        inside("serve", model, "--port", "0", "--workers", "0"),
        "at least 1",
        error=ConfigError,
        option="workers",
    )
    assert_refused(inside("serve", model, "--port", "99999"), "0 and 65535", error=ConfigError, option="port")
    assert_refused(
        inside("serve", model, "--port", "0", "--classifier", tmp_path / "no.json"), "no such file"
    )
    (tmp_path / "broken.onnx").write_bytes(b"not a graph")
    assert_refused(
        inside("serve", model, "--port", "0", "--onnx", tmp_path / "broken.onnx"), "not an ONNX file"
    )
