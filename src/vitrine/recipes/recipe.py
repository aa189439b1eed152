"""The recipe of a run: everything that determines its result, except for the data."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args, get_origin, get_type_hints

from vitrine.data.augmenting.augment import Augment
from vitrine.data.preparing.training_view import Crop
from vitrine.errors import ConfigError
from vitrine.models import BiTConfig, ViTConfig
from vitrine.models.families import named_variant
from vitrine.objectives import LabelsObjective, Objective
from vitrine.recipes.plain_values import convert
from vitrine.training.config import TrainingConfig, require_choice
from vitrine.training.phases import Phase, require_phases

LEAST_BATCH = 16
# A fifth of the steps is the largest warm-up in Table 4 (Pets: 100 of 500); more would end before the peak.
LEAST_WARMUPS, LEAST_RECORDS = 5, 20
# By default a run has this many evaluations, at most one per epoch unless epochs are longer than this many steps, in
# at most this fraction of its time. Evaluating an image costs at most half of training on it: one read, one forward
# pass.
EVALUATIONS, LONG_EPOCH = 10, 1000
MOST_TIME_EVALUATING, COST_OF_EVALUATING = 0.1, 0.5


@dataclass(frozen=True, kw_only=True)
class Views:
    """The crop of a training image; the paper's inception crop and flip by default."""

    crop: Crop = "inception"
    area: tuple[float, float] = (0.05, 1.0)
    flip: bool = True
    alternates_flip: bool = False
    """Flip each image in every other epoch instead of at random; which images begin flipped depends on the seed."""
    resize_size: int | None = None
    """For `random`: side of the square that the image is squashed to before the crop (BiT-HyperRule)."""
    patch_sizes: tuple[int, ...] = ()
    """Patch sizes from which each step draws one, instead of the model's own: FlexiViT (arXiv:2212.08013)."""
    repeats: int = 1
    """Number of copies of each image in a batch, each with its own crop and augmentation (arXiv:1902.05509)."""
    device_share: float = 0.0
    """Fraction of the images that a CUDA device decodes with nvJPEG, for `inception`; workers decode the others."""

    def __post_init__(self) -> None:
        if not 0 <= self.device_share <= 1 or (self.device_share and self.crop != "inception"):
            raise ConfigError(
                f"device_share must be from 0 to 1, and 0 for another crop than inception, got {self.device_share} "
                f"and {self.crop}"
            )
        if self.repeats < 1:
            raise ConfigError(f"repeats must be at least 1, got {self.repeats}")
        if self.alternates_flip and (not self.flip or self.repeats > 1):
            raise ConfigError(
                f"alternates_flip needs flip=true and repeats=1, got flip={self.flip} and repeats={self.repeats}"
            )
        require_choice("crop", self.crop, get_args(Crop))
        if not (len(self.area) == 2 and 0 < self.area[0] <= self.area[1] <= 1):
            raise ConfigError(f"area must be two fractions of the image, the smaller first, got {self.area}")

    @property
    def are_fixed(self) -> bool:
        """Whether the crop of an image is the same at every epoch."""
        return self.crop == "none" and not self.flip


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A run, except for the data; its claim states differences from the paper."""

    name: str
    claim: str = "unmeasured"
    """The result of the recipe, and where it was measured."""
    model: str | None = None
    """Name of a variant; None if the recipe works with any model."""
    model_options: dict[str, Any] = field(default_factory=dict)
    size: int | None = None
    """Image side in pixels; None keeps the model's."""
    patch: int | None = None
    """Side of the patches of a trained model in pixels, to which its patch embedding is resized; None keeps them."""
    max_patches: int | None = None
    """Keep the aspect ratio of images, with at most this many patches each; None resizes to one size."""
    objective: Objective = field(default_factory=LabelsObjective)
    """The objective with its own settings; in files a table with `kind`."""
    views: Views = field(default_factory=Views)
    augment: Augment = field(default_factory=Augment)
    whitens_patches: bool = False
    """Whether the patch embedding of a fresh ViT begins with the whitening of the training patches."""
    phases: tuple[Phase, ...] = ()
    """Phases with smaller images, fewer patches or fewer backward passes; empty for none."""
    training: TrainingConfig = field(default_factory=TrainingConfig)
    epochs: float | None = None
    """Passes over the data; sets `training.total_steps` once the data is known, unless that was set explicitly."""
    least_steps: int = 0
    """If `epochs` would be fewer steps than this, the batch is halved until they are not, down to 16 images."""
    fewest_steps: int = 0
    """Fewest steps of a run by `epochs`, as small sets need more passes; 0 if epochs or batch size are given."""
    solves_head: bool = False
    """Whether fine-tuning starts from a head that is solved in closed form; the paper starts from zeros."""
    mixes_start: bool = False
    """Whether interpolations between the initial and the final weights are also evaluated on held-out images."""
    few_images: int = 0
    """Up to this many images, a run that starts from the closed form is cross-validated, unless its length was set
    explicitly: a tenth of the images would be too few to validate on."""
    sweep: tuple[float, ...] = ()
    """Learning rates that a sweep tries (Table 4)."""
    asked_for: tuple[str, ...] = ()
    """Explicit numbers of `training`, not adapted to the data: `total_steps`, `warmup_steps`, `log_every`."""

    def __post_init__(self) -> None:
        require_option_types(self.model_options, model=self.model)
        for path, neutral in self.objective.neutral_settings.items():
            value = value_at(self, path)
            if value != neutral:
                raise ConfigError(
                    f"{path}={value} does not go with objective {self.objective.kind}; "
                    f"set {path}={'null' if neutral is None else neutral}"
                )
        self.objective.check_views(are_fixed=self.has_fixed_views)
        batch_size = self.training.batch_size
        if self.augment.mixes and batch_size % 2:
            raise ConfigError(
                f"mixup and cutmix mix images in pairs, so batch_size must be even, got {batch_size}; nearest that "
                f"fit: {max(batch_size - 1, 2)} and {batch_size + 1}"
            )
        require_shapes(self)
        require_phases(self.phases)
        require_labels(self)
        if self.epochs is not None and not 0 < self.epochs < math.inf:
            raise ConfigError(f"epochs must be above 0 and finite, got {self.epochs:g}")
        if not all(0 < rate < math.inf for rate in self.sweep):
            raise ConfigError(f"sweep must be learning rates above 0 and finite, got {list(self.sweep)}")

    @property
    def needs_labels(self) -> bool:
        """Whether the model has a head for the classes of the data."""
        return self.objective.needs_labels

    @property
    def is_balanced(self) -> bool:
        """Whether every class has equal weight, for any number of images."""
        return isinstance(self.objective, LabelsObjective) and bool(self.objective.logit_adjustment)

    @property
    def has_fixed_views(self) -> bool:
        """Whether an image is the same at every epoch, without random crops or augmentation."""
        augment = self.augment
        return self.views.are_fixed and not (
            augment.mixes
            or augment.num_operations
            or augment.three_augment
            or augment.jitter
            or augment.erase
        )

    def with_objective(self, objective: Objective) -> "Recipe":
        """Replace the objective; settings that it does not support become neutral."""
        sections: dict[str, dict[str, Any]] = {"training": {}, "augment": {}}
        for path, neutral in objective.neutral_settings.items():
            section, name = path.split(".")
            sections[section][name] = neutral
        return dataclasses.replace(
            self,
            claim=f"unmeasured: {self.name} with objective {objective.kind}",
            objective=objective,
            augment=dataclasses.replace(self.augment, **sections["augment"]),
            training=dataclasses.replace(self.training, **sections["training"]),
        )

    def with_steps_for(self, num_images: int) -> "Recipe":
        """Turn epochs into steps for a data set of this size."""
        if self.epochs is None:
            return self
        batch_size = self.training.batch_size
        while batch_size >= 2 * LEAST_BATCH and self.epochs * num_images / batch_size < self.least_steps:
            batch_size //= 2
        steps = max(round(self.epochs * num_images / batch_size), self.fewest_steps, 1)
        if "total_steps" in self.asked_for:  # the batch size does not depend on the explicit number of steps
            steps = self.training.total_steps
        training = dataclasses.replace(self.training, batch_size=batch_size)
        return dataclasses.replace(self, training=training).with_steps(steps)

    def with_steps(self, steps: int) -> "Recipe":
        """End the run after `steps`; unless set, warm-up is at most a fifth of it and logging is dense."""
        warmup, log_every = self.training.warmup_steps, self.training.log_every
        if "warmup_steps" not in self.asked_for:
            warmup = min(warmup, steps // LEAST_WARMUPS)
        if "log_every" not in self.asked_for:
            log_every = min(log_every, max(steps // LEAST_RECORDS, 1))
        training = dataclasses.replace(
            self.training, total_steps=steps, warmup_steps=warmup, log_every=log_every
        )
        return dataclasses.replace(self, training=training)

    def with_evaluations_for(self, num_images: int, *, num_evaluated: int) -> "Recipe":
        """Spread evaluations of `num_evaluated` images over the run, unless the recipe sets their interval."""
        training = self.training
        if training.evaluate_every is not None or not num_evaluated:
            return self
        steps = training.total_steps
        epoch = math.ceil(num_images / training.batch_size)
        affordable = MOST_TIME_EVALUATING * steps * training.batch_size / (COST_OF_EVALUATING * num_evaluated)
        count = max(min(EVALUATIONS, affordable), 1)
        every = max(math.ceil(steps / count), min(epoch, LONG_EPOCH))
        if every >= steps:
            return self  # only at the end
        return dataclasses.replace(self, training=dataclasses.replace(training, evaluate_every=every))


def require_shapes(recipe: Recipe) -> None:
    """Refuse settings that do not work with pictures at their own aspect ratio or with several patch sizes."""
    shapes = (
        ("max_patches", recipe.max_patches is not None),
        ("patch_sizes", bool(recipe.views.patch_sizes)),
    )
    for name, is_wanted in shapes:
        if not is_wanted:
            continue
        if not isinstance(recipe.objective, LabelsObjective):
            raise ConfigError(f"{name} goes with objective labels, not with {recipe.objective.kind}")
        if recipe.training.graphs:
            raise ConfigError(
                f"{name} changes shapes from step to step, which CUDA graphs cannot; set graphs=false"
            )
    augment = recipe.augment
    if recipe.max_patches is not None and (
        augment.mixes or augment.num_operations or augment.three_augment or augment.jitter or augment.erase
    ):
        raise ConfigError(
            "max_patches goes with crops and flips, not with other augmentation: images have no common shape; set "
            "augment.num_operations, jitter, erase, mixup and cutmix to 0"
        )
    if recipe.views.device_share and recipe.max_patches is not None:
        raise ConfigError("max_patches does not go with views.device_share; set it to 0")
    if any(side < 1 for side in recipe.views.patch_sizes):
        raise ConfigError(f"patch_sizes must be at least 1, got {list(recipe.views.patch_sizes)}")


def require_labels(recipe: Recipe) -> None:
    """Refuse settings that only supervised classification has, with another objective."""
    for name, is_wanted in (
        ("phases", bool(recipe.phases)),
        ("alternates_flip", recipe.views.alternates_flip),
    ):
        if is_wanted and not isinstance(recipe.objective, LabelsObjective):
            raise ConfigError(f"{name} goes with objective labels, not with {recipe.objective.kind}")
    if recipe.phases and (recipe.max_patches is not None or recipe.views.patch_sizes):
        raise ConfigError("phases need images and patches of one size; omit max_patches and patch_sizes")


def value_at(recipe: Recipe, path: str) -> Any:
    """Return the value of a setting such as `training.lr`."""
    place: Any = recipe
    for name in path.split("."):
        place = getattr(place, name)
    return place


def require_option_types(model_options: Mapping[str, Any], *, model: str | None) -> None:
    """Refuse a model option of another type than its field; one number is allowed for both sides."""
    variant = None if model is None else named_variant(model)
    kinds = (
        {**get_type_hints(BiTConfig), **get_type_hints(ViTConfig)}
        if variant is None
        else get_type_hints(type(variant))
    )
    for name, value in model_options.items():
        kind = kinds.get(name)
        is_side = get_origin(kind) is tuple and isinstance(value, int)
        is_plain = kind in (int, float, bool) or get_origin(kind) is tuple or type(None) in get_args(kind)
        if is_plain and not is_side:
            convert(kind, value, where=f"model_options.{name}")
