"""The page in a real browser: every way in, everything that it shows, by mouse, by keyboard and on a phone."""

import json
import math
import os
import shutil
import time

import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from browsers import needs_browser, open_browser, until
from journeys.web import ask
from pictures import photo
from servers import CLASSES, encoded, jpeg, saved_vit, serving, small_vit
from variations import costly

import vitrine
from vitrine.evaluation.ridge import BIAS_FEATURE, RidgeClassifiers
from vitrine.serving.fewshot_classifier import with_classifier
from vitrine.serving.live_run import LiveRun
from vitrine.serving.predictor import Predictor

pytestmark = needs_browser


@pytest.fixture(scope="module")
def browser():
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    return saved_vit(folder / "first"), saved_vit(folder / "second", seed=1, rule="squash")


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "a-run"
    folder.mkdir()
    (folder / "run.json").write_text("{}")
    return folder


@pytest.fixture(scope="module")
def server(models, run_folder):
    with serving([models[0]], run=LiveRun(run_folder)) as running:
        yield running


@pytest.fixture
def open_page(browser):
    """Open the page of a server; whatever goes wrong in it, or leaves for elsewhere, fails the test."""
    contexts, wrong = [], []

    def opened(address, *, path="/", **options):
        context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: wrong.append(said.text) if is_bad(said) else None)
        page.on(
            "request",
            lambda request: (
                wrong.append(request.url) if not request.url.startswith((address, "blob:", "data:")) else None
            ),
        )
        page.goto(address + path)
        if path == "/":
            page.wait_for_selector("body[data-ready]")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not wrong


def is_bad(said):
    # The browser itself notes every refused request; the page says the same in a sentence.
    return said.type in ("error", "warning") and "Failed to load resource" not in said.text


def file(data, name="a.jpg"):
    return {"name": name, "mimeType": "image/jpeg", "buffer": data}


def choose(page, button, *data):
    with page.expect_file_chooser() as chooser:
        page.locator(button).first.click()
    chooser.value.set_files([file(each, f"{number}.jpg") for number, each in enumerate(data)])


def shown(page):
    """Wait until a picture has its classes and its attention; return the labels of the bars."""
    page.wait_for_selector(".atlas-box:not([hidden])")
    page.wait_for_selector(".bars .value")
    return page.locator(".bars .label").all_inner_texts()


def expected_labels(server, data):
    return [each["label"] for each in ask(server.port, "/predict", data).json["answers"]]


def picture_hash(page):
    return page.evaluate("document.querySelector('canvas.look').toDataURL()")


HAND_OVER = """([kind, base64]) => {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const transfer = new DataTransfer();
  transfer.items.add(new File([bytes], "a.jpg", { type: "image/jpeg" }));
  const target = document.querySelector("#drop");
  target.dispatchEvent(kind === "paste"
    ? new ClipboardEvent("paste", { clipboardData: transfer, bubbles: true })
    : new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true }));
}"""


def test_a_picture_that_is_chosen_dropped_or_pasted_gets_its_five_best_classes(server, open_page):
    import base64

    page = open_page(server.address)
    for seed, how in enumerate(("choose", "drop", "paste")):
        data = jpeg(seed, 90, 120)
        if how == "choose":
            choose(page, "#hero [data-choose]", data)
        else:
            page.evaluate(HAND_OVER, [how, base64.b64encode(data).decode()])
        expected = expected_labels(server, data)
        until(page, f"document.querySelector('.bars .label')?.textContent === {json.dumps(expected[0])}")
        assert shown(page) == expected
        assert len(expected) == 5
        widths = [float(value.split()[0]) for value in page.locator(".bars .value").all_inner_texts()]
        assert widths == sorted(widths, reverse=True)
        page.click("#clear")


def test_the_camera_gives_a_picture(server, open_page):
    page = open_page(server.address, permissions=["camera"])
    page.click("#hero [data-camera]")
    until(page, "document.querySelector('#video').videoWidth > 0")
    page.click("#shoot")
    assert len(shown(page)) == 5
    assert page.evaluate("document.querySelector('#video').srcObject") is None  # the camera is let go


