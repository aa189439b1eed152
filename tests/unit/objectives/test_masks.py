"""Losses of masks against what is written out: pixels by cross-entropy, queries by matching, points and dice."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from vitrine.models import ViTConfig, build
from vitrine.models.dense.config import as_encoder
from vitrine.models.dense.eomt import QueryAnswers
from vitrine.models.dropout import image_keys, randomness_of
from vitrine.objectives.instance_segmentation import InstanceObjective
from vitrine.objectives.mask_classification import MaskClassificationObjective, targets_in
from vitrine.objectives.segmentation import pixel_losses

VIT = as_encoder(
    ViTConfig(image_size=(16, 16), patch_size=(8, 8), width=16, depth=2, num_heads=2, mlp_width=16)
)
# All points of the loss are candidates at once where the mask is as coarse as its target: 4 x 4 cells.
OBJECTIVE = MaskClassificationObjective(num_queries=4, num_blocks=1, num_points=8)


def test_pixels_are_averaged_per_image_without_those_that_are_ignored() -> None:
    scores, masks = torch.randn(2, 3, 4, 4), torch.randint(0, 3, (2, 8, 8))
    masks[0, :3], masks[1] = 255, 255
    losses, sums = pixel_losses(scores, masks)
    large = F.interpolate(scores, size=(8, 8), mode="bilinear", align_corners=False)
    known = masks[0] != 255
    wanted = F.cross_entropy(large[0].permute(1, 2, 0)[known], masks[0][known])
    torch.testing.assert_close(losses, torch.stack([wanted, torch.tensor(0.0)]))
    right = (large[0].argmax(dim=0)[known] == masks[0][known]).float().mean()
    torch.testing.assert_close(sums["pixel_accuracy"], right)


def written_out(answers: QueryAnswers, masks: torch.Tensor) -> torch.Tensor:
    """Return the loss of a batch, query by query and target by target; points are those of the answers."""
    optimize = pytest.importorskip("scipy.optimize")
    P = OBJECTIVE.num_points
    points = answers.points
    total = torch.zeros(())
    classes_of = [[k for k in range(3) if (mask == k).any()] for mask in masks]
    num_targets = sum(map(len, classes_of))

    def losses(
        logits: torch.Tensor, truth: torch.Tensor, known: torch.Tensor, where: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x, y, w = (sampled(plane, where) for plane in (logits, truth, known))
        entropy = F.binary_cross_entropy_with_logits(x, y, weight=w, reduction="sum") / max(w.sum(), 1)
        p = x.sigmoid() * w
        return entropy, 1 - (2 * (p * y).sum() + 1) / (p.sum() + (w * y).sum() + 1)

    def sampled(plane: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
        return F.grid_sample(plane[None, None].float(), 2 * where[None, None] - 1, align_corners=False)[
            0, 0, 0
        ]

    weight = num_targets + 0.1 * (len(masks) * 4 - num_targets)
    for step in range(len(answers.masks)):
        for image, present in enumerate(classes_of):
            logits, classes = answers.masks[step, image], answers.classes[step, image]
            shared, rest = points[image, :P], points[image, P:]
            cost = np.zeros((4, len(present)))
            for q in range(4):
                for t, k in enumerate(present):
                    entropy, dice = losses(logits[q], masks[image] == k, masks[image] != 255, shared)
                    cost[q, t] = 5 * entropy + 5 * dice - 2 * classes[q].softmax(dim=0)[k]
            rows, columns = optimize.linear_sum_assignment(cost)
            wanted = torch.full((4,), 3)
            for q, t in zip(rows, columns, strict=True):
                wanted[q] = present[t]
                candidates, extra = rest[: 3 * P], rest[3 * P :]
                known = masks[image] != 255
                certain = sampled(logits[q], candidates).abs()
                certain[sampled(known, candidates) == 0] = torch.inf
                chosen = torch.cat([candidates[certain.argsort()[: int(0.75 * P)]], extra])
                entropy, dice = losses(logits[q], masks[image] == present[t], known, chosen)
                total = total + 5 * (entropy + dice) / num_targets
            entropies = F.cross_entropy(classes, wanted, reduction="none")
            total = total + 2 * (entropies * torch.where(wanted == 3, 0.1, 1.0)).sum() / weight
    return total


def test_the_loss_of_queries_equals_the_one_that_is_written_out() -> None:
    generator = torch.Generator().manual_seed(0)
    B, P = 3, OBJECTIVE.num_points
    masks = torch.zeros(B, 12, 12, dtype=torch.int64)
    masks[0, 2:9, 3:8], masks[1, :6], masks[1, 6:8], masks[2] = 1, 2, 255, 255
    answers = QueryAnswers(
        torch.randn(2, B, 4, 6, 6, generator=generator),
        torch.randn(2, B, 4, 4, generator=generator),
        torch.rand(B, P + 3 * P + OBJECTIVE.num_random, 2, generator=generator),
    )
    targets = targets_in(masks, num_classes=3)
    assert targets.counts == (2, 2, 0)
    maps = (masks[targets.image] == targets.label[:, None, None]).float()
    num_targets = 4
    weight = num_targets + 0.1 * (B * 4 - num_targets)
    losses, _ = OBJECTIVE.set_losses(
        answers,
        targets,
        maps,
        (masks != 255).float(),
        per_target=torch.full((B,), B / num_targets),
        per_query=torch.full((B,), B / weight),
    )
    torch.testing.assert_close(losses.mean(), written_out(answers, masks), rtol=1e-4, atol=1e-4)


def test_a_batch_without_a_labelled_pixel_has_the_loss_of_no_object_alone() -> None:
    B, P = 2, OBJECTIVE.num_points
    masks = torch.full((B, 12, 12), 255)
    answers = QueryAnswers(torch.randn(2, B, 4, 6, 6), torch.randn(2, B, 4, 4), torch.rand(B, 5 * P, 2))
    targets = targets_in(masks, num_classes=3)
    maps, known = torch.zeros(0, 12, 12), torch.zeros(B, 12, 12)
    ones = torch.ones(B)
    losses, _ = OBJECTIVE.set_losses(answers, targets, maps, known, per_target=ones, per_query=ones)
    entropies = -answers.classes.log_softmax(dim=-1)[..., 3]  # (S, B, Q)
    torch.testing.assert_close(losses, 2 * 0.1 * entropies.sum(dim=(0, 2)))


def test_an_image_has_the_same_loss_in_any_micro_batch() -> None:
    """Points and masked queries are drawn by the image's key, not by its place in a batch."""
    torch.manual_seed(0)
    module = OBJECTIVE.wrap(build(OBJECTIVE.dense_config(VIT, num_classes=3)), None).train()
    images, masks = torch.randn(4, 3, 16, 16), torch.randint(0, 3, (4, 16, 16))
    ones = torch.ones(4)
    parts = (images, masks, 0.3 * ones, ones, ones)
    keys = image_keys(0, first=0, count=4, device=torch.device("cpu"))
    with randomness_of(keys):
        together, _ = OBJECTIVE.losses(module, parts)
    alone = []
    for row in range(4):
        with randomness_of(keys[row : row + 1]):
            alone.append(OBJECTIVE.losses(module, tuple(part[row : row + 1] for part in parts))[0])
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-4, atol=1e-4)


