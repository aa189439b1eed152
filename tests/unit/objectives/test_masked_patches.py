"""Masked patch prediction (appendix B.1.2): rates, corruption, loss and gradients."""

import math

import pytest
import torch
from torch import Tensor
from unit.models.small import SHAPE

from vitrine.errors import ConfigError
from vitrine.models import ViT, create_model
from vitrine.objectives.masked_patches import MaskedPatches, MaskedPatchesObjective, corrupt, draw_corruption
from vitrine.objectives.patch_targets import TARGETS, Target, patch_targets

PAPER = MaskedPatchesObjective()


def small_vit(**options: object) -> ViT:
    torch.manual_seed(0)
    given = {"name": "ViT", "image_size": 32, "num_classes": None, **SHAPE, **options}
    vit = create_model(**given)  # type: ignore[arg-type]
    assert isinstance(vit, ViT)
    return vit


def with_a_head(vit: ViT, target: Target = "mean-color") -> MaskedPatches:
    """Make the module with a head that is not zero, as after the first steps."""
    module = MaskedPatches(vit, MaskedPatchesObjective(target=target))
    torch.nn.init.normal_(module.predict.weight, std=0.1)
    torch.nn.init.normal_(module.predict.bias, std=0.1)
    return module


def pixels(count: int = 4, size: int = 32) -> Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randint(0, 256, (count, 3, size, size), generator=generator).float()


def within_binomial_bounds(count: int, trials: int, share: float) -> bool:
    """Whether a count lies within four deviations: wrong once in sixteen thousand draws, and the seed is fixed."""
    return abs(count - trials * share) < 4 * math.sqrt(trials * share * (1 - share))


def test_exactly_half_of_the_patches_of_every_image_are_corrupted_each_once() -> None:
    torch.manual_seed(0)
    found = draw_corruption(300, 49, config=PAPER)
    assert found.positions.shape == (300, 24)  # 24.5, rounded to even
    assert all(len(set(row)) == 24 for row in found.positions.tolist())


def test_eighty_ten_and_ten_percent_are_masked_replaced_and_kept() -> None:
    torch.manual_seed(1)
    found = draw_corruption(2000, 64, config=PAPER)
    trials = found.positions.numel()
    masked, replaced = int(found.is_masked.sum()), int(found.is_replaced.sum())
    assert trials == 64_000 and not (found.is_masked & found.is_replaced).any()
    assert within_binomial_bounds(masked, trials, 0.8)
    assert within_binomial_bounds(replaced, trials, 0.1)
    assert within_binomial_bounds(trials - masked - replaced, trials, 0.1)


def test_every_position_is_corrupted_equally_often() -> None:
    torch.manual_seed(2)
    counts = torch.bincount(draw_corruption(4000, 16, config=PAPER).positions.flatten(), minlength=16)
    assert all(within_binomial_bounds(count, 4000, 0.5) for count in counts.tolist())


def test_another_patch_is_never_the_patch_itself_and_every_other_is_as_likely() -> None:
    torch.manual_seed(3)
    found = draw_corruption(4000, 6, config=PAPER)
    assert not (found.others == found.positions).any()
    steps = ((found.others - found.positions) % 6).flatten()
    counts = torch.bincount(steps, minlength=6).tolist()
    assert counts[0] == 0
    assert all(within_binomial_bounds(count, steps.numel(), 1 / 5) for count in counts[1:])


def test_corruption_equals_a_loop_over_patches() -> None:
    torch.manual_seed(4)
    patches, mask = torch.randn(5, 20, 8), torch.randn(1, 1, 8)
    found = draw_corruption(5, 20, config=MaskedPatchesObjective(masked=0.4, replaced=0.3))
    expected = patches.clone()
    for image in range(5):
        for number, position in enumerate(found.positions[image].tolist()):
            if found.is_masked[image, number]:
                expected[image, position] = mask[0, 0]
            elif found.is_replaced[image, number]:
                expected[image, position] = patches[image, found.others[image, number]]
    assert found.is_masked.any() and found.is_replaced.any()
    assert torch.equal(corrupt(patches, found, mask_embedding=mask), expected)


def test_patches_that_are_kept_or_not_corrupted_do_not_change() -> None:
    torch.manual_seed(5)
    patches = torch.randn(6, 20, 8)
    found = draw_corruption(6, 20, config=PAPER)
    after = corrupt(patches, found, mask_embedding=torch.zeros(1, 1, 8))
    changed = (after != patches).any(dim=2)
    expected = torch.zeros(6, 20, dtype=torch.bool)
    expected.scatter_(1, found.positions, found.is_masked | found.is_replaced)
    assert torch.equal(changed, expected)