def test_sliders_and_modes_change_what_lies_over_the_picture(server, open_page):
    page = open_page(server.address)
    choose(page, "#hero [data-choose]", jpeg(1, 90, 120))
    shown(page)
    seen = {picture_hash(page)}
    page.locator("#layer").fill("1")
    assert page.inner_text("#layer-value") == "1 of 2"
    seen.add(picture_hash(page))
    page.locator("#head").focus()
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#head-value") == "1 of 2"
    seen.add(picture_hash(page))
    page.locator("#strength").fill("30")
    seen.add(picture_hash(page))
    for mode in ("rollout", "off"):
        page.locator(f"#mode input[value={mode}] + span").click()
        seen.add(picture_hash(page))
    assert len(seen) == 6
    assert page.locator("#layer-control").is_hidden()


def attended(server, data, *, layer, patch):
    """Where a patch attends to most by the mean of the heads, and how much."""
    from journeys.test_serve import matrix_of

    reply = ask(server.port, "/explain?layers=all&matrix=true", data).json
    rows = matrix_of(reply["layers"][layer]["matrix"])[:, 1 + patch].mean(axis=0)
    best = int(rows.argmax())
    return f"row {best // 4 + 1}, column {best % 4 + 1}"


def test_a_patch_under_the_pointer_or_the_arrow_keys_shows_what_it_attends_to(models, open_page):
    data = jpeg(2, 90, 90)
    with serving([models[1]]) as server:  # the whole picture is seen, cut by an eighth
        page = open_page(server.address)
        choose(page, "#hero [data-choose]", data)
        shown(page)
        box = page.locator("canvas.look").bounding_box()

        def point(row, column):
            inner = 0.875
            across = (1 - inner) / 2 + inner * (column + 0.5) / 4
            down = (1 - inner) / 2 + inner * (row + 0.5) / 4
            page.mouse.move(box["x"] + across * box["width"], box["y"] + down * box["height"])

        before = picture_hash(page)
        for row, column in [(0, 0), (2, 3)]:
            point(row, column)
            text = page.inner_text("#hint")
            assert f"row {row + 1}, column {column + 1} attends most to" in text
            assert attended(server, data, layer=1, patch=4 * row + column) in text
            assert picture_hash(page) != before
        page.mouse.move(box["x"] - 30, box["y"])
        assert picture_hash(page) == before
        page.locator("canvas.look").focus()
        page.keyboard.press("ArrowDown")  # begins in the middle
        assert "row 3, column 3 attends" in page.inner_text("#hint")
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowUp")
        assert "row 2, column 2 attends" in page.inner_text("#hint")
        assert attended(server, data, layer=1, patch=5) in page.inner_text("#hint")
        page.keyboard.press("Escape")
        assert picture_hash(page) == before


def test_a_click_in_the_atlas_chooses_layer_and_head(server, open_page):
    page = open_page(server.address)
    choose(page, "#hero [data-choose]", jpeg(3))
    shown(page)
    box = page.locator(".atlas").bounding_box()
    page.mouse.click(box["x"] + box["width"] * 0.25, box["y"] + box["height"] * 0.75)
    assert (page.inner_text("#layer-value"), page.inner_text("#head-value")) == ("1 of 2", "2 of 2")


def test_what_is_refused_is_said_and_the_page_goes_on(server, open_page):
    page = open_page(server.address)
    choose(page, "#hero [data-choose]", b"this is no picture")
    page.wait_for_selector("#notice:not([hidden])")
    assert "not a picture" in page.inner_text("#notice")
    with page.expect_file_chooser() as chooser:  # a photo whose extension is that of a text
        page.locator("#hero [data-choose]").first.click()
    chooser.value.set_files([{"name": "photo.txt", "mimeType": "text/plain", "buffer": jpeg()}])
    assert len(shown(page)) == 5
    assert page.locator("#notice").is_hidden()


def taught(page, examples):
    page.click("#tab-teach")
    for number, (name, pictures) in enumerate(examples.items()):
        page.locator(".class-card input").nth(number).fill(name)
        with page.expect_file_chooser() as chooser:
            page.locator(".class-card .add").nth(number).click()
        chooser.value.set_files([file(each) for each in pictures])
    until(page, "!document.querySelector('.thumb.wait') && !document.querySelector('#download').disabled")


def ridge_head(features, labels, *, num_classes):
    """The closed form of evaluation/ridge.py as a linear layer on raw features."""
    support = torch.tensor(features, dtype=torch.float64)
    ridge = RidgeClassifiers(support, torch.tensor(labels), num_classes=num_classes, l2=[1024.0])
    raw, norm = ridge.weights[0], ridge.normalise
    weight = (raw[:-1] / norm.std[:, None]).T
    return weight, BIAS_FEATURE * raw[-1] - weight @ norm.mean


