"""The exported page in a real browser, from a static host: the same numbers as Python, offline, on a phone."""

import numpy as np
import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from browsers import SOFTWARE_WEBGPU, needs_browser, open_browser, until
from odd_photos import odd_photos
from offline_page import compute, require_onnxruntime_web, static_host
from servers import CLASSES, jpeg, saved_vit

import vitrine
from vitrine.evaluation.familiarity import fit_familiarity
from vitrine.evaluation.trust import Trust, write_trust
from vitrine.serving.explanation import explain
from vitrine.serving.predictor import Predictor

pytestmark = needs_browser
# What Python decodes at a fraction of its size, and 16 bits of grey, which browsers cut to 8 before resizing.
NEARLY_EQUAL = {
    "jpeg, large", "jpeg, large, on its side", "jpeg, large, 4:4:4", "jpeg, grey, large", "png, 16 bits, grey",
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model that knows how familiar a picture is; of a size at which photos of 300 pixels are decoded whole."""
    folder = saved_vit(tmp_path_factory.mktemp("model") / "mine", size=160)
    torch.manual_seed(0)
    features = Predictor.open(folder).embed([jpeg(seed) for seed in range(40)]).rows
    write_trust(folder, Trust(familiarity=fit_familiarity(features, torch.arange(40) % len(CLASSES))))
    return folder


@pytest.fixture(scope="module")
def host(model, tmp_path_factory):
    require_onnxruntime_web()
    folder = tmp_path_factory.mktemp("web")
    vitrine.export(model, to="web", out=folder, speed=False)
    with static_host(folder) as address:
        yield address


@pytest.fixture(scope="module")
def browser():
    with open_browser() as opened:
        yield opened


@pytest.fixture
def open_page(browser, host):
    """Open the page; whatever goes wrong in it, or leaves for elsewhere, fails the test."""
    contexts, wrong = [], []

    def opened(**options):
        context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
        contexts.append(context)
        context.on("request", lambda request: note(request.url))
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
        page.goto(host)
        page.wait_for_selector("body[data-ready]")
        return page

    def note(url):
        if not url.startswith((host, "blob:", "data:")):
            wrong.append(url)

    yield opened
    for context in contexts:
        context.close()
    assert not wrong


def give(page, data, *, button="#hero [data-choose]"):
    with page.expect_file_chooser() as chooser:
        page.locator(button).first.click()
    chooser.value.set_files([{"name": "a.jpg", "mimeType": "image/jpeg", "buffer": data}])


def shown(page):
    page.wait_for_selector(".bars .value")
    page.wait_for_selector(".atlas-box:not([hidden])")
    return page.locator(".bars .label").all_inner_texts()


# One of each way to decode; `make slow` takes all fifty.
FEW = (
    "jpeg, orientation 6", "jpeg, large", "jpeg, progressive", "jpeg, CMYK", "png, 16 bits, colour", "png, alpha",
    "webp, foreign profile", "3 x 900",
)  # fmt: skip


@pytest.mark.parametrize("count", [len(FEW), pytest.param(50, marks=pytest.mark.slow)])
def test_pixels_and_logits_of_fifty_odd_photos_are_those_of_python(open_page, model, count):
    predictor, page = Predictor.open(model), open_page()
    photos = {name: data for name, data in odd_photos().items() if count == 50 or name in FEW}
    assert len(photos) == count
    apart = {}
    for name, data in photos.items():
        pixels = predictor.pixels(data)
        answer = compute(page, data)
        assert "error" not in answer, (name, answer)
        ours = pixels.permute(1, 2, 0).flatten().numpy().astype(int)
        apart[name] = np.abs(ours - np.array(answer["pixels"])).max()
        # From the browser's own pixels, so that the engine alone is measured; fp16 weights are off by up to 5e-4.
        theirs = torch.tensor(answer["pixels"], dtype=torch.uint8).view(*pixels.shape[1:], 3).permute(2, 0, 1)
        logits = predictor.batch(theirs[None], wanted="logits")[0].numpy()
        np.testing.assert_allclose(answer["logits"], logits, rtol=0, atol=5e-3 * np.abs(logits).max())
    assert {name: far for name, far in apart.items() if far and name not in NEARLY_EQUAL} == {}
    assert max(apart.values()) <= 2  # levels of 255


def test_attention_and_familiarity_are_those_of_the_server(open_page, model):
    predictor, page = Predictor.open(model), open_page()
    for data in (jpeg(3), odd_photos()["3 x 900"]):
        answer = compute(page, data)
        pixels = predictor.pixels(data)
        expected = explain(predictor, pixels, layers=(0, 1), with_matrix=False)
        for name in ("grid", "num_layers", "num_heads", "seen_from"):
            assert answer["explained"][name] == expected[name]
        # fp16 weights change attention in the fourth digit.
        np.testing.assert_allclose(answer["explained"]["rollout"], expected["rollout"], atol=1e-3)
        np.testing.assert_allclose(answer["explained"]["distance"], expected["distance"], atol=0.05)
        for ours, theirs in zip(expected["layers"], answer["explained"]["layers"], strict=True):
            np.testing.assert_allclose(theirs["heads"], ours["heads"], atol=1e-3)
        [judged] = predictor.predict([data])
        assert answer["none_of_these"] == judged.none_of_these
        assert answer["familiarity"] == pytest.approx(judged.familiarity, abs=0.051)  # two of 40 images


def test_the_page_answers_marks_strangers_and_works_without_a_network(open_page, model):
    page = open_page()
    data = jpeg(5)
    give(page, data)
    labels = shown(page)
    [prediction] = Predictor.open(model).predict([data])
    assert labels == [answer.label for answer in prediction.answers]
    assert page.locator(".mark").is_visible() == prediction.none_of_these
    page.evaluate("navigator.serviceWorker.ready")
    until(page, "navigator.serviceWorker.controller !== null")
    page.context.set_offline(True)
    page.reload()
    page.wait_for_selector("body[data-ready]")
    assert page.evaluate("crossOriginIsolated")  # so WebAssembly may use threads
    stranger = odd_photos()["png, two levels"]
    give(page, stranger)
    assert shown(page) == [answer.label for answer in Predictor.open(model).predict([stranger])[0].answers]
    page.get_by_role("tab", name="Model").click()
    page.wait_for_selector("#model-cards canvas")


def test_on_a_phone_in_the_dark_with_a_camera_everything_fits_and_is_accessible(open_page):
    page = open_page(viewport={"width": 390, "height": 844}, color_scheme="dark", has_touch=True)
    page.locator("#hero [data-camera]").click()
    until(page, "document.querySelector('#video').videoWidth > 0")
    page.click("#shoot")
    shown(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert Axe().run(page).response["violations"] == []


def test_what_a_browser_cannot_read_is_said_in_a_sentence(open_page):
    page = open_page()
    give(page, b"II*\0 is no picture")
    page.wait_for_selector("#notice:not([hidden])")
    assert "cannot read the picture" in page.inner_text("#notice")


def test_webgpu_computes_what_python_does(model, host):
    data, predictor = jpeg(5), Predictor.open(model)
    with open_browser(*SOFTWARE_WEBGPU) as browser:
        page = browser.new_page()
        page.goto(host)
        answer = compute(page, data)
        if page.evaluate("window.opened.result?.engine") != "WebGPU":
            pytest.skip("this browser has no WebGPU in software")
    assert "error" not in answer, answer
    logits = predictor.batch(predictor.pixels(data)[None], wanted="logits")[0].numpy()
    np.testing.assert_allclose(answer["logits"], logits, rtol=0, atol=5e-3 * np.abs(logits).max())
    assert answer["explained"]["grid"]
