"""The Open Inference Protocol over a real socket: by hand as the specification says, and by Triton's own client."""

import base64
import json
import shutil
import struct
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from servers import CLASSES, SIZE, jpeg, saved_vit, serving, until

import vitrine
from vitrine.checkpoints.adapters import write_adapter
from vitrine.models.lora import adapters_of, add_adapters
from vitrine.serving.admission import Limits, RefusedError
from vitrine.serving.open_inference import parse_request
from vitrine.serving.open_models import open_models
from vitrine.serving.predictor import Predictor

HEADER = "Inference-Header-Content-Length"
# Other batches add in another order; the same as in test_serve.py.
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return saved_vit(folder / "first"), saved_vit(folder / "second", seed=1, rule="squash")


@pytest.fixture(scope="module")
def server(folders):
    with serving([f"a={folders[0]}", f"b={folders[1]}"], limits=Limits(batch=8)) as running:
        yield running


@pytest.fixture(scope="module")
def predictor(folders):
    return Predictor.open(folders[1])


def call(server, path, body=None, **headers):
    """Return the status, the headers and the body of the answer."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(server.address + path, data=body, headers=names)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


def asked(*, data=None, datatype="BYTES", shape=(1,), name="image", size=None, outputs=None, **more):
    given = {"name": name, "datatype": datatype, "shape": list(shape)}
    if data is not None:
        given["data"] = data
    if size is not None:
        given["parameters"] = {"binary_data_size": size}
    request = {"inputs": [given], **more}
    return json.dumps(request if outputs is None else {**request, "outputs": outputs}).encode()


def values(answer, name):
    [output] = [one for one in answer["outputs"] if one["name"] == name]
    return np.asarray(output["data"]).reshape(output["shape"])


def test_the_server_and_each_of_its_models_describe_themselves(server):
    assert "binary_tensor_data" in json.loads(call(server, "/v2")[2])["extensions"]
    assert [call(server, f"/v2/health/{what}")[0] for what in ("live", "ready")] == [200, 200]
    for name in ("a", "b"):
        assert call(server, f"/v2/models/{name}/ready")[0] == 200
        described = json.loads(call(server, f"/v2/models/{name}/versions/1")[2])
        assert described["name"] == name
        assert {"name": "pixels", "datatype": "FP32", "shape": [-1, 3, SIZE, SIZE]} in described["inputs"]
        assert {"name": "logits", "datatype": "FP32", "shape": [-1, len(CLASSES)]} in described["outputs"]
    status, _, body = call(server, "/v2/models/c")
    assert status == 404 and "the models are 'a', 'b'" in json.loads(body)["error"]


def test_images_in_json_in_binary_and_raw_get_the_same_logits_as_in_python(server, predictor):
    pictures = [jpeg(1), jpeg(2, 70, 50)]
    expected = predictor.logits(pictures).rows.numpy()
    texts = [base64.b64encode(data).decode() for data in pictures]
    status, _, body = call(server, "/v2/models/b/infer", asked(data=texts, shape=(2,), id="mine"))
    answer = json.loads(body)
    assert status == 200 and answer["id"] == "mine" and answer["model_name"] == "b"
    np.testing.assert_allclose(values(answer, "logits"), expected, rtol=0, atol=TOLERANCE)
    assert list(values(answer, "label")) == [CLASSES[number] for number in expected.argmax(axis=1)]
    np.testing.assert_allclose(values(answer, "probabilities").sum(axis=1), 1, atol=1e-6)

    raw = b"".join(struct.pack("<I", len(data)) + data for data in pictures)
    head = asked(
        shape=(2, 1), size=len(raw), outputs=[{"name": "logits", "parameters": {"binary_data": True}}]
    )
    _, headers, body = call(server, "/v2/models/b/infer", head + raw, **{HEADER: str(len(head))})
    size = int(headers[HEADER])
    logits = np.frombuffer(body[size:], dtype="<f4").reshape(expected.shape)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=TOLERANCE)
    assert json.loads(body[:size])["outputs"][0]["parameters"]["binary_data_size"] == logits.nbytes

    _, _, body = call(server, "/v2/models/b/infer", pictures[0], **{HEADER: "0"})
    np.testing.assert_allclose(values(json.loads(body), "logits"), expected[:1], rtol=0, atol=TOLERANCE)


def test_pixels_that_the_client_prepared_are_taken_as_they_are(server, predictor):
    picture = jpeg(3)
    pixels = predictor.preprocess(picture)[None].numpy()
    request = asked(
        name="pixels", datatype="FP32", shape=pixels.shape, data=pixels.ravel().tolist(),
        outputs=[{"name": "embedding"}, {"name": "logits"}],
    )  # fmt: skip
    answer = json.loads(call(server, "/v2/models/b/infer", request)[2])
    np.testing.assert_allclose(
        values(answer, "embedding"), predictor.embed([picture]).rows, rtol=0, atol=TOLERANCE
    )
    np.testing.assert_allclose(
        values(answer, "logits"), predictor.logits([picture]).rows, rtol=0, atol=TOLERANCE
    )


@pytest.mark.parametrize(
    ("body", "length", "says"),
    [
        (b"[", None, "not JSON"),
        (b"[" * 100_000, None, "not JSON"),
        (b"{}", None, "exactly one input"),
        (b"{}", "99", "at most the 2 bytes"),
        (asked(name="photo", data=["aGk="]), None, "no input is called 'photo'"),
        (asked(data=["%%%"]), None, "not base64"),
        (asked(data=["aGk="], shape=(7,)), None, "shape is [7]"),
        (asked(data=["aGk="], datatype="FP32"), None, "datatype BYTES"),
        (asked(data=["aGk="], outputs=[{"name": "boxes"}]), None, "no output is called 'boxes'"),
        (asked(name="pixels", datatype="FP32", shape=(1, 2), data=[1, "x"]), None, "not a list of numbers"),
        (asked(name="pixels", datatype="FP32", shape=(1, 1), data=[float("nan")]), None, "NaN or infinity"),
        (asked(size=3) + b"ab", str(len(asked(size=3))), "2 bytes follow"),
        (
            asked(size=8) + struct.pack("<I", 900) + b"abcd",
            str(len(asked(size=8))),
            "900 bytes, more than follow",
        ),
    ],
)
def test_a_request_that_the_protocol_does_not_allow_is_refused_in_a_sentence(body, length, says):
    with pytest.raises(RefusedError) as caught:
        parse_request(body, length)
    assert caught.value.status == 400 and says in caught.value.sentence


def test_what_a_model_cannot_take_is_refused(server):
    nine = asked(data=[base64.b64encode(jpeg()).decode()] * 9, shape=(9,))
    assert "at most 8 images" in json.loads(call(server, "/v2/models/a/infer", nine)[2])["error"]
    wide = asked(name="pixels", datatype="FP32", shape=(1, 3, 2, 2), data=[0.0] * 12)
    assert "(batch, 3, 32, 32)" in json.loads(call(server, "/v2/models/a/infer", wide)[2])["error"]
    status, _, body = call(server, "/v2/models/a/infer", asked(data=["aGVsbG8="]))
    assert status == 415 and "not a picture" in json.loads(body)["error"]


def test_new_weights_are_served_without_losing_a_request(tmp_path):
    folder, newer, picture = saved_vit(tmp_path / "model"), saved_vit(tmp_path / "newer", seed=9), jpeg(4)
    before, after = (Predictor.open(one).logits([picture]).rows[0] for one in (folder, newer))
    with serving([f"live={folder}"]) as server, ThreadPoolExecutor(4) as pool:
        has_ended = threading.Event()

        def ask_on(_):
            answers = []
            while not has_ended.is_set():
                answers.append(call(server, "/v2/models/live/infer", picture, **{HEADER: "0"}))
            return answers

        asking = [pool.submit(ask_on, number) for number in range(4)]
        try:
            shutil.copytree(newer, folder, dirs_exist_ok=True)
            status, _, body = call(server, "/v2/repository/models/live/load", b"")
        finally:
            has_ended.set()
        answers = [answer for future in asking for answer in future.result()]
        last = call(server, "/v2/models/live/infer", picture, **{HEADER: "0"})
    assert status == 200, body
    assert len(answers) > 4 and {answer[0] for answer in answers} == {200}
    logits = torch.tensor(values(json.loads(last[2]), "logits")[0])
    torch.testing.assert_close(logits, after.double(), rtol=0, atol=TOLERANCE)
    for _, _, body in answers:  # each from one of both, never from a mixture
        logits = torch.tensor(values(json.loads(body), "logits")[0], dtype=torch.float32)
        assert min((logits - before).abs().max(), (logits - after).abs().max()) < TOLERANCE


def test_adapters_are_served_over_one_backbone_and_reloaded_alone(tmp_path):
    base, picture = saved_vit(tmp_path / "base"), jpeg(4)
    for name, seed in (("cats", 1), ("dogs", 2)):
        adapter(tmp_path / name, base=base, seed=seed)
    sources = [f"base={base}", f"cats={tmp_path / 'cats'}", f"dogs={tmp_path / 'dogs'}"]
    with serving(sources) as server:
        for name in ("cats", "dogs", "base"):
            body = call(server, f"/v2/models/{name}/infer", picture, **{HEADER: "0"})[2]
            merged = Predictor.open(tmp_path / name).logits([picture]).rows
            np.testing.assert_allclose(values(json.loads(body), "logits"), merged, rtol=0, atol=TOLERANCE)
        models = server.service.models.values()
        kernels = {id(one.predictor.model.patch_projection.weight) for one in models}
        assert len(kernels) == 1
        adapter(tmp_path / "cats", base=base, seed=3)
        assert call(server, "/v2/repository/models/cats/load", b"")[0] == 200
        body = call(server, "/v2/models/cats/infer", picture, **{HEADER: "0"})[2]
        merged = Predictor.open(tmp_path / "cats").logits([picture]).rows
        np.testing.assert_allclose(values(json.loads(body), "logits"), merged, rtol=0, atol=TOLERANCE)


def adapter(folder, *, base, seed):
    """Save an adapter of rank 2 whose answers differ from its base's."""
    loaded = vitrine.load(base)
    add_adapters(loaded.model, rank=2)
    torch.manual_seed(seed)
    for layer in adapters_of(loaded.model).values():
        torch.nn.init.normal_(layer.lora_b)
    write_adapter(loaded.model, folder, base=str(base), record=loaded.record)