@pytest.mark.parametrize("num_examples", [4, 60])
def test_the_page_solves_what_ridge_solves(server, open_page, num_examples):
    """Fewer examples than features and more, in the browser's float64."""
    torch.manual_seed(0)
    features = (torch.randn(num_examples, 32, dtype=torch.float64) * 3 + 1).tolist()
    labels = [number % 3 for number in range(num_examples)]
    page = open_page(server.address)
    head = page.evaluate(
        "async ([rows, labels]) => { const { solve } = await import('/page/ridge.js');"
        "const { weight, bias } = solve(rows, labels, 3); return { weight: weight.map((row) => [...row]), bias }; }",
        [features, labels],
    )
    weight, bias = ridge_head(features, labels, num_classes=3)
    # X Xt has a condition number of about 1e2 beside l2, so 1e-10 of the largest is far above rounding.
    torch.testing.assert_close(torch.tensor(head["weight"], dtype=torch.float64), weight, rtol=0, atol=1e-10)
    torch.testing.assert_close(torch.tensor(head["bias"], dtype=torch.float64), bias, rtol=0, atol=1e-10)


def test_a_few_examples_make_the_papers_classifier_that_can_be_taken_away_and_used(
    server, models, open_page, tmp_path
):
    page = open_page(server.address, accept_downloads=True)
    examples = {"left": [jpeg(seed) for seed in range(3)], "right": [jpeg(seed) for seed in range(10, 15)]}
    taught(page, examples)
    until(page, "document.querySelector('#try-state').textContent.includes('8 examples')")
    tried = jpeg(11)
    choose(page, "#try-drop", tried)
    page.wait_for_selector("#try .bars .label")
    top = page.locator("#try .bars .label").first.inner_text()
    assert top == "right"  # it is like one of the examples, only not the same bytes
    with page.expect_download() as download:
        page.click("#download")
    path = tmp_path / "classifier.json"
    download.value.save_as(path)

    features = [
        ask(server.port, "/embed", data).json["features"] for some in examples.values() for data in some
    ]
    weight, bias = ridge_head(features, [0] * 3 + [1] * 5, num_classes=2)
    values = json.loads(path.read_text())
    # Features that were computed in other batches differ by the rounding of fp32.
    torch.testing.assert_close(torch.tensor(values["weight"]).double(), weight, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(torch.tensor(values["bias"]).double(), bias, rtol=1e-3, atol=1e-6)

    # As a head it says what the page said, after saving and loading too.
    model = with_classifier(vitrine.load(models[0]), path)
    vitrine.save(model.model, tmp_path / "mine", preprocess=model.preprocess, classes=model.classes)
    [prediction] = Predictor.open(tmp_path / "mine", device="cpu").predict([tried])
    assert prediction.answers[0].label == top

    # Opened again in a new page it answers as before.
    page = open_page(server.address)
    page.click("#tab-teach")
    with page.expect_file_chooser() as chooser:
        page.click("#restore")
    chooser.value.set_files(path)
    until(page, "!document.querySelector('#download').disabled")
    choose(page, "#try-drop", tried)
    page.wait_for_selector("#try .bars .label")
    assert page.locator("#try .bars .label").first.inner_text() == top


def test_an_example_that_is_taken_away_is_forgotten(server, open_page):
    page = open_page(server.address)
    taught(page, {"left": [jpeg(1), jpeg(2)], "right": [jpeg(3)]})
    page.locator(".class-card").first.locator(".thumb").first.click()
    until(page, "document.querySelector('#try-state').textContent.includes('2 examples')")
    page.locator(".class-card").last.get_by_role("button", name="Remove", exact=True).last.click()
    until(page, "document.querySelector('#download').disabled")


def test_two_models_stand_side_by_side(models, open_page):
    with serving(models) as server:
        page = open_page(server.address)
        choose(page, "#hero [data-choose]", jpeg(4))
        until(page, "document.querySelectorAll('.atlas-box:not([hidden])').length === 2")
        until(page, "document.querySelectorAll('.bars .label').length === 10")
        sides = page.locator(".side")
        assert sides.locator("h2").all_inner_texts() == ["first", "second"]
        assert (
            sides.nth(0).locator(".value").all_inner_texts()
            != sides.nth(1).locator(".value").all_inner_texts()
        )
        boxes = [page.locator("canvas.look").nth(number).bounding_box() for number in range(2)]
        assert math.isclose(boxes[0]["y"], boxes[1]["y"]) and boxes[0]["x"] < boxes[1]["x"]
        page.click("#tab-model")
        until(page, "document.querySelectorAll('#model-cards .facts').length === 2")


def test_a_resnet_and_a_model_without_head_show_what_they_have(open_page, tmp_path):
    vitrine.save(vitrine.create_model("BiT-R26x1", image_size=32, num_classes=3), tmp_path / "resnet")
    vitrine.save(small_vit(num_classes=None), tmp_path / "headless")
    with serving([tmp_path / "resnet", tmp_path / "headless"]) as server:
        page = open_page(server.address)
        choose(page, "#hero [data-choose]", jpeg(4))
        page.wait_for_selector(".atlas-box:not([hidden])")
        until(page, "document.querySelectorAll('.side')[0].querySelectorAll('.value').length === 3")
        assert page.locator(".atlas-box:visible").count() == 1
        assert "no classification head" in page.locator(".side").nth(1).inner_text()
        page.click("#tab-model")
        until(page, "document.querySelectorAll('#model-cards .facts').length === 2")
        assert "no position embeddings" in page.inner_text("#model-cards")
        assert page.locator("#notice").is_hidden()


def test_the_model_page_draws_filters_positions_and_distances(server, open_page):
    page = open_page(server.address)
    page.click("#tab-model")
    page.wait_for_selector("#model-cards .facts")
    assert "6" in page.inner_text("#model-cards .facts")
    assert "Add a picture under Look" in page.inner_text("#model-cards")
    colours = page.evaluate(
        "[...document.querySelectorAll('#model-cards canvas')].map((canvas) => new Set(new Uint32Array("
        "canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.buffer)).size)"
    )
    assert len(colours) == 2 and min(colours) > 10
    page.click("#tab-look")
    choose(page, "#hero [data-choose]", jpeg(5))
    shown(page)
    page.click("#tab-model")
    page.wait_for_selector("#model-cards svg.chart")
    assert page.locator("#model-cards svg.chart .dot").count() == 2 * 2  # layers x heads
    assert "Mean over 1 picture" in page.inner_text("#model-cards")


def test_a_run_that_still_trains_has_live_curves(server, run_folder, open_page):
    metrics = run_folder / "metrics.jsonl"
    metrics.write_text('{"step": 1, "loss": 2.5, "lr": 0.1}\n{"step": 2, "loss": 2.0, "lr": 0.2}\n')
    page = open_page(server.address)
    page.click("#tab-training")
    page.wait_for_selector("#curves svg.chart")
    assert page.inner_text("#run-name") == "a-run"
    assert "Training, step 2" in page.inner_text("#run-state")
    with metrics.open("a") as out:
        out.write(
            '{"step": 3, "loss": NaN}\n{"step": 4, "loss": 1.25, "lr": 0.3}\n{"step": 4, "val_accuracy": 0.5}\n{"st'
        )
    until(page, "document.querySelector('#run-state').textContent.includes('step 4')")
    assert "training 1.25" in page.inner_text("#curves")
    assert "validation 0.5" in page.inner_text("#curves")


def test_a_run_that_was_stopped_is_not_called_training(server, run_folder, open_page):
    metrics = run_folder / "metrics.jsonl"
    metrics.write_text('{"step": 1, "loss": 2.5, "memory_gib": 0.6}\n')
    long_ago = time.time() - 3 * 3600 - 60
    os.utime(metrics, (long_ago, long_ago))
    page = open_page(server.address)
    page.click("#tab-training")
    page.wait_for_selector("#curves svg.chart")
    state = page.inner_text("#run-state")
    assert state.startswith("Not finished, step 1;") and state.endswith(" 3 hours")
    assert page.locator("#run-state .live").count() == 0
    assert "GiB 0.6" in page.inner_text("#curves")


def test_a_run_served_before_its_first_weights_joins_the_page_when_they_come(models, open_page, tmp_path):
    folder = tmp_path / "early"
    folder.mkdir()
    (folder / "run.json").write_text("{}")
    (folder / "metrics.jsonl").write_text('{"step": 1, "loss": 2.5}\n')
    with serving([folder]) as server:
        page = open_page(server.address)
        page.wait_for_selector("#curves svg.chart")
        page.click("#tab-look")
        choose(page, "#hero [data-choose]", jpeg(1))
        assert "no weights yet" in page.inner_text("#notice")
        shutil.copytree(models[0], folder / "model")
        until(page, "document.querySelector('#about').textContent.endsWith(': early')")
        assert page.locator("#notice").is_hidden()
        choose(page, "#hero [data-choose]", jpeg(1))
        assert shown(page) == expected_labels(server, jpeg(1))
        page.click("#tab-teach")
        assert page.locator(".class-card").count() == 2


def test_a_run_that_joins_another_model_is_shown_beside_it_and_forgets_nothing(models, open_page, tmp_path):
    folder = tmp_path / "early"
    folder.mkdir()
    (folder / "run.json").write_text("{}")
    with serving([models[0], folder]) as server:
        page = open_page(server.address)
        page.click("#tab-teach")
        page.locator(".class-card input").first.fill("mine")
        page.click("#tab-look")
        choose(page, "#hero [data-choose]", jpeg(4))
        shown(page)
        shutil.copytree(models[1], folder / "model")
        until(page, "document.querySelectorAll('.atlas-box:not([hidden])').length === 2")
        until(page, "document.querySelectorAll('.bars .label').length === 10")
        page.locator("#layer").fill("1")
        assert page.inner_text("#layer-value") == "1 of 2"
        page.click("#tab-teach")
        assert page.locator(".class-card input").first.input_value() == "mine"
        assert page.locator(".class-card").count() == 2


@pytest.mark.parametrize(
    ("width", "scheme"),
    costly(
        [(390, "light"), (1280, "dark"), (390, "dark"), (1280, "light")],
        quick=[(390, "light"), (1280, "dark")],
    ),
)
def test_every_view_fits_and_every_control_has_a_name(server, open_page, width, scheme):
    page = open_page(server.address, viewport={"width": width, "height": 800}, color_scheme=scheme)
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    darkness = sum(int(part) for part in background.removeprefix("rgb(").removesuffix(")").split(",")[:3])
    assert (darkness < 150) == (scheme == "dark")
    choose(page, "#hero [data-choose]", jpeg(6, 200, 90))
    shown(page)
    for tab in ("look", "teach", "model", "training"):
        page.click(f"#tab-{tab}")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), tab
    nameless = page.evaluate(
        "[...document.querySelectorAll('button, a, input:not([hidden]), canvas.look')].filter((each) => !("
        "each.textContent.trim() || each.getAttribute('aria-label') || each.labels?.length))"
        ".map((each) => each.outerHTML)"
    )
    assert nameless == []
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != background


