"""The recipes against the paper's Tables 3 and 4, copied here row by row from the paper's appendix."""

import dataclasses

import pytest

from vitrine.models import configure
from vitrine.recipes import RECIPES, find_recipe
from vitrine.recipes.descendants import DESCENDANTS
from vitrine.recipes.fine_tuning import bit_hyper_rule
from vitrine.recipes.pre_training import augreg

# Table 3: models, data, epochs, base learning rate, decay, weight decay, dropout.
TABLE_3 = [
    (("ViT-B/16", "ViT-B/32"), "jft", 7, 8e-4, "linear", 0.1, 0.0),
    (("ViT-L/32",), "jft", 7, 6e-4, "linear", 0.1, 0.0),
    (("ViT-L/16",), "jft", 14, 4e-4, "linear", 0.1, 0.0),
    (("ViT-H/14",), "jft", 14, 3e-4, "linear", 0.1, 0.0),
    (("BiT-R50x1", "BiT-R50x2"), "jft", 7, 1e-3, "linear", 0.1, None),
    (("BiT-R101x1",), "jft", 7, 8e-4, "linear", 0.1, None),
    (("BiT-R152x1", "BiT-R152x2"), "jft", 7, 6e-4, "linear", 0.1, None),
    (("R50+ViT-B/16", "R50+ViT-B/32"), "jft", 7, 8e-4, "linear", 0.1, 0.0),
    (("R50+ViT-L/32",), "jft", 7, 2e-4, "linear", 0.1, 0.0),
    (("R50+ViT-L/16",), "jft", 14, 4e-4, "linear", 0.1, 0.0),
    (("ViT-B/16", "ViT-B/32"), "i21k", 90, 1e-3, "linear", 0.03, 0.1),
    (("ViT-L/16", "ViT-L/32"), "i21k", 90, 1e-3, "linear", 0.03, 0.1),
    (("ViT-B/16", "ViT-B/32", "ViT-L/16", "ViT-L/32"), "imagenet", 300, 3e-3, "cosine", 0.3, 0.1),
]
ROWS = [(model, *row[1:]) for row in TABLE_3 for model in row[0]]
# Table 4: data, steps, learning rates swept; and the warm-up of the authors' code.
TABLE_4 = [
    ("imagenet", 20_000, (0.003, 0.01, 0.03, 0.06), 500),
    ("cifar100", 10_000, (0.001, 0.003, 0.01, 0.03), 500),
    ("cifar10", 10_000, (0.001, 0.003, 0.01, 0.03), 500),
    ("pets", 500, (0.001, 0.003, 0.01, 0.03), 100),
    ("flowers", 500, (0.001, 0.003, 0.01, 0.03), 100),
    ("vtab", 2_500, (0.01,), 500),
]


def name_of(data: str, model: str) -> str:
    return f"{data}-{model.lower().replace('+', '-').replace('/', '')}"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[1]}-{row[0]}")
def test_table_3_row_by_row(row: tuple[str, str, int, float, str, float, float | None]) -> None:
    model, data, epochs, rate, decay, weight_decay, dropout = row
    recipe = find_recipe(name_of(data, model))
    training = recipe.training
    assert (recipe.model, recipe.epochs, recipe.size) == (model, epochs, 224)
    assert (training.lr, training.decay, training.weight_decay) == (rate, decay, weight_decay)
    assert (training.optimizer, training.betas, training.batch_size) == ("adamw", (0.9, 0.999), 4096)
    assert training.warmup_steps == 10_000
    assert training.clip_norm == (1.0 if data == "imagenet" else None)
    config = configure(model, num_classes=10, image_size=224, **recipe.model_options)
    if dropout is not None:
        assert config.dropout == dropout
    # The authors on their I21k and JFT runs: sigmoid loss, head bias -10, linear decay to 1e-5, a hidden layer.
    assert recipe.objective.loss == ("softmax" if data == "imagenet" else "sigmoid")
    assert training.end_lr == (0.0 if data == "imagenet" else 1e-5)
    assert recipe.model_options.get("head_bias") == (None if data == "imagenet" else -10.0)
    if data != "imagenet" and "ViT" in model:
        assert config.representation_width == config.width


def test_table_3_has_no_other_rows() -> None:
    named = {name for name in RECIPES if name.split("-")[0] in ("jft", "i21k", "imagenet")}
    assert named - {"imagenet-vit-s16-strong", *DESCENDANTS} == {name_of(row[1], row[0]) for row in ROWS}


@pytest.mark.parametrize(("data", "steps", "rates", "warmup"), TABLE_4)
def test_table_4_row_by_row(data: str, steps: int, rates: tuple[float, ...], warmup: int) -> None:
    recipe = find_recipe(f"table4-{data}")
    training = recipe.training
    assert (training.total_steps, recipe.sweep, training.warmup_steps) == (steps, rates, warmup)
    assert training.lr in rates
    assert (training.optimizer, training.momentum, training.batch_size) == ("sgd", 0.9, 512)
    assert (training.decay, training.weight_decay, training.clip_norm) == ("cosine", 0.0, 1.0)
    assert (recipe.size, recipe.epochs) == (384, None)


def test_table_2_fine_tunes_at_512_px_with_polyak_averaging() -> None:
    recipe, base = find_recipe("table2-imagenet"), find_recipe("table4-imagenet")
    assert (recipe.size, recipe.training.average_decay) == (512, 0.9999)
    assert dataclasses.replace(recipe.training, average_decay=None) == base.training


