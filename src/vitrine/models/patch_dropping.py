"""Training on some of the patches: the others are left out after the positions were added, so each keeps its own.

As in masked autoencoders (arXiv:2111.06377) and patch dropout (arXiv:2208.07220): with half of the patches a step
takes about half of the time. Evaluation sees all patches.

Shapes: B images, P tokens before the patches, N patches, of which K are kept, D width.
"""

import torch
from torch import Tensor

from vitrine.errors import ConfigError
from vitrine.models.choices import NO_TABLE
from vitrine.models.config import ViTConfig
from vitrine.models.dropout import drawn_patches


def drop_patches(tokens: Tensor, *, num_leading: int, num_kept: int) -> Tensor:
    """Keep the first P tokens of (B, P + N, D) and `num_kept` patches, drawn per image: (B, P + K, D)."""
    leading, patches = tokens[:, :num_leading], tokens[:, num_leading:]
    B, N, D = patches.shape
    kept = drawn_patches(B, N, num_kept=num_kept, device=tokens.device)  # (B, K)
    return torch.cat([leading, patches.gather(1, kept[..., None].expand(-1, -1, D))], dim=1)


def require_droppable(config: ViTConfig) -> None:
    """Refuse models whose later layers need the place of every token."""
    needs_places = config.positions in NO_TABLE or config.rotary != "none"
    if needs_places or config.position_placement != "stem":
        raise ConfigError(
            "phases that drop patches need positions that are added before the first block, got "
            f"positions={config.positions!r}, position_placement={config.position_placement!r}, "
            f"rotary={config.rotary!r}"
        )
