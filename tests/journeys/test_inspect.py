"""From a model and pictures on disk to figures, arrays and a page: `vitrine inspect` on tiny files."""

import re

import numpy as np
import pytest
import torch
from pictures import photo, save
from PIL import Image

import vitrine
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.errors import ConfigError
from vitrine.models import create_model

from .commandline import assert_refused, inside

SMALL = {"patch_size": 8, "width": 16, "depth": 3, "num_heads": 2, "mlp_width": 24}


def saved(folder, name="ViT-B/16", *, size=32, classes=("cat", "dog"), **options):
    torch.manual_seed(0)
    num_classes = None if classes is None else len(classes)
    shape = {} if name.startswith("BiT") else SMALL
    model = create_model(name, image_size=size, num_classes=num_classes, **(shape | options))
    with torch.no_grad():  # a fresh head is zero and would have no gradient
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    grey = (0.5,) * model.config.channels
    preprocess = Preprocess(size=(size, size), mean=grey, std=grey)
    vitrine.save(model, folder, preprocess=preprocess, classes=classes)
    return folder


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("weights") / "model", num_registers=2)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    root = tmp_path_factory.mktemp("photos")
    for number in range(4):
        save(root / f"{number}.png", photo(number))
    return root


@pytest.fixture(scope="module")
def inspected(weights, photos, tmp_path_factory):
    """What one run said, and its folder."""
    out = tmp_path_factory.mktemp("inspected") / "out"
    options = ("--show", "2", "--patch", "1,2", "--class", "dog")
    return inside("inspect", weights, photos, "--out", out, *options), out


def test_figures_arrays_and_a_page_are_written_and_said(inspected):
    done, out = inspected
    assert done.returncode == 0, done.stderr
    assert "Plan:" in done.stderr and "4 images, 2 with figures" in done.stderr
    for words in ("Attention distance over 4 images", f"Wrote {out / 'inspect.html'}", "Next: open"):
        assert words in done.stdout
    names = ["filters", "positions", "attention_distance", "rollout", "layer_similarity"]
    names += [f"{kind}_{number:02d}" for kind in ("tokens", "heads") for number in (1, 2)]
    for name in names:
        with Image.open(out / f"{name}.png") as drawn:
            assert min(drawn.size) > 200 and len(set(drawn.convert("L").tobytes())) > 10, name
        assert (out / f"{name}.svg").read_text().startswith("<?xml")
    assert not [path for path in out.iterdir() if path.name.startswith(".")]
    with np.load(out / "arrays.npz") as arrays:
        assert arrays["attention_distance"].shape == (3, 2)
        assert arrays["rollout"].shape == (2, 4, 4)
        assert arrays["head_attention"].shape == (2, 3, 2, 4, 4)
        assert arrays["class_attention"].shape == (2, 4, 4)
        assert arrays["register_norms"].shape == (2, 2)
        assert [name.split("/")[-1] for name in arrays["image_names"].tolist()] == ["0.png", "3.png"]


def test_the_page_holds_everything_and_its_drawings_follow_light_and_dark(inspected):
    page = (inspected[1] / "inspect.html").read_text()
    assert page.count("<svg") == 9
    assert page.count('<figure class="wide">') == 3  # strips: a phone scrolls them, and shrinks the rest
    assert "prefers-color-scheme: dark" in page
    assert "currentColor" in page and "#1d1f23;" not in page.split("</style>", 2)[-1]
    for address in re.findall(r'(?:src|href)="([^"]*)"', page):
        assert address.startswith(("#", "data:")), address
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    targets = re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', page)
    assert {a or b for a, b in targets} <= set(ids)


