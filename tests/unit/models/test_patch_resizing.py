"""FlexiViT's resize of the patch embedding, against its definition written out and against timm's."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from vitrine.checkpoints.libraries import import_installed
from vitrine.models.patch_resizing import resized_kernel


def written_out(kernel: torch.Tensor, new: int) -> torch.Tensor:
    """Resize by pinv(B^T) w, where row i of B^T is unit image i after the resize (big_vision's flexi/vit.py)."""
    old = kernel.shape[-1]
    rows = []
    for place in range(old * old):
        unit = torch.zeros(1, 1, old, old, dtype=torch.float64)
        unit.view(-1)[place] = 1
        rows.append(
            F.interpolate(unit, size=(new, new), mode="bilinear", align_corners=False).flatten().numpy()
        )
    inverse = np.linalg.pinv(np.stack(rows))  # (new^2, old^2)
    flat = kernel.double().flatten(2).numpy()
    return torch.from_numpy(np.einsum("no,dco->dcn", inverse, flat)).view(*kernel.shape[:2], new, new).float()


@pytest.mark.parametrize(("old", "new"), [(8, 4), (4, 8), (8, 12), (14, 16), (16, 10)])
def test_the_kernel_equals_the_pseudo_inverse_written_out(old: int, new: int) -> None:
    kernel = torch.randn(3, 2, old, old, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        resized_kernel(kernel, (new, new)), written_out(kernel, new), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("new", [12, 16, 24])
def test_larger_patches_have_exactly_the_products_of_the_patches_they_were_resized_from(new: int) -> None:
    generator = torch.Generator().manual_seed(0)
    kernel = torch.randn(5, 3, 8, 8, generator=generator, dtype=torch.float64)
    patch = torch.randn(1, 3, 8, 8, generator=generator, dtype=torch.float64)
    larger = F.interpolate(patch, size=(new, new), mode="bilinear", align_corners=False)
    products = torch.einsum("dchw,bchw->bd", resized_kernel(kernel, (new, new)).double(), larger)
    # The kernel is computed in fp32.
    torch.testing.assert_close(products, torch.einsum("dchw,bchw->bd", kernel, patch), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("old", "new"), [(16, 8), (14, 28), (16, 32)])
def test_it_equals_timms_with_the_authors_interpolation(old: int, new: int) -> None:
    embed = import_installed("timm.layers.patch_embed")
    kernel = torch.randn(4, 3, old, old, generator=torch.Generator().manual_seed(0))
    theirs = embed.resample_patch_embed(kernel, [new, new], interpolation="bilinear", antialias=False)
    torch.testing.assert_close(resized_kernel(kernel, (new, new)), theirs, rtol=1e-3, atol=1e-4)


def test_gradients_reach_the_kernel_and_the_same_size_changes_nothing() -> None:
    kernel = torch.randn(2, 3, 8, 8, requires_grad=True)
    assert resized_kernel(kernel, (8, 8)) is kernel
    resized_kernel(kernel, (12, 12)).sum().backward()
    assert kernel.grad is not None and kernel.grad.abs().sum() > 0
