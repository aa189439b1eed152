"""The record of a run: everything that decides its result, readable, writable, refusing what it does not know."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin, get_type_hints

import yaml

from vitrine.data.augmenting.augment import Augment
from vitrine.data.augmenting.multi_crop import MultiCrop, small_view_size
from vitrine.data.preparing.training_view import Crop
from vitrine.errors import ConfigError
from vitrine.models import BiTConfig, ModelConfig, ViTConfig
from vitrine.objectives.classification import LossKind
from vitrine.objectives.distillation import DistillationConfig
from vitrine.objectives.masked_autoencoder import AutoencoderConfig
from vitrine.objectives.masked_patches import MaskedPatchesConfig
from vitrine.objectives.self_distillation import SelfDistillationConfig
from vitrine.recipes.plain_values import build, convert, plain, read_value, unknown_setting
from vitrine.training.config import TrainingConfig, require_choice

LEAST_BATCH = 16
# A fifth of the steps is the largest warm-up in Table 4 (Pets: 100 of 500); more would end before the peak.
LEAST_WARMUPS, LEAST_RECORDS = 5, 20
# Where nothing is said, a run is judged this often, within an epoch only if that is longer than so many steps, and
# for no more than this share of its time. An image that is judged is read and goes forward once: half of one that is
# learned from, or less.
EVALUATIONS, LONG_EPOCH = 10, 1000
MOST_TIME_JUDGING, COST_OF_JUDGING = 0.1, 0.5
Objective = Literal["labels", "masked-patches", "autoencoder", "dino", "distillation"]


@dataclass(frozen=True, kw_only=True)
class Views:
    """What is cut out of a training image; the paper's inception crop and flip by default."""

    crop: Crop = "inception"
    area: tuple[float, float] = (0.05, 1.0)
    flip: bool = True
    resize_size: int | None = None
    """For `random`: the square that the image is squashed to before the cut (BiT-HyperRule)."""
    device_share: float = 0.0
    """Share of the images that a CUDA device decodes by nvJPEG, for `inception`; the others are the workers'."""

    def __post_init__(self) -> None:
        if not 0 <= self.device_share <= 1 or (self.device_share and self.crop != "inception"):
            raise ConfigError(
                f"device_share must be from 0 to 1, and 0 for another crop than inception, got {self.device_share} "
                f"and {self.crop}"
            )
        require_choice("crop", self.crop, get_args(Crop))
        if not (len(self.area) == 2 and 0 < self.area[0] <= self.area[1] <= 1):
            raise ConfigError(f"area must be two shares of the image, the smaller first, got {self.area}")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A run, but for the data: where it differs from the paper, its claim says so."""

    name: str
    claim: str
    """What was reached with it, where and when; `unmeasured` where it was not."""
    model: str | None = None
    """A variant's name; None where the recipe goes with any model."""
    model_options: dict[str, Any] = field(default_factory=dict)
    size: int | None = None
    """Image side in pixels; None keeps the model's."""
    objective: Objective = "labels"
    """What is learned: `labels`; without any `masked-patches` (section 4.6), `autoencoder` (MAE) or `dino`
    (self-distillation); `distillation` from a teacher, with labels or without."""
    loss: LossKind = "softmax"
    """For `labels`."""
    masked_patches: MaskedPatchesConfig = field(default_factory=MaskedPatchesConfig)
    autoencoder: AutoencoderConfig = field(default_factory=AutoencoderConfig)
    self_distillation: SelfDistillationConfig = field(default_factory=SelfDistillationConfig)
    multi_crop: MultiCrop = field(default_factory=MultiCrop)
    """For `dino`: the views that are cut from what `views` gives."""
    distillation: DistillationConfig = field(default_factory=DistillationConfig)
    views: Views = field(default_factory=Views)
    augment: Augment = field(default_factory=Augment)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    epochs: float | None = None
    """Passes over the data; decides `training.total_steps` once the data is known, where it is given."""
    least_steps: int = 0
    """On so little data that `epochs` would be fewer steps, the batch is halved for them, down to 16 images."""
    sweep: tuple[float, ...] = ()
    """Learning rates that `--sweep` tries (Table 4)."""
    asked_for: tuple[str, ...] = ()
    """Numbers of `training` that stay as they are in however short a run: `warmup_steps`, `log_every`."""

    def __post_init__(self) -> None:
        require_choice("objective", self.objective, get_args(Objective))
        require_choice("loss", self.loss, get_args(LossKind))
        require_kinds(self.model_options)
        if self.objective != "labels":
            require_without_labels(self)
        if self.objective == "distillation" and self.distillation.caches:
            require_fixed_views(self)
        batch_size = self.training.batch_size
        if self.augment.mixes and batch_size % 2:
            raise ConfigError(
                f"mixup and cutmix mix images in pairs, so batch_size must be even, got {batch_size}; nearest that "
                f"fit: {max(batch_size - 1, 2)} and {batch_size + 1}"
            )
        if self.epochs is not None and not 0 < self.epochs < math.inf:
            raise ConfigError(f"epochs must be above 0 and finite, got {self.epochs:g}")
        if not all(0 < rate < math.inf for rate in self.sweep):
            raise ConfigError(f"sweep must be learning rates above 0 and finite, got {list(self.sweep)}")

    @property
    def needs_labels(self) -> bool:
        """Whether the model has a head for the data's classes."""
        return self.objective == "labels" or (
            self.objective == "distillation" and self.distillation.learns_logits
        )

    def passes(self, config: ModelConfig) -> float:
        """Return how many images of the model's size a step keeps for one of its batch: views count by their area."""
        if self.objective != "dino" or not isinstance(config, ViTConfig):
            return 1.0
        grid, stride = config.grid_size, config.token_stride
        small = math.prod(small_view_size(grid, stride, wanted=self.multi_crop.local_size))
        return 2 + self.multi_crop.num_local * small / math.prod(config.image_size)

    def with_steps_for(self, num_images: int) -> "Recipe":
        """Turn epochs into steps for a data set of this size; of few steps no more than a fifth is warm-up."""
        if self.epochs is None:
            return self
        batch_size = self.training.batch_size
        while batch_size >= 2 * LEAST_BATCH and self.epochs * num_images / batch_size < self.least_steps:
            batch_size //= 2
        steps = max(round(self.epochs * num_images / batch_size), 1)
        training = dataclasses.replace(self.training, batch_size=batch_size)
        return dataclasses.replace(self, training=training).with_steps(steps)

    def with_steps(self, steps: int) -> "Recipe":
        """Let the run end after `steps`; what was not asked for is fitted to it: a short warm-up, and a curve."""
        warmup, log_every = self.training.warmup_steps, self.training.log_every
        if "warmup_steps" not in self.asked_for:
            warmup = min(warmup, steps // LEAST_WARMUPS)
        if "log_every" not in self.asked_for:
            log_every = min(log_every, max(steps // LEAST_RECORDS, 1))
        training = dataclasses.replace(
            self.training, total_steps=steps, warmup_steps=warmup, log_every=log_every
        )
        return dataclasses.replace(self, training=training)

    def with_evaluations_for(self, num_images: int, *, num_judged: int) -> "Recipe":
        """Spread evaluations of `num_judged` images over the run, where nothing was said about them."""
        training = self.training
        if training.evaluate_every is not None or not num_judged:
            return self
        steps = training.total_steps
        epoch = math.ceil(num_images / training.batch_size)
        affordable = MOST_TIME_JUDGING * steps * training.batch_size / (COST_OF_JUDGING * num_judged)
        count = max(min(EVALUATIONS, affordable), 1)
        every = max(math.ceil(steps / count), min(epoch, LONG_EPOCH))
        if every >= steps:
            return self  # the end alone
        return dataclasses.replace(self, training=dataclasses.replace(training, evaluate_every=every))


def require_kinds(model_options: Mapping[str, Any]) -> None:
    """Refuse an option of a model that is of another kind than its field; one number may stand for both sides."""
    kinds = {**get_type_hints(BiTConfig), **get_type_hints(ViTConfig)}
    for name, value in model_options.items():
        kind = kinds.get(name)
        is_side = get_origin(kind) is tuple and isinstance(value, int)
        is_plain = kind in (int, float, bool) or get_origin(kind) is tuple or type(None) in get_args(kind)
        if is_plain and not is_side:
            convert(kind, value, where=f"model_options.{name}")


def require_without_labels(recipe: Recipe) -> None:
    """Refuse settings that mean nothing where no label is learned, or where a module is wrapped round the model."""
    given, training = recipe.augment, recipe.training
    of_labels = (
        ("augment.mixup", given.mixup, 0),
        ("augment.cutmix", given.cutmix, 0),
        ("augment.label_smoothing", given.label_smoothing, 0),
        ("training.patience", training.patience, None),
    )
    of_models = (
        ("training.layer_decay", training.layer_decay, 1),
        ("training.trains", training.trains, "all"),
        ("training.frozen_blocks", training.frozen_blocks, 0),
    )
    for name, value, plain_value in of_models if recipe.needs_labels else (*of_labels, *of_models):
        if value != plain_value:
            raise ConfigError(
                f"{name}={value} goes with labels, not with objective {recipe.objective}; "
                f"set {name}={'null' if plain_value is None else plain_value}"
            )


def require_fixed_views(recipe: Recipe) -> None:
    """Refuse to keep what a teacher says of an image where the student sees another one at every epoch."""
    views, given = recipe.views, recipe.augment
    is_fixed = views.crop == "none" and not views.flip
    if not is_fixed or given.mixes or given.num_operations or given.jitter or given.erase:
        raise ConfigError(
            "distillation.caches keeps what the teacher says of each image, which is right only where views are not "
            "random; set views.crop=none, views.flip=false and no augmentation, or leave caches=false"
        )


def without_labels(recipe: Recipe, objective: Objective) -> Recipe:
    """Give a recipe for labels another objective; what goes with labels alone is left out."""
    return dataclasses.replace(
        recipe,
        claim=f"unmeasured: {recipe.name} with objective {objective}",
        objective=objective,
        loss="softmax",
        augment=dataclasses.replace(recipe.augment, mixup=0.0, cutmix=0.0, label_smoothing=0.0),
        training=dataclasses.replace(
            recipe.training, layer_decay=1.0, patience=None, trains="all", frozen_blocks=0
        ),
    )


def to_yaml(recipe: Recipe) -> str:
    """Write a recipe so that a person can read it and `from_yaml` gets it back."""
    return yaml.safe_dump(plain(dataclasses.asdict(recipe)), sort_keys=False, allow_unicode=True)


def from_yaml(text: str) -> Recipe:
    """Read a recipe; unknown names and wrong kinds are refused."""
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"the recipe is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"a recipe is a table of names and values, got {type(values).__name__}")
    recipe: Recipe = build(Recipe, values, where="")
    return recipe


def with_settings(recipe: Recipe, settings: Iterable[str]) -> Recipe:
    """Apply settings such as `training.lr=3e-4`; a typo is refused with the nearest name."""
    values = plain(dataclasses.asdict(recipe))
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals:
            raise ConfigError(f"a setting looks like training.lr=3e-4, got {setting!r}")
        *parents, last = path.strip().split(".")
        place: Any = values
        for depth, name in enumerate([*parents, last]):
            is_free = parents[:depth] == ["model_options"]
            if not isinstance(place, dict) or (name not in place and not is_free):
                raise ConfigError(unknown_setting(path, values))
            if depth < len(parents):
                place = place[name]
        place[last] = read_value(text)
    changed: Recipe = build(Recipe, values, where="")
    return changed
