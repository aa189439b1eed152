"""Whatever is sent, no answer is a 5xx and no worker dies: the whole OpenAPI document, and mutated pictures."""

import http.client
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from journeys.web import ask
from pictures import photo
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from servers import encoded, jpeg, saved_vit, serving

from vitrine.serving.admission import Limits

NUM_MUTATED = 400
KINDS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    model = saved_vit(tmp_path_factory.mktemp("hostile") / "small")
    with serving([model], limits=Limits(upload_bytes=100_000, pixels=1_000_000), workers=2) as running:
        yield running


def test_no_question_that_the_document_allows_or_forbids_gets_a_5xx_or_an_undocumented_answer(server):
    schema = schemathesis.openapi.from_url(f"{server.address}/openapi.json")
    checks = [
        not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance,
    ]  # fmt: skip
    asked = set()
    for operation in schema.get_all_operations():
        strategy = operation.ok().as_strategy()

        @settings(max_examples=12, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(case=strategy)
        def check(case):
            asked.add((case.method.upper(), case.path))
            case.call_and_validate(checks=checks)

        check()
    assert {path for _, path in asked} >= {"/predict", "/embed", "/explain", "/models", "/metrics", "/ready"}


def mutated(data: bytes, seed: int) -> bytes:
    """Damage a picture the way that storms, disks and people do."""
    rng = random.Random(seed)
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 3, 10, 40))):
        if not changed:
            break
        place = rng.randrange(min(len(changed), rng.choice((30, 200, len(changed)))))
        how = rng.randrange(6)
        if how == 0:
            changed[place] = rng.randrange(256)
        elif how == 1:
            changed[place] ^= 1 << rng.randrange(8)
        elif how == 2:
            del changed[place : place + rng.randrange(1, 60)]
        elif how == 3:
            changed[place:place] = rng.randbytes(rng.randrange(1, 60))
        elif how == 4:
            changed[place : place + 4] = rng.choice((b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff"))
        else:
            del changed[len(changed) - rng.randrange(len(changed)) :]
    return bytes(changed)


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@pytest.mark.filterwarnings("ignore::RuntimeWarning:PIL")
def test_mutated_pictures_get_an_answer_or_a_refusal_and_no_worker_dies(server):
    whole = [encoded(photo(number, 40, 50), kind) for number, kind in enumerate(KINDS)]
    uploads = [mutated(whole[seed % len(whole)], seed) for seed in range(NUM_MUTATED)]

    def send(some):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        replies = []
        for data in some:
            connection.request("POST", "/predict", body=data)
            answer = connection.getresponse()
            replies.append((answer.status, answer.read()))
            if answer.getheader("connection") == "close":
                connection.close()
        return replies

    with ThreadPoolExecutor(4) as pool:
        parts = pool.map(send, [uploads[start::4] for start in range(4)])
        replies = [reply for part in parts for reply in part]
    assert len(replies) == NUM_MUTATED
    odd = [reply for reply in replies if reply[0] not in (200, 413, 415, 422)]
    assert not odd, odd[:5]
    assert {200, 415, 422} <= {status for status, _ in replies}  # the damage is of all kinds
    assert all(worker.is_alive() for worker in server.service.batcher.workers)
    assert ask(server.port, "/predict", jpeg()).status == 200
