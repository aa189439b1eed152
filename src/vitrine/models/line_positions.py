"""Learned vectors for the offsets along a line: of a sequence, or of a row or column of a map.

Shapes: T tokens, D channels.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Relative1D(nn.Module):
    """One learned vector for each offset p_q - p_k along the sequence, used as an extra key.

    Tokens before the patches count as positions too. The paper gives no rule for another grid; the offsets are
    resampled along their line, the ends aligned, so that offset 0 stays offset 0.
    """

    def __init__(self, *, num_tokens: int, width: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(2 * num_tokens - 1, width))

    def forward(self, num_tokens: int) -> Tensor:
        """Return the keys for every offset of a sequence, -(T - 1) first: (2 T - 1, D)."""
        count = 2 * num_tokens - 1
        return self.table if self.table.shape[0] == count else stretched(self.table, count)


def stretched(table: Tensor, count: int) -> Tensor:
    """Resample a table of offsets (odd number, D) to `count` of them, the ends and offset 0 aligned."""
    if count == 1:  # with its ends aligned, a single sample would be the first offset
        return table[table.shape[0] // 2][None].contiguous()
    line = table.T[None].float()  # (1, D, offsets)
    line = F.interpolate(line, size=count, mode="linear", align_corners=True)
    return line[0].T.to(table.dtype).contiguous()