def written_out_loss(module: MaskedPatches, images: Tensor, targets: Tensor, *, seed: int) -> list[float]:
    """Say the whole of it again in float64 and, behind the encoder, in single numbers."""
    vit, target = module.vit, module.config.target
    patches, _ = vit.embed_patches(images)
    torch.manual_seed(seed)
    found = draw_corruption(*patches.shape[:2], config=module.config)
    rows = []
    for image in range(len(images)):
        row = list(patches[image])
        for number, position in enumerate(found.positions[image].tolist()):
            if found.is_masked[image, number]:
                row[position] = module.mask_embedding[0, 0]
            elif found.is_replaced[image, number]:
                row[position] = patches[image, found.others[image, number]]
        rows.append(torch.stack(row))
    tokens = torch.cat([vit.class_token.expand(len(images), 1, -1), torch.stack(rows)], dim=1)
    tokens = tokens + vit.positions[0].table
    for block in vit.blocks:
        tokens = block(tokens)
    outputs = module.predict(vit.norm(tokens))[:, 1:]
    losses = []
    for image in range(len(images)):
        terms: list[float] = []
        for position in found.positions[image].tolist():
            said, wanted = outputs[image, position], targets[image, position]
            if target == "pixels":
                terms += ((said - wanted) ** 2).tolist()
                continue
            cells = [int(wanted)] if target == "mean-color" else wanted.tolist()
            for cell, label in enumerate(cells):
                logits = said[512 * cell : 512 * (cell + 1)]
                terms.append(float(torch.log(torch.exp(logits).sum()) - logits[label]))
        losses.append(sum(terms) / len(terms))
    return losses


@pytest.mark.parametrize("target", TARGETS)
def test_the_loss_equals_the_written_out_one(target: Target) -> None:
    module = with_a_head(small_vit(), target).double()
    images = (pixels() / 127.5 - 1).double()
    targets = patch_targets(pixels(), (8, 8), target=target)
    torch.manual_seed(11)
    losses, sums = module(images, targets)
    with torch.no_grad():
        expected = written_out_loss(module, images, targets, seed=11)
    assert losses.shape == (4,) and ("patch_accuracy" in sums) == (target != "pixels")
    assert losses.tolist() == pytest.approx(expected, rel=1e-5)  # the loss itself is worked out in float32


def test_a_fresh_head_finds_every_colour_equally_likely() -> None:
    module = MaskedPatches(small_vit(), PAPER)
    losses, _ = module(pixels() / 127.5 - 1, patch_targets(pixels(), (8, 8), target="mean-color"))
    assert losses.tolist() == pytest.approx([math.log(512)] * 4, rel=1e-5)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("pooling", ["class_token", "average"])
def test_gradients_reach_every_parameter(target: Target, pooling: str) -> None:
    module = with_a_head(small_vit(pooling=pooling), target)
    losses, _ = module(pixels() / 127.5 - 1, patch_targets(pixels(), (8, 8), target=target))
    losses.sum().backward()
    without = [n for n, p in module.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert without == []


def test_targets_of_patches_that_are_not_corrupted_do_not_matter() -> None:
    module, images = with_a_head(small_vit()), pixels() / 127.5 - 1
    targets = patch_targets(pixels(), (8, 8), target="mean-color")
    torch.manual_seed(6)
    positions = module.reconstruct(images)[1].positions
    others = (targets + 1) % 512
    mixed = others.scatter(1, positions, targets.gather(1, positions))
    losses = []
    for given in (targets, mixed, others):
        torch.manual_seed(6)
        losses.append(module(images, given)[0])
    assert torch.equal(losses[0], losses[1]) and not torch.equal(losses[0], losses[2])


def test_without_targets_the_answer_is_that_of_the_bare_model() -> None:
    vit = small_vit()
    images = pixels() / 127.5 - 1
    assert torch.equal(MaskedPatches(vit, PAPER)(images), vit(images))


def test_a_hybrid_predicts_what_lies_under_each_of_its_tokens() -> None:
    vit = create_model("R26+ViT-Ti/16", image_size=64, num_classes=None, depth=2)
    assert isinstance(vit, ViT)
    side = vit.config.token_stride
    targets = patch_targets(pixels(2, 64), side, target="mean-color")
    losses, _ = MaskedPatches(vit, PAPER)(pixels(2, 64) / 127.5 - 1, targets)
    assert losses.tolist() == pytest.approx([math.log(512)] * 2, rel=1e-5)


def test_what_cannot_be_trained_or_drawn_is_refused() -> None:
    with pytest.raises(ConfigError, match="attention pooling is not trained"):
        MaskedPatches(small_vit(pooling="attention"), PAPER)
    with pytest.raises(ConfigError, match="must have no head"):
        MaskedPatches(small_vit(num_classes=5), PAPER)
    with pytest.raises(ConfigError, match="at least 2 patches"):
        draw_corruption(1, 1, config=PAPER)
    with pytest.raises(ConfigError, match=r"^target ") as refused:
        MaskedPatchesObjective(target="mean-colour")  # type: ignore[arg-type]
    assert refused.value.suggestions == ("mean-color",)
    with pytest.raises(ConfigError, match=r"^masked and replaced.*0\.8 and 0\.3"):
        MaskedPatchesObjective(replaced=0.3)
    with pytest.raises(ConfigError, match="corrupted must be above 0"):
        MaskedPatchesObjective(corrupted=0)