@pytest.mark.parametrize(
    ("num_images", "smallest_side", "expected"),
    [
        (19_999, 32, (500, 100, (200, 300, 400), 160, 128, 0.0)),
        (20_000, 95, (10_000, 500, (3_000, 6_000, 9_000), 160, 128, 0.1)),
        (499_999, 96, (10_000, 500, (3_000, 6_000, 9_000), 512, 480, 0.1)),
        (500_000, 224, (20_000, 500, (6_000, 12_000, 18_000), 512, 480, 0.1)),
    ],
)
def test_bit_hyper_rule_by_number_and_size_of_the_images(
    num_images: int, smallest_side: int, expected: tuple[object, ...]
) -> None:
    recipe = bit_hyper_rule(num_images, smallest_side=smallest_side)
    training = recipe.training
    boundaries = tuple(round(share * training.total_steps) for share in training.boundaries)
    assert expected == (
        training.total_steps, training.warmup_steps, boundaries, recipe.views.resize_size, recipe.size,
        recipe.augment.mixup,
    )  # fmt: skip
    assert (training.optimizer, training.lr, training.batch_size) == ("sgd", 0.003, 512)
    assert (training.momentum, training.decay) == (0.9, "steps")


@pytest.mark.parametrize(
    ("name", "steps", "resize", "size"),
    [
        ("bit-hyperrule-small", 500, 512, 480),
        ("bit-hyperrule-medium", 10_000, 160, 128),
        ("bit-hyperrule-large", 20_000, 512, 480),
        ("bit-hyperrule-vit-small", 500, 448, 384),
        ("bit-hyperrule-vit-medium", 10_000, 448, 384),
        ("bit-hyperrule-vit-large", 20_000, 448, 384),
    ],
)
def test_a_vit_sees_less_of_an_image_by_bit_hyper_rule_than_a_resnet(
    name: str, steps: int, resize: int, size: int
) -> None:
    recipe = find_recipe(name)
    assert (recipe.training.total_steps, recipe.views.resize_size, recipe.size) == (steps, resize, size)


def test_the_strong_small_recipe() -> None:
    recipe = find_recipe("imagenet-vit-s16-strong")
    training, augment = recipe.training, recipe.augment
    assert (recipe.model, recipe.epochs, recipe.objective.loss) == ("ViT-S/16", 90, "softmax")
    assert recipe.model_options == {"positions": "sincos_2d", "pooling": "average"}
    assert (augment.num_operations, augment.magnitude, augment.mixup) == (2, 10, 0.2)
    assert (training.batch_size, training.lr, training.warmup_steps) == (1024, 1e-3, 10_000)
    # Its weight decay of 1e-4 is not multiplied by the learning rate; ours is.
    assert training.lr * training.weight_decay == pytest.approx(1e-4)
    assert (training.decay, training.clip_norm) == ("cosine", 1.0)


@pytest.mark.parametrize("mixup", [0, 0.2, 0.5, 0.8])
@pytest.mark.parametrize("magnitude", [0, 10, 15, 20])
def test_every_cell_of_the_augreg_grid_is_a_recipe(mixup: float, magnitude: float) -> None:
    recipe = augreg("ViT-B/16", mixup=mixup, magnitude=magnitude, regularisation=0.1, weight_decay=0.03)
    assert (recipe.augment.mixup, recipe.augment.num_operations) == (mixup, 2 if magnitude else 0)
    assert recipe.model_options == {"head_bias": -10.0, "dropout": 0.1, "stochastic_depth": 0.1}


def test_masked_patches_are_trained_as_appendix_b_1_2_says() -> None:
    recipe = find_recipe("masked-patches")
    training, hidden = recipe.training, recipe.objective
    assert (training.optimizer, training.betas, training.lr) == ("adamw", (0.9, 0.999), 2e-4)
    assert (training.batch_size, training.warmup_steps, training.decay) == (4096, 10_000, "cosine")
    assert (training.total_steps, training.end_lr) == (1_000_000, 0.0)
    assert (hidden.target, hidden.corrupted, hidden.masked, hidden.replaced) == ("mean-color", 0.5, 0.8, 0.1)
    assert (recipe.model, recipe.size, recipe.views.crop, recipe.views.flip) == (
        "ViT-B/16",
        224,
        "inception",
        True,
    )


def test_the_autoencoder_is_trained_as_its_authors_table_8_says() -> None:
    recipe = find_recipe("autoencoder")
    training, hidden = recipe.training, recipe.objective
    assert (training.betas, training.weight_decay, training.batch_size) == ((0.9, 0.95), 0.05, 4096)
    assert training.lr == pytest.approx(1.5e-4 * 16) and training.warmup_steps == 40 * 1_281_167 // 4096 + 1
    assert (hidden.hidden, hidden.decoder_width, hidden.decoder_depth, hidden.decoder_heads) == (
        0.75,
        512,
        8,
        16,
    )


def test_self_distillation_is_trained_as_dinos_authors_do_for_vit_s() -> None:
    recipe = find_recipe("dino")
    training, head, views = recipe.training, recipe.objective, recipe.objective.multi_crop
    assert (recipe.model, recipe.size, recipe.epochs, training.batch_size) == ("ViT-S/16", 224, 300, 1024)
    assert training.lr == pytest.approx(5e-4 * 4) and training.end_lr == 1e-6
    assert (head.num_prototypes, head.hidden_width, head.bottleneck_width) == (65_536, 2048, 256)
    assert (head.student_temperature, head.first_teacher_temperature, head.teacher_temperature) == (
        0.1,
        0.04,
        0.07,
    )
    assert (head.momentum, head.center_momentum, views.num_local) == (0.996, 0.9, 8)
    assert (views.global_area, views.local_area) == ((0.4, 1.0), (0.05, 0.4))
