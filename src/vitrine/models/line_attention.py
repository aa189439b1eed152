"""Position-sensitive attention along the lines of a map (Axial-DeepLab, arXiv:2003.07853, equation 4).

A line is a column or a row. Cell o of a line reads all of its cells p:

    y_o = sum_p softmax_p(q_o k_p + q_o r^q_op + k_p r^k_po) (v_p + r^v_op)

with learned vectors r, shared by the heads, for every offset: r_op for the offset o - p, r_po for p - o. Logits are
not divided by sqrt(K): norms keep them small. The output has no projection of its own; a 1x1 convolution follows.

Shapes: B images, N lines of L cells, C channels, H heads, K = C / H channels of values per head, K / 2 of queries and
keys.
"""

import torch
from torch import Tensor, nn

from vitrine.models.choices import MapNorm
from vitrine.models.line_positions import Relative1D
from vitrine.models.standardised_conv import NUM_GROUPS

NUM_LOGIT_TERMS = 3  # queries with keys, queries with positions, keys with positions
# Most attention weights at a time without gradients. On a CPU they stay in its cache: AxialResNet-50 is 1.4 to 1.8
# times as fast on images of 224 px (one thread, batch 8; docs/experiments.md). Elsewhere they bound the memory: 256
# MiB in fp32, and some copies.
MOST_WEIGHTS_ON_CPU, MOST_WEIGHTS = 2**20, 2**26


