"""CPVT (arXiv:2102.10882): the ViT of DeiT whose positions are computed from the tokens themselves.

Section 3.2: a position encoding generator (PEG, `ConditionalEncoding`) reshapes the patches to their map and adds a
depth-wise 3x3 convolution of it; its zero padding marks the border. Section 3.3: one PEG stands after the first
encoder block, and there is no other position embedding. Since nothing depends on the number of patches, images of any
size need no resampling. CPVT-GAP averages the patches instead of reading a class token, and so does not depend on
where anything is in the image. The results' stronger models have a PEG after each of the first five blocks.

The authors published no weights or code of these models, only of the pyramid (models/pcpvt.py).
"""

from vitrine.models.config import ViTConfig

NUM_PEGS = (1, 5)
SHAPES = {"Ti": (192, 3), "S": (384, 6), "B": (768, 12)}
"""Width and heads; 12 blocks, MLPs of four times the width."""


def cpvt(width: int, *, num_heads: int, num_pegs: int, has_class_token: bool) -> ViTConfig:
    """Return the config of a CPVT with PEGs after its first `num_pegs` blocks."""
    return ViTConfig(
        width=width,
        depth=12,
        num_heads=num_heads,
        mlp_width=4 * width,
        pooling="class_token" if has_class_token else "average",
        positions="peg",
        peg_layers=tuple(range(num_pegs)),
        gelu="erf",
        initialisation="deit",
    )


VARIANTS = {
    f"CPVT-{size}{'' if has_class_token else '-GAP'}{'' if num_pegs == 1 else f'-{num_pegs}PEG'}": cpvt(
        width, num_heads=num_heads, num_pegs=num_pegs, has_class_token=has_class_token
    )
    for size, (width, num_heads) in SHAPES.items()
    for num_pegs in NUM_PEGS
    for has_class_token in (True, False)
}