def test_on_a_phone_the_answer_comes_right_after_the_picture(server, open_page):
    page = open_page(server.address, viewport={"width": 390, "height": 800})
    choose(page, "#hero [data-choose]", jpeg(6, 200, 90))
    shown(page)
    parts = (".glass", ".bars", "#controls", ".atlas-box")
    places = [page.locator(part).first.bounding_box()["y"] for part in parts]
    assert places == sorted(places)


def test_the_whole_page_works_by_keyboard(server, open_page):
    page = open_page(server.address)
    # Playwright begins to listen for choosers when it is first asked to, and a key is faster than that.
    page.on("filechooser", lambda chooser: None)
    page.locator("#tab-look").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#teach").is_visible()
    page.keyboard.press("ArrowLeft")
    page.locator("#hero [data-choose]").focus()
    with page.expect_file_chooser() as chooser:
        page.keyboard.press("Enter")
    chooser.value.set_files([file(jpeg(7))])
    shown(page)
    reached = set()
    page.locator("#tab-look").focus()
    for _ in range(14):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.className"))
    assert {"look", "layer", "head", "strength", "clear"} <= reached


def test_a_key_is_asked_for_once(models, open_page):
    with serving([models[0]], api_key="sesame") as server:
        page = open_page(server.address, path="/docs")  # any page: the first question is refused
        page.wait_for_selector("#ask-key[open]")
        page.fill("#key", "sesame")
        page.keyboard.press("Enter")
        page.wait_for_selector(".route")
        page.goto(server.address)
        page.wait_for_selector("body[data-ready]")
        choose(page, "#hero [data-choose]", jpeg())
        assert len(shown(page)) == 5


