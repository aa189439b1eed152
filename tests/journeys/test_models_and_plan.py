"""Models, recipes and what a run costs, from the command line."""

import json
from pathlib import Path

import pytest
from journeys.commandline import assert_refused, inside
from journeys.commandline import vitrine as command

import vitrine
from vitrine.cli.lines import rendered
from vitrine.cli.views.plan import lines
from vitrine.models.variants import VARIANTS
from vitrine.recipes import RECIPES, find_recipe
from vitrine.recipes.options import chosen_recipe


def test_models_prints_a_row_for_every_variant() -> None:
    result = command("models")
    assert result.returncode == 0
    assert all(name in result.stdout for name in VARIANTS)
    assert "86,567,656" in result.stdout and "Next:" in result.stdout


def test_models_for_machines_holds_the_papers_figures() -> None:
    result = inside("models", "--images", "303e6", "--epochs", "7", "--json")
    records = {record["name"]: record for record in json.loads(result.stdout)["models"]}
    assert records["ViT-B/16"]["params"] == 86_567_656
    assert records["ViT-B/16"]["gmacs"] == pytest.approx(17.58, rel=0.01)
    assert records["ViT-B/16"]["exaflops"] == pytest.approx(224, rel=0.02)


def test_a_model_that_cannot_tile_the_size_is_listed_at_the_nearest_it_can() -> None:
    sizes = {line.name: line.image_size for line in vitrine.list_models(size=384)}
    assert (sizes["ViT-B/16"], sizes["ViT-H/14"], sizes["BiT-R50x1"]) == (384, 378, 384)


def test_plan_fits_what_fits_and_says_what_else_would_do() -> None:
    small = json.loads(
        inside(
            "plan", "ViT-B/16", "--batch-size", "256", "--device-memory", "80", "--images", "1e6", "--epochs", "1",
            "--rate", "400", "--json",
        ).stdout
    )  # fmt: skip
    assert small["fits"] and small["micro_batch"] == 256 and small["advice"] == "as it is"
    assert small["hours"] == pytest.approx(6 * 17.56e9 * 1e6 / 400e12 / 3600, rel=0.01)
    parts = small["memory"]
    assert parts["optimizer"] == pytest.approx(2 * parts["gradients"])


def test_plan_halves_recomputes_and_shards_in_this_order() -> None:
    big = vitrine.plan("ViT-B/16", batch_size=4096, device_memory=80, rate=400)
    assert big.fits and big.micro_batch < 4096 and not big.activation_checkpointing and not big.shard
    tight = vitrine.plan("ViT-H/14", batch_size=64, device_memory=14, rate=400)
    assert tight.fits and tight.activation_checkpointing
    shared = vitrine.plan("ViT-H/14", batch_size=64, devices=8, device_memory=8, rate=400)
    assert shared.fits and shared.shard
    hopeless = vitrine.plan("ViT-H/14", batch_size=64, device_memory=4, rate=400)
    assert not hopeless.fits and "more devices" in hopeless.advice
    assert hopeless.memory.total > 4


def test_plan_measures_this_machine_where_no_rate_is_stated() -> None:
    plan = vitrine.plan("ViT-Ti/16", batch_size=8, images=1000, epochs=1)
    assert plan.rate > 1e8 and "measured" in plan.rate_source


@pytest.mark.parametrize(
    ("rate", "shown"), [(400, "400 TFLOP/s"), (0.05, "0.05 TFLOP/s"), (400, " hours"), (0.05, " days)")]
)
def test_a_plan_shows_slow_machines_and_long_times_in_figures_that_can_be_read(
    rate: float, shown: str
) -> None:
    plan = vitrine.plan("ViT-B/16", images=1e6, epochs=10, rate=rate)
    assert shown in "\n".join(rendered(lines(plan), width=200))


def test_recipes_are_listed_with_their_claims_and_shown_so_that_they_can_be_run(tmp_path: Path) -> None:
    listed = json.loads(inside("recipes", "--json").stdout)["recipes"]
    assert {line["name"] for line in listed} == set(RECIPES)
    claims = {line["name"]: line["claim"] for line in listed}
    assert "98.55 %" in claims["table4-cifar10"] and "74.79 %" in claims["imagenet-vit-b16"]
    shown = inside("recipes").stdout
    assert shown.index("vitrine finetune DATA") < shown.index("photos") < shown.index("vitrine pretrain DATA")
    assert max(len(line) for line in shown.splitlines() if not line.startswith("   ")) <= 80
    assert shown.count("on JFT-300M") == 1  # one claim for all recipes that share it
    assert "photos" in shown.splitlines()[1] and shown.splitlines()[1].endswith("default")
    (tmp_path / "mine.yaml").write_text(inside("recipes", "photos").stdout)
    assert chosen_recipe(str(tmp_path / "mine.yaml")) == find_recipe("photos")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["plan", "ViT-B17"], ["no model is called 'ViT-B17'", "nearest: ViT-B/16"]),
        (["plan", "ViT-B/16", "--size", "230"], ["got 230", "nearest that fit: 224 and 240"]),
        (["plan", "ViT-B/16", "--num-classes", "0"], ["num_classes must be at least 1, got 0"]),
        (
            ["plan", "ViT-B/16", "--batch-size", "10", "--devices", "4"],
            ["multiple of the 4 devices, got 10"],
        ),
        (["plan", "ViT-B/16", "--epochs", "-1"], ["--epochs: must be above 0, got -1"]),
        (["models", "--size", "0"], ["must be above 0, got 0"]),
        (["models", "--image", "3"], ["No such option", "--images"]),
        (["recipes", "fotos"], ["no recipe is called 'fotos'", "nearest: photos"]),
        (["plann"], ["No such command", "plan"]),
    ],
)
def test_a_users_mistake_gets_one_sentence_and_exit_code_two(arguments: list[str], parts: list[str]) -> None:
    assert_refused(inside(*arguments), *parts)