def test_damaged_new_weights_leave_the_earlier_ones_in_service(tmp_path):
    folder = saved_vit(tmp_path / "model")
    with serving([f"live={folder}"]) as server:
        (folder / "model.safetensors").write_bytes(b"damaged")
        status, _, body = call(server, "/v2/repository/models/live/load", b"")
        assert status == 422 and "earlier weights are still served" in json.loads(body)["error"]
        assert call(server, "/v2/models/live/infer", jpeg(), **{HEADER: "0"})[0] == 200


def test_names_come_from_the_user_and_are_used_once(folders):
    from vitrine.errors import ConfigError

    opened = open_models([*map(str, folders), str(folders[0])], device="cpu", max_batch=1, threads=1)
    assert opened.names == ("first", "second", "first (2)")
    with pytest.raises(ConfigError, match="two models are called x"):
        open_models([f"x={folders[0]}", f"x={folders[1]}"], device="cpu", max_batch=1, threads=1)


def test_behind_a_proxys_path_and_with_several_keys(folders):
    with serving([folders[0]], api_key="old, new", root_path="/vitrine") as server:
        for path in ("/vitrine/", "/", "/vitrine/page/main.js", "/vitrine/v2/health/ready"):
            assert call(server, path)[0] == 200
        assert call(server, "/vitrine/models")[0] == 401
        assert {call(server, "/vitrine/models", X_API_Key=key)[0] for key in ("old", "new")} == {200}
        assert call(server, "/models", X_API_Key="")[0] == 401
        described = json.loads(call(server, "/openapi.json", X_API_Key="new")[2])
        assert described["servers"] == [{"url": "/vitrine"}]


