"""Learning without labels: the module that the loop trains, and what it reads of a batch."""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor, nn

    from vitrine.data.loading.order import Rows
    from vitrine.runs.training_run import Setting
    from vitrine.runtime.processes import Processes
    from vitrine.training.task import Task

# From pixels (B, C, height, width), 0 to 255, their rows and a seed to what the module's loss reads.
PartsOf: TypeAlias = "Callable[[Tensor, Rows, int], tuple[Tensor, ...]]"


def wrapped(setting: "Setting") -> "nn.Module":
    """Put the model into the module that the recipe's objective trains; the model stays its `vit`."""
    from vitrine.models import ViT
    from vitrine.objectives.distillation import FeatureDistillation, LogitsDistillation, teacher_width
    from vitrine.objectives.masked_autoencoder import MaskedAutoencoder
    from vitrine.objectives.masked_patches import MaskedPatches
    from vitrine.objectives.self_distillation import SelfDistillation

    recipe, model = setting.recipe, setting.model
    assert isinstance(model, ViT)
    if recipe.objective == "masked-patches":
        return MaskedPatches(model, recipe.masked_patches)
    if recipe.objective == "autoencoder":
        return MaskedAutoencoder(model, recipe.autoencoder)
    if recipe.objective == "dino":
        return SelfDistillation(model, recipe.self_distillation)
    assert setting.teacher is not None
    if recipe.distillation.learns_logits:
        return LogitsDistillation(model, recipe.distillation, loss=recipe.loss)
    return FeatureDistillation(model, recipe.distillation, teacher_width=teacher_width(setting.teacher.model))


def make_parts(setting: "Setting", processes: "Processes") -> PartsOf:
    """Return the function that makes what the objective's module reads."""
    objective = setting.recipe.objective
    if objective == "dino":
        return make_views(setting)
    if objective == "distillation":
        return make_feature_targets(setting, processes)
    return make_targets(setting)


def make_targets(setting: "Setting") -> PartsOf:
    """Return the function to normalised images and what is to be predicted of each of their patches."""
    from vitrine.models import ViTConfig
    from vitrine.objectives.patch_targets import patch_targets

    config, recipe, preprocess = setting.model.config, setting.recipe, setting.preprocess
    assert isinstance(config, ViTConfig)
    target = recipe.masked_patches.target if recipe.objective == "masked-patches" else "pixels"

    def parts_of(pixels: "Tensor", rows: "Rows", seed: int) -> "tuple[Tensor, ...]":
        return preprocess.normalise(pixels), patch_targets(pixels, config.token_stride, target=target)

    return parts_of


def make_views(setting: "Setting") -> PartsOf:
    """Return the function to large and small views, normalised."""
    from vitrine.data.augmenting.multi_crop import multi_crop, small_view_size
    from vitrine.models import ViTConfig

    config, how, preprocess = setting.model.config, setting.recipe.multi_crop, setting.preprocess
    assert isinstance(config, ViTConfig)
    small = small_view_size(config.grid_size, config.token_stride, wanted=how.local_size)

    def parts_of(pixels: "Tensor", rows: "Rows", seed: int) -> "tuple[Tensor, ...]":
        views = multi_crop(pixels, rows, how=how, size=preprocess.size, local_size=small, seed=seed)
        large, few = (preprocess.normalise(found) for found in views)
        return large, few

    return parts_of


def make_feature_targets(setting: "Setting", processes: "Processes") -> PartsOf:
    """Return the function to normalised images and the teacher's features of the same pixels."""
    from vitrine.models import ViTConfig
    from vitrine.objectives.distillation import teacher_features

    config, teacher, preprocess = setting.model.config, setting.teacher, setting.preprocess
    assert isinstance(config, ViTConfig) and teacher is not None
    model = teacher.model.to(processes.device)
    wants_patches = setting.recipe.distillation.patch_weight > 0

    def parts_of(pixels: "Tensor", rows: "Rows", seed: int) -> "tuple[Tensor, ...]":
        summary, patches = teacher.ask(
            pixels, lambda images: teacher_features(model, images, grid=config.grid_size)
        )
        return preprocess.normalise(pixels), summary, patches if wants_patches else patches[:, :0]

    return parts_of


def make_unlabelled_task(setting: "Setting", processes: "Processes") -> "Task":
    """Learn from images alone, or from a teacher's features of them: augmented, then made into what is learned."""
    import torch
    from torch import nn

    from vitrine.data.augmenting.augment import augment
    from vitrine.data.loading.loader import Batch
    from vitrine.runs.sheets import make_pictures
    from vitrine.runs.teachers import make_kept_features
    from vitrine.runs.training_batches import make_batches, make_names
    from vitrine.runs.unlabelled_evaluation import make_unlabelled_evaluation
    from vitrine.training.task import Task

    recipe, seed = setting.recipe, setting.recipe.training.seed
    parts_of = make_parts(setting, processes)
    kept = make_kept_features(setting, processes) if recipe.distillation.caches else None

    def prepare(batch: Batch) -> tuple[torch.Tensor, ...]:
        if kept is not None:
            return setting.preprocess.normalise(batch.images), *kept(batch.rows)
        nobody = torch.zeros(len(batch.images), dtype=torch.int64, device=batch.images.device)
        pixels, _ = augment(
            batch.images, nobody, batch.rows, how=recipe.augment, num_classes=1, seed=seed,
            progress=batch.rows.step / recipe.training.total_steps,
        )  # fmt: skip
        return parts_of(pixels, batch.rows, seed)

    def loss_of(
        module: nn.Module, parts: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        losses, sums = module(*parts)
        return losses, sums

    is_judged = "val" in setting.splits
    return Task(
        batches=make_batches(setting, processes),
        prepare=prepare,
        loss_of=loss_of,
        evaluate=make_unlabelled_evaluation(setting, processes, parts_of) if is_judged else None,
        # A lower loss is no better representation: the last weights are those to keep.
        metric=None,
        settle=make_settling(setting, processes) if recipe.objective == "dino" else None,
        depict=make_pictures(setting, processes, parts_of),
        names_of=make_names(setting),
    )


def make_settling(
    setting: "Setting", processes: "Processes"
) -> "Callable[[nn.Module, dict[str, Tensor], int, Tensor], None]":
    """Return the function that lets teacher and centre follow after every step, the same in all processes."""
    from vitrine.objectives.self_distillation import OUTPUTS, PROBABILITIES, SQUARES, SelfDistillation
    from vitrine.runtime.processes import mean_over

    training = setting.recipe.training
    own = training.batch_size // processes.world_size

    def settle(model: "nn.Module", sums: "dict[str, Tensor]", step: int, bad: "Tensor") -> None:
        assert isinstance(model, SelfDistillation)
        outputs, squares = (mean_over(sums.pop(name) / own, processes) for name in (OUTPUTS, SQUARES))
        del sums[PROBABILITIES]
        model.settle(outputs, squares, step=step, total_steps=training.total_steps, bad=bad)

    return settle
