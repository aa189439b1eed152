"""Masked autoencoder (MAE, arXiv:2111.06377): the encoder reads a quarter, a small decoder predicts the rest.

Shapes: B images of C channels, N patches of P x Q pixels, V of them visible, S tokens before the patches (class
token and its like), D width of the encoder, E of the decoder.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from vitrine.data.loading.order import Rows
from vitrine.errors import ConfigError
from vitrine.models import Model, ViT, ViTConfig
from vitrine.models.choices import NO_TABLE
from vitrine.models.dropout import RandomLayer
from vitrine.models.encoder import Block
from vitrine.models.initialisation import initialise_layer
from vitrine.models.positions import Grid, SinCos2D
from vitrine.objectives.masked_patches import encoded, require_token_outputs, take
from vitrine.objectives.objective import AttentionOf, Objective, PartsOf, RunContext, register_objective
from vitrine.objectives.patch_targets import VARIANCE_EPS, normalised_patches, target_parts
from vitrine.objectives.reconstructions import GREY, reconstructions
from vitrine.objectives.teacher import Teacher

TOKEN_STD = 0.02


@register_objective
@dataclass(frozen=True, kw_only=True)
class AutoencoderObjective(Objective):
    """Reconstruct hidden patches with a decoder; the defaults are those of MAE's authors."""

    kind: ClassVar[str] = "autoencoder"
    has_pictures: ClassVar[bool] = True
    earlier_settings: ClassVar[Mapping[str, str]] = {"autoencoder": "objective"}

    hidden: float = 0.75
    """Fraction of the patches that the encoder does not see."""
    decoder_width: int = 512
    decoder_depth: int = 8
    decoder_heads: int = 16
    normalises: bool = True
    """Whether the target patches have mean 0 and deviation 1; otherwise pixels from -1 to 1."""

    def __post_init__(self) -> None:
        if not 0 < self.hidden < 1:
            raise ConfigError(f"hidden must be between 0 and 1, got {self.hidden}; .75 is usual")
        if min(self.decoder_width, self.decoder_depth, self.decoder_heads) < 1:
            raise ConfigError(
                "decoder_width, decoder_depth and decoder_heads must be at least 1, got "
                f"{self.decoder_width}, {self.decoder_depth} and {self.decoder_heads}"
            )
        if self.decoder_width % 4 or self.decoder_width % self.decoder_heads:
            raise ConfigError(
                "decoder_width must be a multiple of 4 and of decoder_heads, got "
                f"{self.decoder_width} and {self.decoder_heads}"
            )

    def wrap(self, model: Model, teacher: Teacher | None) -> nn.Module:
        """Add the decoder."""
        assert isinstance(model, ViT)
        return MaskedAutoencoder(model, self)

    def parts(self, context: RunContext) -> PartsOf:
        """Return the function to normalised images and the pixels of their patches."""
        return target_parts(context.model.config, context.preprocess, target="pixels")

    def pictures(
        self, module: nn.Module, pixels: Tensor, rows: Rows, context: RunContext, attention_of: AttentionOf
    ) -> list[Tensor]:
        """Show masked input, reconstruction, original and attention."""
        assert isinstance(module, MaskedAutoencoder)
        images = context.preprocess.normalise(pixels)
        return [*reconstructions(module, images, pixels), attention_of(module.vit, images, pixels)]


class Decoder(nn.Module):
    """A small transformer on visible tokens and one learned token in every gap, then a layer to pixels."""

    def __init__(self, config: AutoencoderObjective, *, encoder: ViTConfig) -> None:
        super().__init__()
        E = config.decoder_width
        self.num_leading_tokens = encoder.num_prefix_tokens + encoder.num_registers
        self.narrow = nn.Linear(encoder.width, E)
        self.mask_token = nn.Parameter(torch.empty(1, 1, E))
        self.positions = SinCos2D(width=E, num_slots=self.num_leading_tokens)
        self.blocks = nn.ModuleList(
            Block(E, num_heads=config.decoder_heads, gelu=encoder.gelu, norm_eps=encoder.norm_eps)
            for _ in range(config.decoder_depth)
        )
        self.norm = nn.LayerNorm(E, eps=encoder.norm_eps)
        height, width = encoder.patch_size
        self.to_pixels = nn.Linear(E, encoder.channels * height * width)
        with torch.no_grad():
            for module in self.modules():
                initialise_layer(module)
        for layer in (self.narrow, self.to_pixels):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        nn.init.normal_(self.mask_token, std=TOKEN_STD)

    def forward(self, tokens: Tensor, order: Tensor, grid: Grid) -> Tensor:
        """Map encoded tokens (B, S + V, D) to the pixels of every patch (B, N, C x P x Q), in raster order."""
        tokens = self.narrow(tokens)
        leading, visible = tokens[:, : self.num_leading_tokens], tokens[:, self.num_leading_tokens :]
        patches = unshuffle(visible, order, fill=self.mask_token)
        tokens = torch.cat([leading, patches], dim=1)
        tokens = tokens + self.positions(grid).to(tokens.dtype)
        for block in self.blocks:
            tokens = block(tokens)
        return self.to_pixels(self.norm(tokens[:, self.num_leading_tokens :]))


