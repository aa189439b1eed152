"""Weight standardisation (arXiv:1903.10520): a kernel of zero mean and unit variance for every output channel."""

import torch.nn.functional as F
from torch import Tensor, nn

NUM_GROUPS = 32  # groups of every group norm in BiT and the hybrids


class StandardisedConv2d(nn.Conv2d):
    """Convolve with (w - mean) / (sqrt(var + variance_eps) + std_eps), over input channels, rows and columns.

    Two epsilons because the references differ: the hybrids add 1e-5 to the deviation, BiT 1e-10 to the variance.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        kernel_size: int,
        stride: int = 1,
        padding: int = 0,
        std_eps: float,
        variance_eps: float,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride=stride, padding=padding, bias=False)
        self.std_eps, self.variance_eps = std_eps, variance_eps

    def standardised_weight(self) -> Tensor:
        """Return the standardised kernel (out, in, rows, columns)."""
        # The sums need more than half precision.
        weight = self.weight.float() if self.weight.dtype.itemsize < 4 else self.weight
        centred = weight - weight.mean(dim=(1, 2, 3), keepdim=True)
        variance = centred.square().mean(dim=(1, 2, 3), keepdim=True)
        return (centred / ((variance + self.variance_eps).sqrt() + self.std_eps)).to(self.weight.dtype)

    def forward(self, hidden: Tensor) -> Tensor:
        """Convolve (B, in, rows, columns) with the standardised kernel."""
        return F.conv2d(hidden, self.standardised_weight(), None, self.stride, self.padding)
