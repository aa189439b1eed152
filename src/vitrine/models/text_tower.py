"""The text towers of CLIP (arXiv:2103.00020) and SigLIP (arXiv:2303.15343): token ids to one vector per text.

Shapes: B texts, T tokens, D width, E width of the space shared with images.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from vitrine.models.attention import attend
from vitrine.models.choices import Activation, Gelu
from vitrine.models.encoder import Block


@dataclass(frozen=True, kw_only=True)
class TextConfig:
    """Shape and numerics of a text tower."""

    vocabulary: int
    context: int
    """Tokens that every text is cut or padded to."""
    width: int
    depth: int
    num_heads: int
    mlp_width: int
    embedding: int
    """Width of the output."""
    activation: Activation = "quick_gelu"
    gelu: Gelu = "erf"
    norm_eps: float = 1e-5
    is_causal: bool = True
    """Whether tokens see only those before them (CLIP)."""
    reads: Literal["end", "last"] = "end"
    """The token that represents the text: the first end token (CLIP), or the last, padding included (SigLIP)."""
    end_token: int = 49407
    padding: int = 49407
    has_projection_bias: bool = False
    lowercases: bool = False
    """Whether texts are lower-cased before they reach the tokenizer (SigLIP, SigLIP 2); CLIP's tokenizer does it."""


class TextTower(nn.Module):
    """Map token ids (B, T) to vectors (B, E) in the space shared with images."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Parameter(torch.zeros(config.context, config.width))
        self.blocks = nn.ModuleList(
            Block(
                config.width, num_heads=config.num_heads, mlp_width=config.mlp_width, norm_eps=config.norm_eps,
                activation=config.activation, gelu=config.gelu,
            )
            for _ in range(config.depth)
        )  # fmt: skip
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.projection = nn.Linear(config.width, config.embedding, bias=config.has_projection_bias)

    def forward(self, numbers: Tensor) -> Tensor:
        """Map token ids (B, T) to vectors (B, E)."""
        states = self.tokens(numbers) + self.positions[: numbers.shape[1]]
        bias = None
        if self.config.is_causal:
            later = torch.ones(
                numbers.shape[1], numbers.shape[1], dtype=torch.bool, device=numbers.device
            ).triu(1)
            bias = torch.zeros_like(later, dtype=states.dtype).masked_fill(later, -torch.inf)
        for block in self.blocks:
            assert isinstance(block, Block)
            states = through(block, states, bias)
        states = self.norm(states)
        if self.config.reads == "last":
            return self.projection(states[:, -1])
        end = (numbers == self.config.end_token).int().argmax(dim=1)
        return self.projection(states[torch.arange(len(states), device=states.device), end])


def through(block: Block, states: Tensor, bias: Tensor | None) -> Tensor:
    """Run a block with a bias (T, T) on its attention."""
    q, k, v = block.attention.project(block.norm_1(states))
    states = states + block.attention.join(attend(q, k, v, bias=bias))
    return states + block.mlp(block.norm_2(states))
