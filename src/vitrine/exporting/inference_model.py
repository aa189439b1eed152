"""A model for deployment: the same function, with everything precomputed that does not depend on the image.

The changes, all within the rounding of fp32:

- positions, class token and registers become one constant table, at the one image size of the export;
- the product of queries, keys and values has the order that attention reads; the softmax's scale and the gains of
  LayerScale are multiplied into the weights;
- the last block computes only the tokens that the head reads (its keys and values still come from all of them);
- weight-standardised kernels are standardised once, batch norms are multiplied into the layer before them.

Shapes: B images, N patches, T tokens, D width, H heads, K = D / H channels per head, R tokens that the head reads.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrine.exporting.inference_layers import InferenceBlock, projection, with_fixed_kernels
from vitrine.models import AxialResNet, BiT, Model, ViT
from vitrine.models.encoder import cut_patches


class InferenceModel(nn.Module):
    """Map normalised pixels (B, C, height, width) to logits (B, classes) and embedding (B, representation).

    Without a head there are no logits. A ViT `with_attention` also returns the weights of all layers,
    (B, L, H, T, T); then the last block computes all tokens.
    """

    def __init__(self, model: Model, *, with_attention: bool = False) -> None:
        super().__init__()
        self.has_attention = with_attention and isinstance(model, ViT)
        self.body: nn.Module = inference_body(model, with_attention=self.has_attention)
        self.has_head = model.head is not None
        self.eval().requires_grad_(False)

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the outputs of `forward`, in order."""
        names = ("logits", "embedding") if self.has_head else ("embedding",)
        return (*names, "attention") if self.has_attention else names

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """Return logits if there is a head, the embedding, and attention if requested."""
        return self.body(pixels)


def inference_body(model: Model, *, with_attention: bool = False) -> nn.Module:
    """Return the fastest form of a model; families without one of their own run as they are."""
    if isinstance(model, ViT):
        return InferenceViT(model, with_attention=with_attention)
    if isinstance(model, AxialResNet):
        fixed = with_fixed_kernels(model)
        assert isinstance(fixed, AxialResNet)
        return PlainBody(fixed)
    return InferenceBiT(model) if isinstance(model, BiT) else PlainBody(model)


class PlainBody(nn.Module):
    """A model of any family, as it is."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """Return logits, where there is a head, and the embedding."""
        features = self.model.features(pixels)  # a graph keeps only what its outputs need
        return tuple(features[name] for name in ("logits", "representation") if name in features)


class InferenceViT(nn.Module):
    """A ViT or hybrid at its built image size."""

    def __init__(self, model: ViT, *, with_attention: bool = False) -> None:
        super().__init__()
        config, self.with_attention = model.config, with_attention
        self.image_size, self.patch_size, self.grid = config.image_size, config.patch_size, config.grid_size
        self.pooling, self.norm_after_pooling = config.pooling, config.norm_after_pooling
        self.num_leading_tokens = model.num_leading_tokens
        self.first_pooled = 0 if config.pools_leading_tokens else model.num_leading_tokens
        self.stem = with_fixed_kernels(model.stem)
        self.patches = projection(model)
        # The tokens before the patches and the positions of all tokens, for this one grid.
        zeros = torch.zeros(1, config.grid_size[0] * config.grid_size[1], config.width)
        with torch.no_grad():
            table = model.eval().place(zeros, config.grid_size)  # (1, T, D)
        self.embedding_norm = model.embedding_norm
        self.leading = nn.Buffer(table[:, : self.num_leading_tokens].clone())
        self.positions = nn.Buffer(table[:, self.num_leading_tokens :].clone())
        last = config.depth - 1
        self.blocks = nn.ModuleList(
            InferenceBlock(
                model,
                layer=layer,
                num_read=model.num_tokens_read if layer == last and not with_attention else None,
            )
            for layer in range(config.depth)
        )
        self.norm, self.attention_pooling = model.norm, model.attention_pooling
        self.has_unit_length = config.unit_length
        self.is_projected = config.representation_layer == "projection"
        self.representation, self.head = model.representation, model.head
        self.distillation_head = model.distillation_head

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """Return logits, where there is a head, and the embedding."""
        patches, _ = cut_patches(self.stem(pixels), self.patch_size)  # (B, N, C x P x P)
        tokens = self.patches(patches) + self.positions
        if self.num_leading_tokens:
            leading = self.leading.expand(tokens.shape[0], -1, -1)
            tokens = torch.cat([leading, tokens], dim=1)  # (B, T, D)
        tokens = self.embedding_norm(tokens)
        weights = []  # a graph keeps them only where they are returned
        for block in self.blocks:
            tokens, attention = block(tokens)
            weights.append(attention)
        if not self.norm_after_pooling:
            tokens = self.norm(tokens)
        embedding = self.pool(tokens)
        if self.representation is not None:
            embedding = self.representation(embedding)
            embedding = embedding if self.is_projected else torch.tanh(embedding)
        if self.has_unit_length:
            embedding = F.normalize(embedding, dim=-1)
        outputs = (*self.logits(tokens, embedding), embedding)
        return (*outputs, torch.stack(weights, dim=1)) if self.with_attention else outputs

    def logits(self, tokens: Tensor, embedding: Tensor) -> tuple[Tensor, ...]:
        """Return the logits (B, classes), or nothing without a head."""
        if self.head is None:
            return ()
        logits = self.head(embedding)
        if self.distillation_head is not None:
            logits = (logits + self.distillation_head(tokens[:, 1])) / 2
        return (logits,)

    def pool(self, tokens: Tensor) -> Tensor:
        """Reduce tokens to one vector per image (B, D)."""
        if self.pooling == "class_token":
            pooled = tokens[:, 0]
        elif self.pooling == "average":
            pooled = tokens[:, self.num_leading_tokens :].mean(dim=1)
        else:
            assert self.attention_pooling is not None
            pooled = self.attention_pooling(tokens[:, self.first_pooled :])
        return self.norm(pooled) if self.norm_after_pooling else pooled


class InferenceBiT(nn.Module):
    """A BiT ResNet at its built image size, its kernels standardised once."""

    def __init__(self, model: BiT) -> None:
        super().__init__()
        self.root_conv = with_fixed_kernels(model.root_conv)
        units = [unit for stage in model.stages for unit in stage]  # type: ignore[attr-defined]
        self.units = with_fixed_kernels(nn.Sequential(*units))
        self.norm, self.head = model.norm, model.head
        self.is_pooled = model.config.root == "7x7"
        rows, columns = (-(-size // 2) for size in model.config.image_size)  # after the root's stride
        outside = F.pad(torch.full((1, 1, rows, columns), -torch.inf), (1, 1, 1, 1), value=0.0)
        self.floor = nn.Buffer(F.max_pool2d(outside, kernel_size=3, stride=2))

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """Return logits, where there is a head, and the embedding."""
        hidden = self.root_conv(pixels)
        if self.is_pooled:
            # BiT pads its max pooling with zeros. onnxruntime 1.31 merges such a padding into MaxPool, which pads
            # with -inf: outputs differ in the third digit. So pad with -inf and clamp the border to at least 0.
            hidden = F.max_pool2d(hidden, kernel_size=3, stride=2, padding=1)
            hidden = torch.maximum(hidden, self.floor)
        hidden = self.units(hidden)
        embedding = F.relu(self.norm(hidden)).mean(dim=(2, 3))
        return (embedding,) if self.head is None else (self.head(embedding), embedding)