def test_the_arrays_are_those_of_the_functions(weights, photos, inspected):
    from vitrine.inspection import attention_distance, class_attention, rollout

    loaded = vitrine.load(weights)
    images = torch.stack([loaded.preprocess(path.read_bytes()) for path in sorted(photos.iterdir())])
    shown = images[[0, 3]]
    with np.load(inspected[1] / "arrays.npz") as arrays:
        np.testing.assert_allclose(
            arrays["attention_distance"], attention_distance(loaded.model, images), rtol=1e-5
        )
        np.testing.assert_allclose(arrays["rollout"], rollout(loaded.model, shown), rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(
            arrays["class_attention"], class_attention(loaded.model, shown, target=1), rtol=1e-4, atol=1e-7
        )


def test_a_corrupt_image_among_many_and_a_tiny_one_are_named_and_the_rest_is_drawn(weights, photos, tmp_path):
    mixed = tmp_path / "mixed"
    for number in range(3):
        save(mixed / f"{number}.png", photo(number))
    (mixed / "broken $x_1$ <b>.png").write_bytes((mixed / "0.png").read_bytes()[:200])
    save(mixed / "tiny.png", photo(7, height=5, width=6))
    done = inside("inspect", weights, mixed, "--out", tmp_path / "out", "--show", "1")
    assert done.returncode == 0, done.stderr
    assert "over 4 images" in done.stdout
    assert "Skipped:" in done.stdout and "broken $x_1$ <b>.png" in done.stdout
    assert "tiny.png is 5 x 6" in done.stderr and "patch of 8 x 8" in done.stderr
    page = (tmp_path / "out" / "inspect.html").read_text()
    assert "broken $x_1$ &lt;b&gt;.png" in page
    assert (tmp_path / "out" / "heads_01.png").exists()


def test_a_name_that_looks_like_a_formula_or_markup_is_drawn_as_it_is(weights, tmp_path):
    save(tmp_path / "in" / "a$\\frac{$<i>&.png", photo(1))
    vitrine.inspect(str(weights), [str(tmp_path / "in")], out=tmp_path / "out")
    page = (tmp_path / "out" / "inspect.html").read_text()
    assert "a$\\frac{$&lt;i&gt;&amp;.png" in page and "<i>" not in page


@pytest.mark.parametrize("given", [(), ("empty",)])
def test_without_images_the_model_alone_is_drawn_and_that_is_said(weights, tmp_path, given):
    (tmp_path / "empty").mkdir()
    places = [tmp_path / name for name in given]
    done = inside("inspect", weights, *places, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "only filters and positions" in done.stderr
    assert sorted(path.stem for path in (tmp_path / "out").glob("*.png")) == ["filters", "positions"]


def test_only_corrupt_images_are_named_and_the_model_alone_is_drawn(weights, tmp_path):
    (tmp_path / "bad.jpg").write_bytes(b"no picture")
    done = inside("inspect", weights, tmp_path / "bad.jpg", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "Not drawn: all" in done.stderr and "none of the images" in done.stderr
    assert f"Skipped: {tmp_path / 'bad.jpg'}" in done.stdout
    assert (tmp_path / "out" / "filters.png").exists()


def test_a_model_without_class_token_is_seen_from_its_patches_and_that_is_said(photos, tmp_path):
    weights = saved(tmp_path / "model", pooling="average", position_placement="every_layer")
    done = inside("inspect", weights, photos / "*.png", "--out", tmp_path / "out", "--show", "1")
    assert done.returncode == 0, done.stderr
    assert "all patches, averaged" in done.stderr and "no class token" in done.stderr
    assert (tmp_path / "out" / "rollout.png").exists()
    assert (tmp_path / "out" / "positions_layer_03.png").exists()


@pytest.mark.slow
def test_hybrids_and_bit_are_shown_as_far_as_it_applies(photos, tmp_path):
    stem = vitrine.models.config.ResNetStemConfig(units=(1,), width=32)
    hybrid = saved(tmp_path / "hybrid", "R50+ViT-B/16", stem=stem, patch_size=2, classes=None)
    done = inside("inspect", hybrid, photos, "--out", tmp_path / "h", "--show", "1")
    assert done.returncode == 0, done.stderr
    assert "its first convolution" in done.stderr
    assert "Not drawn: attention for a" in done.stderr and "no head" in done.stderr
    assert (tmp_path / "h" / "rollout.png").exists()
    bit = saved(tmp_path / "bit", "BiT-R50x1", size=64)
    done = inside("inspect", bit, photos, "--out", tmp_path / "b", "--show", "1")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("BiT ResNet has no attention") == 1
    assert "Not drawn: position similarity" in done.stderr
    drawn = sorted(path.stem for path in (tmp_path / "b").glob("*.png"))
    assert drawn == ["filters", "tokens_01"]
    assert "Not drawn: similarity of layers" in done.stderr and "at least 8 examples" in done.stderr


def test_any_number_of_channels_is_drawn(tmp_path):
    weights = saved(tmp_path / "model", channels=1, classes=None)
    save(tmp_path / "in" / "grey.png", photo(1)[:, :, 0])
    done = inside("inspect", weights, tmp_path / "in", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr


def test_mistakes_are_refused_before_any_work(weights, photos, tmp_path):
    out = tmp_path / "out"
    assert_refused(inside("inspect", weights, photos / "nothing.png", "--out", out), "no such file")
    assert_refused(inside("inspect", weights, photos, "--patch", "9,9", "--out", out), "4 rows and 4 columns")
    assert_refused(inside("inspect", weights, photos, "--patch", "x", "--out", out), "such as 3,7, got 'x'")
    assert_refused(inside("inspect", weights, photos, "--layer", "3", "--out", out), "from 0 to 2")
    assert_refused(inside("inspect", weights, photos, "--class", "dgo", "--out", out), "did you mean 'dog'?")
    assert_refused(inside("inspect", weights, photos, "--size", "4", "--out", out), "multiple of the patch")
    assert_refused(
        inside("inspect", weights, photos, "--count", "0", "--out", out),
        "at least 1",
        error=ConfigError,
        option="count",
    )
    assert_refused(inside("inspect", weights, photos, "--out", photos / "out"), "nothing is ever written")
    assert not out.exists()


def test_a_folder_that_holds_results_is_kept_unless_asked(weights, tmp_path):
    out = tmp_path / "out"
    assert inside("inspect", weights, "--out", out).returncode == 0
    assert_refused(inside("inspect", weights, "--out", out), "--overwrite")
    assert inside("inspect", weights, "--out", out, "--overwrite").returncode == 0
