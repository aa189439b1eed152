"""Models of masks and boxes behind a server: what /locate returns, and the page that draws it."""

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from browsers import needs_browser, open_browser, until
from dense import CLASSES, saved_dense
from journeys.web import ask
from PIL import Image
from servers import Running, encoded, jpeg, saved_vit, serving

import vitrine
from vitrine.data.decoding.coco_masks import decode_segmentation


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("models")
    kinds = ("linear", "detector", "instances")
    return {kind: saved_dense(kind, place / kind) for kind in kinds} | {"vit": saved_vit(place / "vit")}


@pytest.fixture(scope="module")
def server(folders: dict[str, Path]) -> Iterator[Running]:
    with serving(list(folders.values())) as running:
        yield running


def locate(server: Running, model: str, data: bytes, query: str = "") -> dict:
    reply = ask(server.port, f"/locate?model={model}{query}", data, headers={"Content-Type": "image/jpeg"})
    assert reply.status == 200, reply.body
    return reply.json


def test_a_mask_is_that_of_predict(server: Running, folders: dict[str, Path], tmp_path: Path) -> None:
    data = jpeg(height=48, width=70)
    (tmp_path / "photo.jpg").write_bytes(data)
    answer = locate(server, "linear", data)
    image = Image.open(io.BytesIO(base64.b64decode(answer["mask"]["png"])))
    vitrine.predict(folders["linear"], tmp_path / "photo.jpg", out=tmp_path / "out", device="cpu", workers=0)
    ours = np.asarray(Image.open(tmp_path / "out" / "masks" / "photo.png"))
    assert (np.asarray(image) == ours).all()
    assert (answer["answers"], answer["picture"], answer["mask"]["size"]) == ("masks", [48, 70], [48, 70])
    shares = {one["label"]: one["share"] for one in answer["mask"]["classes"]}
    assert sum(shares.values()) == pytest.approx(1, abs=1e-5)
    assert shares["green"] == pytest.approx((ours == 1).mean(), abs=1e-5)
    clear = np.asarray(image.convert("RGBA"))[..., 3] == 0
    assert (clear == (ours == 0)).all()


def test_boxes_are_those_of_predict(server: Running, folders: dict[str, Path], tmp_path: Path) -> None:
    data = jpeg(seed=1, height=90, width=64)
    (tmp_path / "photo.jpg").write_bytes(data)
    answer = locate(server, "detector", data, "&least=0.5")
    vitrine.predict(
        folders["detector"], tmp_path / "photo.jpg", out=tmp_path / "out", device="cpu", workers=0
    )
    ours = json.loads((tmp_path / "out" / "detections.json").read_text())
    wanted = [one for one in ours if one["score"] >= 0.5]
    assert len(answer["boxes"]) == len(wanted) > 0
    for one, other in zip(answer["boxes"], wanted, strict=True):
        left, top, right, bottom = one["box"]
        assert [left, top, right - left, bottom - top] == pytest.approx(other["bbox"], abs=0.2)
        assert one["label"] == CLASSES[other["category_id"] - 1]
        assert one["score"] == pytest.approx(other["score"], abs=1e-4)


def test_masks_of_objects_are_those_of_predict(
    server: Running, folders: dict[str, Path], tmp_path: Path
) -> None:
    data = jpeg(seed=2, height=80, width=64)
    (tmp_path / "photo.jpg").write_bytes(data)
    answer = locate(server, "instances", data, "&least=0.05")
    out = tmp_path / "out"
    vitrine.predict(folders["instances"], tmp_path / "photo.jpg", out=out, device="cpu", workers=0)
    ours = [one for one in json.loads((out / "detections.json").read_text()) if one["score"] >= 0.05]
    assert answer["answers"] == "instances"
    assert len(answer["boxes"]) == len(ours) > 1
    for one, other in zip(answer["boxes"], ours, strict=True):
        image = np.asarray(Image.open(io.BytesIO(base64.b64decode(one["mask"]))))
        whole = decode_segmentation(other["segmentation"], (80, 64), where="a result")
        left, top, right, bottom = (int(side) for side in one["box"])
        assert (image == whole[top:bottom, left:right]).all()
        assert image.sum() == whole.sum()
        assert one["score"] == pytest.approx(other["score"], abs=1e-4)


def test_a_large_picture_gets_a_smaller_mask_and_a_long_one_no_memory(server: Running) -> None:
    large = locate(server, "linear", encoded(np.zeros((2400, 1600, 3), dtype=np.uint8), quality=50))
    assert large["picture"] == [2400, 1600]
    assert large["mask"]["size"] == [1773, 1182]
    long = locate(server, "linear", encoded(np.zeros((1, 60_000, 3), dtype=np.uint8), "PNG"))
    assert long["mask"]["size"] == [1, 60_000]


def test_each_route_names_the_other(server: Running) -> None:
    headers = {"Content-Type": "image/jpeg"}
    for path, words in (
        ("/predict?model=linear", "linear answers with masks; /locate returns them"),
        ("/explain?model=detector", "detector answers with boxes"),
        ("/locate?model=vit", "vit answers with classes of whole pictures; /predict returns them"),
    ):
        reply = ask(server.port, path, jpeg(), headers=headers)
        assert reply.status == 422
        assert words in reply.error
    body = json.dumps(
        {"inputs": [{"name": "image", "datatype": "BYTES", "shape": [1], "data": [""]}]}
    ).encode()
    reply = ask(server.port, "/v2/models/linear/infer", body)
    assert reply.status == 400
    assert "use /locate" in reply.error
    kinds = [one["answers"] for one in ask(server.port, "/models").json["models"]]
    assert kinds == ["masks", "boxes", "instances", "classes"]


@needs_browser
@pytest.mark.slow
@pytest.mark.parametrize("model", ["linear", "detector", "instances"])
def test_the_page_draws_what_was_found(server: Running, model: str, tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(jpeg(height=240, width=320))
    with open_browser() as browser:
        page = browser.new_page()
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(f"{server.address}/?model={model}")
        until(page, "document.body.dataset.ready === 'yes'")
        assert page.locator("#tab-teach").is_hidden()
        assert ("objects" in page.locator("#lead").inner_text()) == (model != "linear")
        with page.expect_file_chooser() as chooser:
            page.click("#drop [data-choose]")
        chooser.value.set_files(tmp_path / "photo.jpg")
        until(page, "document.querySelectorAll('.bars li').length > 0")
        assert page.locator("#mode").is_hidden()
        assert page.locator("#score-control").is_visible() == (model != "linear")
        assert page.locator("#strength-control").is_visible() == (model != "detector")
        before = page.evaluate("document.querySelector('canvas.look').toDataURL()")
        control, value = ("#score", "95") if model != "linear" else ("#strength", "0")
        page.evaluate(
            f"() => {{ const one = document.querySelector('{control}'); one.value = {value};"
            " one.dispatchEvent(new Event('input', { bubbles: true })); }"
        )
        assert page.evaluate("document.querySelector('canvas.look').toDataURL()") != before
        assert not problems
