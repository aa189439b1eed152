"""Traces of requests: in memory, and as a collector on this machine receives them."""

import http.server
import json
import signal
import sys
import threading
import urllib.request

import pytest
from journeys.commandline import assert_refused, inside
from journeys.test_production import command
from servers import jpeg, saved_vit, serving, until

from vitrine.errors import ConfigError, MissingExtraError

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return saved_vit(tmp_path_factory.mktemp("served") / "small")


def predict(port, path="/predict", data=None, **headers):
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    asked = urllib.request.Request(f"http://127.0.0.1:{port}{path}", jpeg() if data is None else data, names)
    asked.add_header("Content-Type", "image/jpeg")
    return urllib.request.urlopen(asked, timeout=20)


def test_a_request_is_a_span_below_the_clients_with_children_for_decode_queue_and_model(folder, caplog):
    pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry's SDK is not installed")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from vitrine.serving.opentelemetry import Traces

    caplog.set_level("INFO", logger="vitrine.requests")
    kept, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    with serving([folder], traces=Traces(provider)) as server:
        predict(server.port, traceparent=PARENT, X_Request_ID="mine")
        with pytest.raises(urllib.error.HTTPError):
            predict(server.port, data=b"no picture")
        for path in ("/health", "/page/style.css"):
            urllib.request.urlopen(server.address + path, timeout=10)
        until(lambda: sum(one.kind.name == "SERVER" for one in kept.get_finished_spans()) == 2)
    spans = kept.get_finished_spans()
    first, refused = (one for one in spans if one.kind.name == "SERVER")
    assert first.name == "POST /predict" and format(first.context.trace_id, "032x") == PARENT[3:35]
    assert format(first.parent.span_id, "016x") == PARENT[36:52]
    assert first.attributes["http.response.status_code"] == 200
    assert first.attributes["vitrine.request_id"] == "mine"
    children = {one.name: one for one in spans if one.parent and one.parent.span_id == first.context.span_id}
    assert list(children) == ["decode", "queue", "model"]
    assert children["model"].attributes == {"vitrine.task": "scores", "vitrine.batch_size": 1}
    times = [time for name in children for time in (children[name].start_time, children[name].end_time)]
    assert sorted(times) == times  # one after another
    assert refused.parent is None and refused.attributes["http.response.status_code"] == 415
    assert len(spans) == 5  # neither the probe nor the page's file
    logged = [json.loads(record.message) for record in caplog.records if "trace" in record.message]
    assert logged[0]["trace"] == PARENT[3:35] and logged[0]["id"] == "mine"


class Collector(http.server.BaseHTTPRequestHandler):
    """Keeps the bodies that are posted to it."""

    bodies: list[tuple[str, bytes]] = []  # noqa: RUF012 (of the one test that uses it)

    def do_POST(self):
        length = int(self.headers["Content-Length"])
        self.bodies.append((self.path, self.rfile.read(length)))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        """Print nothing."""


@pytest.mark.slow
def test_a_collector_receives_the_traces_of_the_command(folder):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the exporter is not installed")
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector) as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{collector.server_port}"
        with command(folder, "--traces", address) as (process, port):
            predict(port, traceparent=PARENT)
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        collector.shutdown()
    assert {path for path, _ in Collector.bodies} == {"/v1/traces"}
    spans = []
    for _, body in Collector.bodies:
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            names = {one.key: one.value.string_value for one in resource.resource.attributes}
            assert names["service.name"] == "vitrine"
            spans += [span for scope in resource.scope_spans for span in scope.spans]
    assert {span.name for span in spans} == {"POST /predict", "decode", "queue", "model"}
    assert {span.trace_id.hex() for span in spans} == {PARENT[3:35]}


def test_without_the_extra_or_with_a_wrong_address_one_sentence_says_what_to_do(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    words = ("serve", folder, "--port", "0", "--traces", "http://127.0.0.1:4318")
    assert_refused(
        inside(*words), "package opentelemetry", "pip install 'vitrine[otel]'", error=MissingExtraError
    )
    assert_refused(
        inside(*words[:-1], "collector:4318"), "'collector:4318'", error=ConfigError, option="traces"
    )
