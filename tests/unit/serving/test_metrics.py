"""The names that users scrape, and a registry per server."""

import subprocess
import sys

import pytest

from vitrine.serving.metrics import CONTENT_TYPE, Metrics


@pytest.fixture
def metrics():
    return Metrics({"vitrine_waiting": ("Pictures in the queue.", lambda: 3)})


def test_the_scraped_names_are_those_of_the_first_release(metrics):
    metrics.count_request(path="/predict", status=200, seconds=0.02)
    metrics.count_batch(task="logits", size=4, seconds=0.02)
    lines = metrics.text().decode().splitlines()
    assert 'vitrine_requests_total{path="/predict",status="200"} 1.0' in lines
    assert 'vitrine_request_seconds_bucket{le="0.025",path="/predict"} 1.0' in lines
    assert 'vitrine_pictures_total{task="logits"} 4.0' in lines
    assert 'vitrine_batch_size_bucket{le="4.0",task="logits"} 1.0' in lines
    assert 'vitrine_batch_seconds_count{task="logits"} 1.0' in lines
    assert "vitrine_waiting 3.0" in lines
    assert CONTENT_TYPE.startswith("text/plain; version=0.0.4")


def test_two_servers_in_one_process_count_by_themselves(metrics):
    other = Metrics({"vitrine_waiting": ("Pictures in the queue.", lambda: 0)})
    metrics.count_batch(task="logits", size=2, seconds=0.1)
    assert (metrics.value("vitrine_pictures_total", task="logits"), metrics.num_pictures) == (2, 2)
    assert (other.value("vitrine_pictures_total", task="logits"), other.num_pictures) == (0, 0)


@pytest.mark.parametrize(
    ("module", "package"),
    [("prometheus_client", "prometheus-client"), ("uvicorn", "uvicorn"), ("fastapi", "fastapi")],
)
def test_serving_without_its_extra_names_the_command_that_installs_it(module, package):
    code = (
        f"import sys; sys.modules['{module}'] = None\n"
        "import vitrine\n"
        "try:\n    vitrine.serve('box', port=0)\n"
        "except ImportError as error:\n    print(type(error).__name__, error.package, error.extra)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert found.stdout.split() == ["MissingExtraError", package, "serve"], found.stderr