class LineAttention(nn.Module):
    """Attend along all columns of a map, or along all rows; every line on its own."""

    def __init__(
        self, width: int, *, num_heads: int, length: int, is_column: bool, norm: MapNorm, norm_eps: float
    ) -> None:
        super().__init__()
        self.num_heads, self.is_column = num_heads, is_column
        self.to_qkv = nn.Linear(width, 2 * width, bias=False)  # head by head, each its query, key and value
        self.positions = Relative1D(num_tokens=length, width=2 * width // num_heads)
        # Axial-DeepLab's batch norm is also of every term of both sums, in the logits and in the output.
        self.norm_logits: nn.BatchNorm2d | None = None
        if norm == "batch_norm":
            self.norm_qkv: nn.Module = nn.BatchNorm1d(2 * width, eps=norm_eps)
            self.norm_logits = nn.BatchNorm2d(NUM_LOGIT_TERMS * num_heads, eps=norm_eps)
            self.norm_out: nn.Module = nn.BatchNorm1d(2 * width, eps=norm_eps)
        else:  # mean and variance over the cells of one line
            self.norm_qkv = nn.GroupNorm(NUM_GROUPS, 2 * width, eps=norm_eps)
            self.norm_out = nn.GroupNorm(NUM_GROUPS, width, eps=norm_eps)

    def forward(self, maps: Tensor) -> Tensor:
        """Map (B, C, rows, columns) to (B, C, rows, columns)."""
        lines = self.lines_of(maps)
        if self.training or torch.is_grad_enabled() or torch.compiler.is_compiling():
            return self.map_of(self.attend(lines), maps.shape)
        # Lines are independent, and without gradients nothing is kept: a few of them at a time bound the memory.
        most = MOST_WEIGHTS_ON_CPU if lines.device.type == "cpu" else MOST_WEIGHTS
        num_at_once = max(most // (self.num_heads * lines.shape[1] ** 2), 1)
        return self.map_of(
            torch.cat([self.attend(some) for some in torch.split(lines, num_at_once)]), maps.shape
        )

    def attend(self, lines: Tensor) -> Tensor:
        """Map lines (N, L, C) to what their cells read, (N, C, L)."""
        q, k, v, places = self.project(lines)
        weights = self.weights_of(q, k, places)
        content = channels_of(weights @ v)
        of_places = channels_of(torch.einsum("nhop,opk->nhok", weights, places[..., -v.shape[-1] :]))
        return self.normed_sum(content, of_places)

    def weights(self, maps: Tensor) -> Tensor:
        """Return how much every cell in raster order reads each cell of its line: (B, H, rows x columns, L)."""
        q, k, _, places = self.project(self.lines_of(maps))
        weights = self.weights_of(q, k, places)  # (N, H, L, L)
        _, H, L, _ = weights.shape
        of_lines = weights.view(maps.shape[0], -1, H, L, L).transpose(1, 2)  # (B, H, lines, L, L)
        return (of_lines.transpose(2, 3) if self.is_column else of_lines).flatten(2, 3)

    def lines_of(self, maps: Tensor) -> Tensor:
        """Cut maps (B, C, rows, columns) into lines (N, L, C)."""
        grid = maps.permute(0, 3, 2, 1) if self.is_column else maps.permute(0, 2, 3, 1)
        return grid.flatten(0, 1)

    def map_of(self, lines: Tensor, shape: torch.Size) -> Tensor:
        """Join lines (N, C, L) to maps (B, C, rows, columns)."""
        B, C, rows, columns = shape
        if self.is_column:
            return lines.reshape(B, columns, C, rows).permute(0, 2, 3, 1)
        return lines.reshape(B, rows, C, columns).transpose(1, 2)

    def project(self, lines: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return q, k (N, H, L, K / 2), v (N, H, L, K) and what positions add to each, (L, L, 2 K)."""
        N, L, C = lines.shape
        qkv = self.norm_qkv(self.to_qkv(lines).transpose(1, 2))  # (N, 2 C, L)
        heads = qkv.reshape(N, self.num_heads, -1, L).transpose(2, 3)  # (N, H, L, 2 K)
        half = C // self.num_heads // 2
        cell = torch.arange(L, device=lines.device)
        places = self.positions(L)[
            cell[:, None] - cell[None, :] + L - 1
        ]  # the row of offset o - p, for o and p
        return heads[..., :half], heads[..., half : 2 * half], heads[..., 2 * half :], places.to(qkv.dtype)

    def weights_of(self, q: Tensor, k: Tensor, places: Tensor) -> Tensor:
        """Return the attention matrices (N, H, L, L), from cell o to cell p; rows sum to one."""
        half = q.shape[-1]
        content = q @ k.transpose(-2, -1)
        of_queries = torch.einsum("nhok,opk->nhop", q, places[..., :half])
        of_keys = torch.einsum("nhpk,pok->nhop", k, places[..., half : 2 * half])
        if self.norm_logits is None:
            return (content + of_queries + of_keys).softmax(dim=-1)
        terms = self.norm_logits(torch.cat([content, of_queries, of_keys], dim=1))
        return terms.unflatten(1, (NUM_LOGIT_TERMS, -1)).sum(dim=1).softmax(dim=-1)

    def normed_sum(self, content: Tensor, of_places: Tensor) -> Tensor:
        """Add both terms of the output, (N, C, L), and normalise: the sum, or with batch norm each of them."""
        if self.norm_logits is None:
            return self.norm_out(content + of_places)
        both = torch.stack([content, of_places], dim=2)  # (N, C, 2, L)
        return self.norm_out(both.flatten(1, 2)).view_as(both).sum(dim=2)

    @torch.no_grad()
    def initialise(self) -> None:
        """Draw projection and positions as the two codes do; norms are initialised like all others."""
        C, K = self.to_qkv.in_features, self.to_qkv.in_features // self.num_heads
        # 1 / C and 1 / K in Scenic, their roots in Axial-DeepLab.
        power = -1.0 if self.norm_logits is None else -0.5
        nn.init.normal_(self.to_qkv.weight, std=C**power)
        nn.init.normal_(self.positions.table, std=K**power)


def channels_of(heads: Tensor) -> Tensor:
    """Join heads (N, H, L, K) to channels (N, C, L)."""
    return heads.transpose(2, 3).flatten(1, 2)