def test_the_docs_list_every_route_and_try_one(server, open_page):
    page = open_page(server.address, path="/docs")
    page.wait_for_selector(".route")
    listed = page.locator(".route summary strong").all_inner_texts()
    assert set(listed) == set(ask(server.port, "/openapi.json").json["paths"])
    route = page.locator(".route").filter(has_text="/predict").first
    route.locator("input[type=file]").set_input_files(file(encoded(photo(1))))
    route.locator("button", has_text="Send").click()
    until(
        page, "[...document.querySelectorAll('pre')].some((each) => each.textContent.includes('probability'))"
    )
    assert any(name in route.locator("pre").inner_text() for name in CLASSES)


# Accessibility


def violations(page):
    """Run axe on the page as it stands; return the rules that it breaks, with the elements."""
    return [
        (rule["id"], [node["html"][:200] for node in rule["nodes"]])
        for rule in Axe().run(page).response["violations"]
    ]


@pytest.mark.parametrize("scheme", costly(["light", "dark"], quick=["dark"]))
def test_axe_finds_no_fault_in_any_view(server, open_page, scheme):
    page = open_page(server.address, color_scheme=scheme)
    assert violations(page) == []
    choose(page, "#hero [data-choose]", jpeg(6))
    shown(page)
    for tab in ("look", "teach", "model", "training"):
        page.click(f"#tab-{tab}")
        page.wait_for_timeout(600)  # bars and panels fade in; a colour in between has another contrast
        assert violations(page) == [], tab
    taught(page, {"left": [jpeg(1)], "right": [jpeg(3)]})
    page.wait_for_timeout(600)
    assert violations(page) == []


