"""Learning without labels first: masked patches, self-distillation, contrast; then few labels (section 4.6)."""

import dataclasses
import statistics
from collections.abc import Callable
from typing import Any

from vitrine.data.augmenting.multi_crop import MultiCrop
from vitrine.objectives import (
    AutoencoderObjective,
    DinoObjective,
    IbotObjective,
    MaskedPatchesObjective,
    MocoObjective,
    SimclrObjective,
)
from vitrine.objectives.contrastive import ContrastiveObjective
from vitrine.objectives.patch_targets import Target
from vitrine.recipes.recipe import Recipe, Views
from vitrine.reports.charts import Chart
from vitrine.studies.arms import at_best_fine_rate, at_best_rates, at_fine_rates
from vitrine.studies.published import SECTION_4_6, Beside
from vitrine.studies.record import Run, Setup, Study
from vitrine.studies.results import Results, best_option, paper_points, point_of
from vitrine.studies.scales import fine_tuning, from_scratch, vit
from vitrine.studies.verdicts import EDGE, Finding, ahead, left_open

SCRATCH, SUPERVISED = "from scratch", "labels"
# Share of labelled images in fine-tuning; pre-training reads all images.
LABELLED = 0.1
# Factor on the steps of a run from scratch, with labels or without.
PRE_TRAINING = 2
# Share of the patches that are corrupted in the paper's other attempt, as in BERT; otherwise half.
FEW_CORRUPTED = 0.15
COLOUR, FEW = "masked patches, mean colour", "masked patches, mean colour, 15 % corrupted"


def masked(target: Target, *, corrupted: float = 0.5) -> Callable[[Recipe], Recipe]:
    """Predict hidden patches (appendix B.1.2)."""

    return lambda recipe: recipe.with_objective(MaskedPatchesObjective(target=target, corrupted=corrupted))


def autoencoded(recipe: Recipe) -> Recipe:
    """Learn as MAE does, with a smaller decoder: the authors' would cost ten times as much as a small encoder."""
    if recipe.views.crop != "padded":
        return recipe.with_objective(AutoencoderObjective())
    return recipe.with_objective(AutoencoderObjective(decoder_width=96, decoder_depth=2, decoder_heads=3))


def self_distilled(recipe: Recipe) -> Recipe:
    """Learn as DINO does; a set of small images needs fewer prototypes and views than its authors use."""
    if recipe.views.crop != "padded":
        changed = recipe.with_objective(DinoObjective())
        return dataclasses.replace(changed, views=dataclasses.replace(recipe.views, flip=False))
    # With this momentum, the teacher follows the student in a run of a few hundred steps.
    small = DinoObjective(
        num_prototypes=2048, hidden_width=512, momentum=0.99, multi_crop=MultiCrop(num_local=2)
    )
    return dataclasses.replace(recipe.with_objective(small), views=Views(crop="none", flip=False))


def hiding(recipe: Recipe) -> Recipe:
    """Learn as iBOT does, on the views and with the projection of self-distillation."""
    changed = self_distilled(recipe)
    shared = {
        field.name: getattr(changed.objective, field.name) for field in dataclasses.fields(DinoObjective)
    }
    return dataclasses.replace(changed, objective=IbotObjective(**shared))


def contrasted(kind: type[ContrastiveObjective]) -> Callable[[Recipe], Recipe]:
    """Learn as MoCo v3 or SimCLR does; they cut views themselves, so the recipe neither crops nor flips."""

    def change(recipe: Recipe) -> Recipe:
        changed = recipe.with_objective(kind())
        if recipe.views.crop != "padded":
            return dataclasses.replace(changed, views=dataclasses.replace(recipe.views, flip=False))
        # At 32 px, less than a third of a picture does not show its subject.
        views = MultiCrop(num_local=0, global_area=(0.3, 1.0))
        small = dataclasses.replace(changed.objective, hidden_width=512, output_width=128, multi_crop=views)  # type: ignore[call-arg]
        return dataclasses.replace(changed, objective=small, views=Views(crop="none", flip=False))

    return change


# To add an objective, add one line here.
OBJECTIVES: dict[str, Callable[[Recipe], Recipe]] = {
    COLOUR: masked("mean-color"),
    FEW: masked("mean-color", corrupted=FEW_CORRUPTED),
    "masked patches, 4x4 pixels": masked("downsized-colors"),
    "masked patches, all pixels": masked("pixels"),
    "masked autoencoder": autoencoded,
    "self-distillation": self_distilled,
    "self-distillation with hidden patches": hiding,
    "contrast, MoCo v3": contrasted(MocoObjective),
    "contrast, SimCLR": contrasted(SimclrObjective),
    SUPERVISED: lambda recipe: recipe,
}


def slug(name: str) -> str:
    """Convert a name to a folder name."""
    return name.replace(",", "").replace(" %", "").replace(" ", "-")