def test_pixels_that_count_nowhere_have_no_influence_on_the_loss() -> None:
    """What is predicted there, and what the target says there, changes nothing."""
    generator = torch.Generator().manual_seed(1)
    masks = torch.zeros(1, 12, 12, dtype=torch.int64)
    masks[0, :, :6], masks[0, :, 6:] = 1, 255
    answers = QueryAnswers(
        torch.randn(2, 1, 4, 12, 12, generator=generator),
        torch.randn(2, 1, 4, 4, generator=generator),
        torch.rand(1, 200, 2, generator=generator),
    )
    # Points next to the border see both sides.
    points = answers.points
    points[..., 0] = torch.where((points[..., 0] - 0.5).abs() < 0.09, 0.2, points[..., 0])
    objective = MaskClassificationObjective(num_queries=4, num_blocks=1, num_points=40)
    targets, one = targets_in(masks, num_classes=3), torch.ones(1)

    def loss(logits: torch.Tensor, maps: torch.Tensor) -> torch.Tensor:
        known = (masks != 255).float()
        moved = answers._replace(masks=logits)
        return objective.set_losses(moved, targets, maps, known, per_target=one, per_query=one)[0]

    maps = (masks == 1).float()
    changed, others = answers.masks.clone(), maps.clone()
    changed[..., 6:], others[..., 6:] = 5.0, 1.0
    torch.testing.assert_close(loss(changed, others), loss(answers.masks, maps))
    changed[..., :6] += 1
    assert not torch.allclose(loss(changed, maps), loss(answers.masks, maps))


def test_objects_of_one_class_are_targets_of_their_own() -> None:
    torch.manual_seed(0)
    objective = InstanceObjective(num_queries=6, num_blocks=1, num_points=8, most_objects=5)
    labels = torch.full((2, 5), -1)
    labels[0, :3], labels[1, :1] = torch.tensor([2, 2, 0]), 1
    planes = torch.randint(0, 256, (2, 1, 16, 16), dtype=torch.uint8)
    known = torch.ones(2, 16, 16, dtype=torch.bool)
    targets, maps, _ = objective.targets_of([labels, planes, known], num_classes=3)
    assert (targets.image.tolist(), targets.label.tolist()) == ([0, 0, 0, 1], [2, 2, 0, 1])
    assert targets.counts == (3, 1)
    for row, (image, bit) in enumerate([(0, 0), (0, 1), (0, 2), (1, 0)]):
        assert (maps[row] == (planes[image, 0] >> bit & 1)).all()
    module = objective.wrap(build(objective.dense_config(VIT, num_classes=3)), None).train()
    images, ones = torch.randn(2, 3, 16, 16), torch.ones(2)
    parts = (images, labels, planes, known, 0.3 * ones, ones, ones)
    keys = image_keys(0, first=0, count=2, device=torch.device("cpu"))
    with randomness_of(keys):
        together, _ = objective.losses(module, parts)
    with randomness_of(keys[1:]):
        alone, _ = objective.losses(module, tuple(part[1:] for part in parts))
    torch.testing.assert_close(together[1:], alone, rtol=1e-4, atol=1e-4)
    masks, scores = module(images)
    assert (masks.shape[:2], scores.shape) == ((2, 6), (2, 6, 3))