def test_every_request_has_an_id_that_is_logged_and_cannot_forge_a_line(server, caplog):
    caplog.set_level("INFO", logger="vitrine.requests")
    given = call(server, "/health", X_Request_ID="from-the-proxy.1")[1]["X-Request-ID"]
    made = call(server, "/health", X_Request_ID='bad"} id')[1]["X-Request-ID"]
    assert given == "from-the-proxy.1" and len(made) == 32
    until(lambda: len(caplog.records) >= 2)  # a request is logged after its response
    lines = [json.loads(record.message) for record in caplog.records if record.name == "vitrine.requests"]
    assert [line["id"] for line in lines] == [given, made]
    assert lines[0]["path"] == "/health" and lines[0]["status"] == 200


def test_tritons_own_client_gets_the_same_logits(server, predictor):
    client_library = pytest.importorskip("tritonclient.http", reason="Triton's client is not installed")
    client = client_library.InferenceServerClient(server.address.removeprefix("http://"))
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("b")
    pictures = [jpeg(5), jpeg(6)]
    given = client_library.InferInput("image", [2], "BYTES")
    for is_binary in (True, False):
        if not is_binary:
            given = client_library.InferInput("pixels", [2, 3, SIZE, SIZE], "FP32")
            given.set_data_from_numpy(
                np.stack([predictor.preprocess(data).numpy() for data in pictures]), binary_data=False
            )
        else:
            given.set_data_from_numpy(np.array(pictures, dtype=object))
        wanted = [client_library.InferRequestedOutput(name, is_binary) for name in ("logits", "label")]
        result = client.infer("b", [given], outputs=wanted)
        expected = predictor.logits(pictures).rows.numpy()
        np.testing.assert_allclose(result.as_numpy("logits"), expected, rtol=0, atol=TOLERANCE)
        assert len(result.as_numpy("label")) == 2
