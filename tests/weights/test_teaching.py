"""What a student learns: targets, views and where it starts."""

import dataclasses

import pytest
import torch
from batches import Images, counts_of, crops, cut, views
from sources import SOURCES, class_names, class_numbers
from starting import student_vit, without_layer_scale
from teaching import most_likely, relations, solve
from ways import WAYS, stages_of

import vitrine
from vitrine.models import create_model

NUM = 12


@pytest.fixture
def drawn() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def images_of(side: int, generator: torch.Generator) -> Images:
    """Smooth pictures, which look the same at any size."""
    small = torch.rand(NUM, 3, 4, 4, generator=generator) * 255
    pixels = torch.nn.functional.interpolate(small, size=side, mode="bilinear").to(torch.uint8)
    none = torch.full((NUM, 1), -1)
    return Images(pixels, torch.arange(NUM), none, torch.zeros(NUM, 1))


def test_the_second_teacher_with_all_its_classes_is_a_cross_entropy(drawn: torch.Generator) -> None:
    logits = torch.randn(NUM, 6, generator=drawn)
    target = torch.randn(NUM, 6, generator=drawn).softmax(1)
    values, classes = target.sort(dim=1, descending=True)
    expected = torch.nn.functional.cross_entropy(logits, target)
    # fp32; the class of the rest has a probability below 1e-6 and a weight of rounding.
    torch.testing.assert_close(most_likely(logits, classes, values), expected, atol=1e-4, rtol=0)


def test_classes_that_the_second_teacher_does_not_name_count_as_one(drawn: torch.Generator) -> None:
    logits = torch.randn(1, 5, generator=drawn)
    own = logits.softmax(1)[0]
    classes, values = torch.tensor([[3, 1, -1]]), torch.tensor([[0.6, 0.3, 0.0]])
    expected = -(0.6 * own[3].log() + 0.3 * own[1].log() + 0.1 * (own[0] + own[2] + own[4]).log())
    torch.testing.assert_close(most_likely(logits, classes, values), expected, atol=1e-5, rtol=0)


def test_images_without_an_answer_do_not_count(drawn: torch.Generator) -> None:
    logits = torch.randn(2, 5, generator=drawn, requires_grad=True)
    loss = most_likely(logits, torch.tensor([[2], [-1]]), torch.tensor([[0.9], [0.0]]))
    loss.backward()
    assert logits.grad is not None
    assert logits.grad[1].abs().max() == 0
    assert logits.grad[0].abs().max() > 0
    assert logits.grad.isfinite().all()


def test_equal_relations_cost_nothing_and_others_do(drawn: torch.Generator) -> None:
    tokens = torch.randn(NUM, 8, generator=drawn)
    standard = (tokens - tokens.mean(0)) / (tokens.std(0) + 1e-4)
    assert relations(tokens, standard) == pytest.approx(0, abs=1e-5)
    assert relations(tokens, torch.randn(NUM, 8, generator=drawn)) > 0.1


def test_student_and_teacher_see_the_same_crops_at_their_own_sizes(drawn: torch.Generator) -> None:
    sets = {"nette": images_of(64, drawn), "voc": images_of(96, drawn)}
    batch = views(sets, grid=4, teacher_grid=6, batch=10, num_local=2, local_grid=2, generator=drawn)
    assert batch.student.shape == (10, 3, 64, 64)
    assert batch.teacher.shape == (10, 3, 84, 84)
    assert batch.local.shape == (20, 3, 32, 32)
    shrunk = torch.nn.functional.interpolate(batch.teacher, size=64, mode="bilinear", antialias=True)
    # Smooth pictures: what is left is interpolation, below a tenth of their spread.
    assert (shrunk - batch.student).abs().mean() < 0.1 * batch.student.std()


def test_crops_stay_inside_and_have_the_area_that_was_asked_for(drawn: torch.Generator) -> None:
    frames = crops(200, drawn, least=0.25, most=0.5)
    height, width = frames[:, 1, 1], frames[:, 0, 0].abs()
    assert ((frames[:, 0, 2].abs() + width) <= 1 + 1e-6).all()
    assert ((frames[:, 1, 2].abs() + height) <= 1 + 1e-6).all()
    assert (height * width).max() <= 0.5 + 1e-6
    assert (height * width).min() >= 0.25 - 1e-6
    assert (frames[:, 0, 0] < 0).float().mean() == pytest.approx(
        0.5, abs=0.12
    )  # mirrored; 3 standard deviations


def test_a_crop_of_everything_is_the_picture(drawn: torch.Generator) -> None:
    pixels = torch.rand(3, 3, 16, 16, generator=drawn)
    torch.testing.assert_close(cut(pixels, torch.eye(2, 3).expand(3, 2, 3), 16), pixels, atol=1e-5, rtol=0)


def test_shares_of_all_sources_fill_a_batch() -> None:
    assert sum(source.share for source in SOURCES.values()) == pytest.approx(1)
    empty = dict.fromkeys(SOURCES)
    counts = counts_of(empty, 1024)  # type: ignore[arg-type]
    assert sum(counts.values()) == 1024
    assert "imagenet-val" not in counts
    assert "pets-all" not in counts


def test_imagenets_classes_have_a_thousand_different_names() -> None:
    assert len(set(class_names())) == len(class_numbers()) == 1000
    assert class_names()[class_numbers()["n02123045"]] == "tabby"


@pytest.mark.parametrize("name", [name for name in WAYS if name != "plain"])
def test_every_way_changes_one_thing(name: str) -> None:
    plain, way = dataclasses.asdict(WAYS["plain"]), dataclasses.asdict(WAYS[name])
    assert sum(plain[field] != way[field] for field in plain) == 1


def test_stages_end_with_all_of_the_time() -> None:
    assert stages_of("7:0.75,14:1") == [(7, 0.75), (14, 1.0)]


def test_gains_of_layer_scale_are_part_of_the_matrices(drawn: torch.Generator) -> None:
    shape = {"width": 48, "depth": 2, "num_heads": 3, "mlp_width": 96, "image_size": 32, "patch_size": 16}
    model = create_model("ViT-S/16", num_classes=None, layer_scale=0.1, gelu="erf", **shape).eval()
    for name, parameter in model.named_parameters():
        if "gain" in name:
            torch.nn.init.normal_(parameter, generator=drawn)
    plain = without_layer_scale(model)
    pixels = torch.randn(2, 3, 32, 32, generator=drawn)
    with torch.no_grad():
        before, after = (one.features(pixels)["representation"] for one in (model, plain))
    # One multiplication in another order, through two layers.
    torch.testing.assert_close(after, before, atol=1e-4, rtol=1e-4)
    assert not [name for name, _ in plain.named_parameters() if "gain" in name]


def test_a_student_starts_from_the_bundled_model_with_a_head_of_its_own() -> None:
    student = student_vit("ti", "box:ti", teacher="", drop=0.0)
    bundled = vitrine.load("box:ti").model
    ours, theirs = student.state_dict(), bundled.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs if not name.startswith("head."))
    assert student.head is not None
    assert student.head.out_features == 1000


def test_a_solved_map_gives_back_a_linear_relation(drawn: torch.Generator) -> None:
    relation, layer = torch.nn.Linear(6, 4), torch.nn.Linear(6, 4)
    inputs = torch.randn(400, 6, generator=drawn) * 3 + 1
    with torch.no_grad():
        solve(layer, inputs, relation(inputs))
        # Ridge regression with a strength of 0.001 shrinks by about as much.
        torch.testing.assert_close(layer(inputs), relation(inputs), atol=0.02, rtol=0.01)