def test_axe_finds_no_fault_in_the_docs(server, open_page):
    page = open_page(server.address, path="/docs")
    page.wait_for_selector(".route")
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    assert violations(page) == []


def test_there_is_one_heading_of_the_first_rank_before_and_after_an_answer(server, open_page):
    page = open_page(server.address)
    assert page.locator("h1:visible").count() == 1
    choose(page, "#hero [data-choose]", jpeg(6))
    shown(page)
    assert page.get_by_role("heading", level=1).count() == 1


def test_a_head_is_chosen_by_keyboard(server, open_page):
    page = open_page(server.address)
    choose(page, "#hero [data-choose]", jpeg(6))
    shown(page)
    page.locator("canvas.atlas").focus()
    for key, layer, head in [
        ("ArrowLeft", "1 of 2", "mean"),
        ("ArrowDown", "1 of 2", "1 of 2"),
        ("ArrowRight", "2 of 2", "1 of 2"),
        ("ArrowRight", "2 of 2", "1 of 2"),
        ("ArrowDown", "2 of 2", "2 of 2"),
        ("ArrowUp", "2 of 2", "1 of 2"),
    ]:
        page.keyboard.press(key)
        assert (page.inner_text("#layer-value"), page.inner_text("#head-value")) == (layer, head)
    assert "Layer 2, head 1" in page.locator("canvas.atlas").get_attribute("aria-label")


def test_no_two_classes_have_the_same_name(server, open_page):
    page = open_page(server.address)
    page.click("#tab-teach")
    page.click("#add-class")
    page.locator(".class-card").nth(1).get_by_role("button", name="Remove", exact=True).click()
    page.click("#add-class")
    names = page.locator(".class-card header input")
    placeholders = [names.nth(number).get_attribute("placeholder") for number in range(3)]
    assert len(set(placeholders)) == 3
    for number in range(2):
        names.nth(number).fill("cat")
        with page.expect_file_chooser() as chooser:
            page.locator(".class-card").nth(number).locator(".add").click()
        chooser.value.set_files([file(jpeg(number))])
    until(page, "!document.querySelector('#download').disabled")
    choose(page, "#try-drop", jpeg(1))
    page.wait_for_selector("#try .bars .label")
    assert sorted(page.locator("#try .bars .label").all_inner_texts()) == ["cat", "cat (2)"]


def test_nothing_of_the_last_picture_is_left_after_a_file_that_is_none(server, open_page):
    page = open_page(server.address)
    choose(page, "#hero [data-choose]", jpeg(6))
    shown(page)
    choose(page, "#case [data-choose]", b"hello")
    page.wait_for_selector("#notice:not([hidden])")
    assert "not a picture" in page.inner_text("#notice")
    assert page.inner_text("#hint") == "" and page.locator(".bars .label:visible").count() == 0
    choose(page, "#hero [data-choose]", jpeg(6))
    shown(page)
    assert page.locator("#notice").is_hidden()
    taught(page, {"left": [jpeg(1)], "right": [jpeg(3)]})
    choose(page, "#try-drop", jpeg(1))
    page.wait_for_selector("#try .bars .label")
    choose(page, "#try-drop", b"hello")
    page.wait_for_selector("#notice:not([hidden])")
    assert page.inner_text("#try-result") == ""