def runs(setup: Setup) -> tuple[Run, ...]:
    """List the pre-training run of every objective and its fine-tuning on few labels; and the runs from scratch."""
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
        listed += [prepared, *tuned(setup, name, after=prepared.name, few=few)]
    listed += tuned(setup, SCRATCH, after=None, few=few)
    return at_best_rates(setup, listed, reference=f"{slug(SCRATCH)}-lr1")


def tuned(setup: Setup, name: str, *, after: str | None, few: int | None) -> list[Run]:
    """List the runs on few labels, one per learning rate; runs from scratch also take the steps of pre-training."""
    scale, (target, num_classes) = setup.scale, setup.targets[0]
    steps = scale.finetune_steps + (0 if after else PRE_TRAINING * scale.steps)
    adam: dict[str, Any] = {"optimizer": "adamw", "lr": scale.lr / 2, "weight_decay": scale.weight_decay}
    recipe = fine_tuning(scale, seed=setup.seed, name=f"{name}, fine-tuning", total_steps=steps, **adam)
    return at_fine_rates(
        Run(
            study="self-supervision", group=slug(name), seed=setup.seed, settings={"objective": name}, after=after,
            model=vit(scale, num_classes=num_classes, pooling="average"), recipe=recipe, probes=True, data=target,
            num_images=few,
        )
    )  # fmt: skip


def findings(results: Results) -> list[Finding]:
    """Compare the paper's target, mean colours, with training from scratch and with labels."""
    arms = [at_best_fine_rate(results, objective=name) for name in (SCRATCH, SUPERVISED, COLOUR)]
    (scratch, _), (labels, _), (paper, _) = arms
    if not (scratch and labels and paper):
        return []
    spread = results.spread()
    compared = ahead("masked patches first are better than from scratch", paper, scratch, spread=spread)
    compared += ahead("labels first are better still", labels, paper, spread=spread)
    if results.where(objective=FEW):
        compared += corruption(results)
    is_narrow = any(at_edge for _, at_edge in arms)
    return [left_open(finding, EDGE) for finding in compared] if is_narrow else compared


def corruption(results: Results) -> list[Finding]:
    """Compare half of the patches corrupted with 15 %: by 5-shot accuracy, as in the paper."""
    half, few = (
        results.values("fewshot", objective=name, lr=best_option(results, "lr", objective=name))
        for name in (COLOUR, FEW)
    )
    says = "half of the patches corrupted are better than 15 % (5-shot)"
    return ahead(says, half, few, spread=results.spread("fewshot"))


def charts(results: Results) -> list[Chart]:
    """Show every way to start, with the paper's three numbers."""
    order = [SCRATCH, *OBJECTIVES]
    means = {name: values for name in order if (values := at_best_fine_rate(results, objective=name)[0])}
    known = sorted(means, key=lambda name: statistics.fmean(means[name]))
    return [
        Chart(
            title="Ours, after fine-tuning on few labels", y_label="Accuracy [%]",
            series={"accuracy": tuple(point_of(name, means[name]) for name in known)},
        ),
        Chart(
            title="The paper, ViT-B/16 on ImageNet", y_label="Accuracy [%]", is_paper=True,
            series={"section 4.6": paper_points(SECTION_4_6)},
        ),
    ]  # fmt: skip


def published(results: Results) -> list[Beside]:
    """Return the paper's three accuracies beside ours."""
    return [
        Beside(label=name, paper=value, ours=at_best_fine_rate(results, objective=name)[0])
        for name, value in SECTION_4_6.items()
    ]


STUDY = Study(
    name="self-supervision",
    title="Self-supervised pre-training",
    where="section 4.6, appendix B.1.2",
    claim="Masked patch prediction lifts ViT-B/16 on ImageNet from 77.9 % (from scratch) to 79.9 %, still "
    "about 4 points below supervised pre-training. Corrupting 15 % of the patches instead of half is slightly "
    "worse in 5-shot accuracy.",
    rule="Test accuracy after training on a tenth of the labels, each arm at the learning rate that is best on "
    "held-out images (open if that is at the edge of the grid); from scratch takes as many steps as pre-training and "
    "fine-tuning together. (1) After masked patch "
    "prediction of mean colours it is above training from scratch by more than twice the standard "
    "error. (2) After pre-training with all labels it is above that by more than twice the standard "
    "error. (3) Half of the patches corrupted are above 15 % in 5-shot accuracy by more than twice the standard "
    "error. The other objectives are only shown.",
    runs=runs,
    findings=findings,
    charts=charts,
    published=published,
    published_as="section 4.6, ViT-B/16 on ImageNet, pre-trained on JFT-300M without labels",
    departures="Pre-training reads all images of the set; fine-tuning reads a tenth of them with labels (all of "
    "the target set if there is one), by AdamW, as SGD is too slow for a fresh model in so few steps.",
)
