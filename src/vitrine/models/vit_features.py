"""Every intermediate of a ViT by name: what inspection, distillation and few-shot probes read.

Shapes: B images, N patches, T tokens (class, distillation, registers, patches, in this order), D width, R width of
the representation, K classes.

    stem                 (B, channels, rows, columns)  a hybrid's feature map
    patches              (B, N, D)                     projected patches
    embedded             (B, T, D)                     with leading tokens and positions
    block_00 ...         (B, T, D)                     after each block
    encoded              (B, T, D)                     after the norm, unless it comes after pooling
    class_token          (B, D)
    distillation_token   (B, D)
    registers            (B, registers, D)
    patch_tokens         (B, N, D)
    pooled               (B, D)
    representation       (B, R)                        the input of the head
    distillation_logits  (B, K)
    logits               (B, K)
"""

from typing import Any

from torch import Tensor


def vit_features(model: Any, images: Tensor) -> dict[str, Tensor]:
    """Return every intermediate that the model has, in the order of computation, the logits last."""
    named: dict[str, Tensor] = {}
    maps = model.run_stem(images)
    if model.config.stem:
        named["stem"] = maps
    patches, grid = model.project_patches(maps)
    named["patches"] = patches
    tokens = named["embedded"] = model.assemble(patches, grid)
    for layer in range(model.config.depth):
        tokens = named[f"block_{layer:02d}"] = model.run_block(tokens, grid, layer=layer)
    tokens = named["encoded"] = tokens if model.config.norm_after_pooling else model.norm(tokens)
    if model.config.reads_class_token:
        named["class_token"] = tokens[:, 0]
    if model.config.has_distillation_token:
        named["distillation_token"] = tokens[:, model.config.num_prefix_tokens - 1]
    if model.config.num_registers:
        named["registers"] = tokens[:, model.config.num_prefix_tokens : model.num_leading_tokens]
    named["patch_tokens"] = tokens[:, model.num_leading_tokens :]
    named["pooled"] = model.pool(tokens)
    named["representation"] = model.represent(named["pooled"])
    if model.distillation_head is not None:
        named["distillation_logits"] = model.distillation_head(named["distillation_token"])
    if model.head is not None:
        named["logits"] = model.classify(tokens)
    return named