class MaskedAutoencoder(RandomLayer):
    """A ViT that sees a quarter of the patches, and the decoder that predicts the others."""

    def __init__(self, vit: ViT, config: AutoencoderObjective) -> None:
        super().__init__()
        require_token_outputs(vit)
        require_order_free(vit.config)
        self.vit, self.config = vit, config
        self.decoder = Decoder(config, encoder=vit.config)

    def forward(
        self, images: Tensor, targets: Tensor | None = None
    ) -> Tensor | tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of each image (B,) and no sums to log; without targets the representation (B, D).

        Targets are the pixels of every patch from -1 to 1 (B, N, C x P x Q).
        """
        if targets is None:
            return self.vit.embed(images)
        predictions, order = self.reconstruct(images)
        targets = normalised_patches(targets) if self.config.normalises else targets
        hidden = order[:, num_visible(order.shape[1], hidden=self.config.hidden) :]
        errors = take(predictions.float(), hidden) - take(targets, hidden)
        return errors.square().flatten(1).mean(dim=1), {}

    def reconstruct(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Hide and predict: every patch (B, N, C x P x Q), and the order (B, N) whose first V were visible."""
        patches, grid = self.vit.embed_patches(images)
        B, N, _ = patches.shape
        order = self.draw(B, N, device=patches.device).argsort(dim=1)
        return self.decoder(self.encode_visible(patches, order, grid), order, grid), order

    def corrupted_and_predicted(self, images: Tensor, patches: Tensor) -> tuple[Tensor, Tensor]:
        """Paint hidden patches grey; and as predicted, with mean and deviation of the patch itself restored."""
        predicted, order = self.reconstruct(images)
        predicted = predicted.float()
        if self.config.normalises:
            scaled = patches / 127.5 - 1
            mean, variance = scaled.mean(dim=-1, keepdim=True), scaled.var(dim=-1, keepdim=True)
            predicted = predicted * (variance + VARIANCE_EPS).sqrt() + mean
        predicted = (predicted + 1) * 127.5
        hidden = order[:, num_visible(order.shape[1], hidden=self.config.hidden) :]
        where = hidden[..., None].expand(-1, -1, patches.shape[-1])
        return patches.scatter(1, where, GREY), patches.scatter(1, where, take(predicted, hidden))

    def encode_visible(self, patches: Tensor, order: Tensor, grid: Grid) -> Tensor:
        """Run the encoder on class token and visible patches alone, with their positions: (B, S + V, D)."""
        S, N = self.vit.num_leading_tokens, patches.shape[1]
        visible = order[:, : num_visible(N, hidden=self.config.hidden)]
        tokens = self.vit.assemble(patches, grid)
        tokens = torch.cat([tokens[:, :S], take(tokens[:, S:], visible)], dim=1)
        return encoded(self.vit, tokens, grid)


def num_visible(num_patches: int, *, hidden: float) -> int:
    """Return how many patches the encoder sees: at least 1, never all."""
    if num_patches < 2:
        raise ConfigError("a masked autoencoder needs at least 2 patches per image, got 1")
    return min(max(round((1 - hidden) * num_patches), 1), num_patches - 1)


def unshuffle(visible: Tensor, order: Tensor, *, fill: Tensor) -> Tensor:
    """Put visible tokens (B, V, E) at positions order[:, :V] and `fill` (1, 1, E) in the gaps: (B, N, E)."""
    B, V, E = visible.shape
    N = order.shape[1]
    shuffled = torch.cat([visible, fill.to(visible.dtype).expand(B, N - V, E)], dim=1)
    return take(shuffled, order.argsort(dim=1))


def require_order_free(config: ViTConfig) -> None:
    """Refuse an encoder that cannot skip patches: positions must be added once, and patches not overlap."""
    if config.stem is not None:
        raise ConfigError(
            "a masked autoencoder needs a ViT without convolutions, which would see hidden patches; "
            "hybrids can learn masked-patches"
        )
    if config.attention != "global":
        raise ConfigError(
            "a masked autoencoder drops patches, which leaves no rows and columns; use attention='global'"
        )
    if config.rotary != "none":
        raise ConfigError(
            "a masked autoencoder drops patches, whose rotary positions would move; use rotary='none'"
        )
    if config.positions in NO_TABLE or config.position_placement != "stem":
        raise ConfigError(
            f"a masked autoencoder adds absolute positions once, got positions={config.positions} in "
            f"{config.position_placement}; use learned_1d, learned_2d or sincos_2d at the stem"
        )
