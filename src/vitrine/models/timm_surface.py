"""timm's methods, for code written for timm: the same meaning and the same shapes.

Every model has them. Levels are the outputs of stages or, in a model without stages, of blocks, as `features` names
them; a family can define them itself: `levels(images)` yields the tokens or the map after each block or stage, and
`finish` is the norm after the last, `forward_head` the rest.

Shapes: B images, T tokens, N = rows x columns of patches, D channels of a level.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from vitrine.errors import ConfigError
from vitrine.models.config import checked_layer
from vitrine.models.initialisation import initialise_head

# timm decays all parameters with several axes except these.
UNDECAYED = ("positions.", "word_positions", "class_token", "distillation_token", "registers")


@dataclasses.dataclass(frozen=True)
class Level:
    """The state after a block or stage: a map (B, D, rows, columns), or tokens (B, T, D) of a grid."""

    values: Tensor
    grid: tuple[int, int] | None = None
    """Rows and columns of tokens; None for a map."""
    num_prefix: int = 0
    """Tokens before the first patch."""

    def spatial(self, output_fmt: str) -> Tensor:
        """Return the patches as a map (NCHW) or a sequence (NLC)."""
        if self.grid is None:
            return self.values if output_fmt == "NCHW" else self.values.flatten(2).transpose(1, 2)
        patches = self.values[:, self.num_prefix :]
        if output_fmt == "NLC":
            return patches
        B, _, D = patches.shape
        return patches.transpose(1, 2).reshape(B, D, *self.grid)


class TimmSurface(nn.Module):
    """The methods of timm's models."""

    config: Any
    head: nn.Linear | None

    def features(self, images: Tensor) -> dict[str, Tensor]:
        """Return every intermediate by name."""
        raise NotImplementedError

    def pool(self, tokens: Tensor) -> Tensor:
        """Reduce encoded tokens to one vector per image."""
        raise NotImplementedError

    def levels(self, images: Tensor) -> Iterator[Level]:
        """Yield the state after each stage, or after each block."""
        features = self.features(images)
        stages = [Level(value) for name, value in features.items() if name.startswith("stage_")]
        if stages:
            yield from stages
            return
        step = getattr(self.config, "token_stride", None) or self.config.patch_size
        grid = images.shape[2] // step[0], images.shape[3] // step[1]
        for name, tokens in features.items():
            if name.startswith("block_"):
                yield Level(tokens, grid, tokens.shape[1] - grid[0] * grid[1])

    @property
    def num_levels(self) -> int:
        """How many levels there are."""
        return len(getattr(self.config, "depths", ())) or int(self.config.depth)

    def finish(self, level: Level, *, index: int) -> Level:
        """Normalise tokens, unless the pooled vector is; stages end with norms of their own."""
        if level.grid is None or getattr(self.config, "norm_after_pooling", False):
            return level
        return Level(self.get_submodule("norm")(level.values), level.grid, level.num_prefix)

    def forward_features(self, images: Tensor) -> Tensor:
        """Return the tokens (B, T, D) or the map (B, D, rows, columns) that pooling reads."""
        return self.features(images)["encoded"]

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        """Map what `forward_features` returns to logits (B, K), or to the head's input."""
        representation = self.pool(features)
        return representation if pre_logits or self.head is None else self.head(representation)

    def forward_intermediates(  # noqa: PLR0917 (timm's signature)
        self,
        images: Tensor,
        indices: int | Sequence[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:
        """Return the last features and a list of levels, or the list alone.

        `indices` are levels, the number of last ones, or None for all; negative ones count from the end.
        """
        if output_fmt not in ("NCHW", "NLC"):
            raise ConfigError(f"must be NCHW or NLC, got {output_fmt!r}", option="output_fmt")
        wanted = taken(indices, self.num_levels)
        intermediates: list[Any] = []
        index, level = -1, None
        for index, level in enumerate(self.levels(images)):
            if index in wanted:
                shown = self.finish(level, index=index) if norm else level
                spatial = shown.spatial(output_fmt)
                has_prefix = return_prefix_tokens and shown.num_prefix
                intermediates.append(
                    (spatial, shown.values[:, : shown.num_prefix]) if has_prefix else spatial
                )
            if stop_early and index == max(wanted, default=0):
                break
        if intermediates_only:
            return intermediates
        assert level is not None
        return self.finish(level, index=index).values, intermediates

    def get_classifier(self) -> Any:
        """Return the head: an identity if there is none, a pair if there are two."""
        other = getattr(self, "distillation_head", None)
        if self.head is None:
            return nn.Identity()
        return self.head if other is None else (self.head, other)

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the head by a new one of zeros for `num_classes`; 0 removes it."""
        if global_pool is not None:
            self.set_pooling(global_pool)
        like = next(self.parameters())
        self.config = dataclasses.replace(self.config, num_classes=num_classes or None)
        self.head = self._new_head(self.head_width, num_classes, like)
        if getattr(self.config, "has_distillation_token", False):
            self.distillation_head = self._new_head(self.config.width, num_classes, like)

    @property
    def head_width(self) -> int:
        """Width of the head's input."""
        return int(self.config.representation_width or self.config.width)

    def set_pooling(self, global_pool: str) -> None:
        """Change the pooling, if the model supports more than one."""
        if global_pool != "avg":
            raise ConfigError(f"this model pools by average, got {global_pool!r}", option="global_pool")

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute each block in the backward pass instead of keeping its activations."""
        self.config = dataclasses.replace(self.config, activation_checkpointing=enable)

    def no_weight_decay(self) -> set[str]:
        """Return the names of the tables and tokens that timm's optimizers do not decay."""
        return {name for name, _ in self.named_parameters() if name.startswith(UNDECAYED)}

    def _new_head(self, width: int, num_classes: int, like: Tensor) -> nn.Linear | None:
        if not num_classes:
            return None
        head = nn.Linear(width, num_classes, device=like.device, dtype=like.dtype)
        initialise_head(head, bias=getattr(self.config, "head_bias", 0.0))
        return head.train(self.training)


def taken(indices: int | Sequence[int] | None, count: int) -> set[int]:
    """Return the requested levels, counted from 0."""
    if indices is None:
        return set(range(count))
    if isinstance(indices, int):
        if not 1 <= indices <= count:
            raise ConfigError(f"must be from 1 to {count}, got {indices}", option="indices")
        return set(range(count - indices, count))
    return {checked_layer(index, count) for index in indices}
