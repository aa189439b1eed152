"""Learning without labels first: masked patches and the masked autoencoder, then few labels (section 4.6)."""

import dataclasses
import statistics
from collections.abc import Callable
from typing import Any

from vitrine.data.augmenting.multi_crop import MultiCrop
from vitrine.objectives import AutoencoderObjective, DinoObjective, MaskedPatchesObjective
from vitrine.objectives.patch_targets import Target
from vitrine.recipes.recipe import Recipe, Views
from vitrine.reports.charts import Chart
from vitrine.studies.record import Run, Setup, Study
from vitrine.studies.results import Results, paper_points, points_by
from vitrine.studies.scales import fine_tuning, from_scratch, vit
from vitrine.studies.verdicts import Finding, ahead

SCRATCH, SUPERVISED = "from scratch", "labels"
# Share of labelled images in fine-tuning; pre-training reads all images.
LABELLED = 0.1
# Factor on the steps of a run from scratch, with labels or without.
PRE_TRAINING = 2
PAPER = {SCRATCH: 77.9, "masked patches, mean colour": 79.9, SUPERVISED: 83.97}


def masked(target: Target) -> Callable[[Recipe], Recipe]:
    """Predict hidden patches (appendix B.1.2)."""

    return lambda recipe: recipe.with_objective(MaskedPatchesObjective(target=target))


def autoencoded(recipe: Recipe) -> Recipe:
    """Learn as MAE does; beside a small encoder, its authors' decoder would cost ten times as much."""
    if recipe.views.crop != "padded":
        return recipe.with_objective(AutoencoderObjective())
    return recipe.with_objective(AutoencoderObjective(decoder_width=96, decoder_depth=2, decoder_heads=3))


def self_distilled(recipe: Recipe) -> Recipe:
    """Learn as DINO does; a set of small images needs fewer prototypes and views than its authors take."""
    if recipe.views.crop != "padded":
        changed = recipe.with_objective(DinoObjective())
        return dataclasses.replace(changed, views=dataclasses.replace(recipe.views, flip=False))
    # The momentum lets the teacher keep up in a run of some hundreds of steps.
    small = DinoObjective(
        num_prototypes=2048, hidden_width=512, momentum=0.99, multi_crop=MultiCrop(num_local=2)
    )
    return dataclasses.replace(recipe.with_objective(small), views=Views(crop="none", flip=False))


# A further objective is one line here.
OBJECTIVES: dict[str, Callable[[Recipe], Recipe]] = {
    "masked patches, mean colour": masked("mean-color"),
    "masked patches, 4x4 pixels": masked("downsized-colors"),
    "masked patches, all pixels": masked("pixels"),
    "masked autoencoder": autoencoded,
    "self-distillation": self_distilled,
    SUPERVISED: lambda recipe: recipe,
}


def slug(name: str) -> str:
    """Write a name for a folder."""
    return name.replace(",", "").replace(" ", "-")


def runs(setup: Setup) -> tuple[Run, ...]:
    """List the pre-training run of every objective and its fine-tuning on few labels; and that from scratch."""
    scale, seed, study = setup.scale, setup.seed, "self-supervision"
    target, num_classes = setup.targets[0]
    few = max(round(LABELLED * setup.num_images), num_classes) if target == "data" else None
    model = vit(scale, num_classes=num_classes, pooling="average")
    first = from_scratch(scale, seed=seed, name="pre-training", total_steps=PRE_TRAINING * scale.steps)
    listed = []
    for name, change in OBJECTIVES.items():
        classes = setup.num_classes if name == SUPERVISED else None
        prepared = Run(
            study=study, group=f"{slug(name)}-pre-training", seed=seed, settings={"objective": name},
            model=dataclasses.replace(model, num_classes=classes),
            recipe=dataclasses.replace(change(first), name=f"{name}, pre-training"), role="preparation",
        )  # fmt: skip
        listed += [prepared, tuned(setup, name, after=prepared.name, few=few)]
    return (*listed, tuned(setup, SCRATCH, after=None, few=few))


def tuned(setup: Setup, name: str, *, after: str | None, few: int | None) -> Run:
    """Train on few labels: the same recipe whatever came before, so that nothing but the start differs."""
    scale, (target, num_classes) = setup.scale, setup.targets[0]
    adam: dict[str, Any] = {"optimizer": "adamw", "lr": scale.lr / 2, "weight_decay": scale.weight_decay}
    return Run(
        study="self-supervision", group=slug(name), seed=setup.seed, settings={"objective": name}, after=after,
        model=vit(scale, num_classes=num_classes, pooling="average"), data=target, num_images=few,
        recipe=fine_tuning(scale, seed=setup.seed, name=f"{name}, fine-tuning", **adam), probes=True,
    )  # fmt: skip


def findings(results: Results) -> list[Finding]:
    """Compare the paper's target, mean colours, with training from scratch and with labels."""
    scratch, labels = results.values(objective=SCRATCH), results.values(objective=SUPERVISED)
    paper = results.values(objective="masked patches, mean colour")
    if not (scratch and labels and paper):
        return []
    spread = results.spread()
    compared = ahead("masked patches first are better than from scratch", paper, scratch, spread=spread)
    return compared + ahead("labels first are better still", labels, paper, spread=spread)


def charts(results: Results) -> list[Chart]:
    """Show every way to start, with the paper's three numbers."""
    order = [SCRATCH, *OBJECTIVES]
    known = [name for name in order if results.values(objective=name)]
    known.sort(key=lambda name: statistics.fmean(results.values(objective=name)))
    return [
        Chart(
            title="Ours, after fine-tuning on few labels", y_label="Accuracy [%]",
            series={"accuracy": points_by(results, "objective", known)},
        ),
        Chart(
            title="The paper, ViT-B/16 on ImageNet", y_label="Accuracy [%]", is_paper=True,
            series={"section 4.6": paper_points(PAPER)},
        ),
    ]  # fmt: skip


STUDY = Study(
    name="self-supervision",
    title="Self-supervised pre-training",
    where="section 4.6, appendix B.1.2",
    claim="Masked patch prediction lifts ViT-B/16 on ImageNet from 77.9 % (from scratch) to 79.9 %, still "
    "about 4 points below supervised pre-training.",
    rule="Test accuracy after the same fine-tuning on a tenth of the labels. (1) After masked patch "
    "prediction of mean colours it is above training from scratch by more than twice the standard "
    "error. (2) After pre-training with all labels it is above that by more than twice the standard "
    "error. The other objectives are only shown.",
    runs=runs,
    findings=findings,
    charts=charts,
    seeds=2,
    departures="Pre-training reads all images of the set; fine-tuning reads a tenth of them with labels (all of "
    "the target set if there is one), by AdamW, as SGD is too slow for a fresh model in so few steps.",
)
