"""Assignment and losses of boxes against what is written out; an image has the same loss in any micro-batch."""

import pytest
import torch
import torch.nn.functional as F

from vitrine.data.preparing.box_view import BoxBatch
from vitrine.models import ViTConfig, build
from vitrine.models.dense.boxes import giou, kept_boxes
from vitrine.models.dense.config import as_encoder
from vitrine.models.dense.detector import Detector, all_cells
from vitrine.objectives.detection import DetectionObjective
from vitrine.objectives.task_aligned import assign

VIT = as_encoder(
    ViTConfig(image_size=(32, 32), patch_size=(8, 8), width=16, depth=1, num_heads=2, mlp_width=16)
)
OBJECTIVE = DetectionObjective(width=8, num_convs=1, levels=(2.0, 1.0), cells_per_object=3)
K = 3


def random_boxes(*shape: int) -> torch.Tensor:
    corners = 28 * torch.rand(*shape, 2)
    return torch.cat([corners, corners + 2 + 14 * torch.rand(*shape, 2)], dim=-1)


def some_objects(num_images: int) -> BoxBatch:
    is_object = torch.tensor([[True, True, False, False], [True, False, False, False], [False] * 4])
    is_ignored = torch.tensor([[False, False, True, False], [False] * 4, [False, True, False, False]])
    return BoxBatch(
        random_boxes(num_images, 4), torch.randint(0, K, (num_images, 4)), is_object[:num_images],
        is_ignored[:num_images],
    )  # fmt: skip


def one_iou(one: torch.Tensor, other: torch.Tensor) -> tuple[float, float]:
    """Return IoU and generalised IoU of two boxes, side by side and corner by corner."""
    width = max(min(one[2], other[2]) - max(one[0], other[0]), 0)
    height = max(min(one[3], other[3]) - max(one[1], other[1]), 0)
    both = float(width * height)
    areas = [float((box[2] - box[0]) * (box[3] - box[1])) for box in (one, other)]
    union = sum(areas) - both
    hull = float(
        (max(one[2], other[2]) - min(one[0], other[0])) * (max(one[3], other[3]) - min(one[1], other[1]))
    )
    return both / union, both / union - (hull - union) / hull


def written_out(
    boxes: torch.Tensor, logits: torch.Tensor, cells: torch.Tensor, objects: BoxBatch, image: int
) -> float:
    """Return the loss of one image, object by object and cell by cell."""
    N = len(cells)
    present = [m for m in range(4) if objects.is_object[image, m]]

    def covers(m: int, n: int) -> bool:
        left, top, right, bottom = objects.boxes[image, m].tolist()
        x, y, side = cells[n].tolist()
        is_around = abs((left + right) / 2 - x) <= side / 2 and abs((top + bottom) / 2 - y) <= side / 2
        return (left < x < right and top < y < bottom) or is_around

    fits, places = {}, {}
    for m in present:
        label = int(objects.labels[image, m])
        for n in range(N):
            place = one_iou(boxes[image, n], objects.boxes[image, m])[0] if covers(m, n) else 0.0
            fits[m, n], places[m, n] = float(logits[image, n, label].sigmoid()) * place**6, place
    best = {m: sorted(range(N), key=lambda n: -fits[m, n])[:3] for m in present}
    owner = {}
    for n in range(N):
        wanted = [m for m in present if n in best[m] and places[m, n] > 0]
        if wanted:
            owner[n] = max(wanted, key=lambda m: places[m, n])
    total = 0.0
    for n in range(N):
        wanted = torch.zeros(K)
        if n in owner:
            m = owner[n]
            own = [cell for cell, of in owner.items() if of == m]
            quality = fits[m, n] / max(fits[m, cell] for cell in own) * max(places[m, cell] for cell in own)
            wanted[int(objects.labels[image, m])] = quality
            total += 2 * quality * (1 - one_iou(boxes[image, n], objects.boxes[image, m])[1])
        for k in range(K):
            is_free = any(
                objects.is_ignored[image, m] and objects.labels[image, m] == k and covers(m, n)
                for m in range(4)
            )
            if is_free and wanted[k] == 0:
                continue
            x = logits[image, n, k]
            entropy = F.binary_cross_entropy_with_logits(x, wanted[k])
            total += float((x.sigmoid() - wanted[k]).abs() ** 2 * entropy)
    return total


@pytest.mark.parametrize("seed", range(3))
def test_the_loss_equals_the_one_that_is_written_out(seed: int) -> None:
    torch.manual_seed(seed)
    cells = all_cells((4, 4), (2.0, 1.0), stride=8, device=torch.device("cpu"))
    boxes, logits, objects = random_boxes(3, len(cells)), torch.randn(3, len(cells), K), some_objects(3)
    losses, sums = OBJECTIVE.box_losses(boxes, logits, cells, objects, per_object=torch.ones(3))
    wanted = torch.tensor([written_out(boxes, logits, cells, objects, image) for image in range(3)])
    torch.testing.assert_close(losses, wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(sums["class_loss"] + 2 * sums["box_loss"], losses.sum())


def test_an_object_smaller_than_every_cell_is_learned_by_the_one_around_its_centre() -> None:
    cells = all_cells((4, 4), (1.0,), stride=8, device=torch.device("cpu"))
    objects = BoxBatch(
        torch.tensor([[[9.0, 1, 11, 2]]]),
        torch.tensor([[2]]),
        torch.tensor([[True]]),
        torch.tensor([[False]]),
    )
    boxes = torch.cat([cells[:, :2] - 6, cells[:, :2] + 6], dim=1)[None]
    found = assign(
        boxes, torch.zeros(1, 16, K), cells, objects, cells_per_object=3, class_power=1, place_power=6
    )
    assert found.quality.nonzero().tolist() == [[0, 1]]
    assert found.labels[0, 1] == 2


def test_an_image_has_the_same_loss_in_any_micro_batch() -> None:
    torch.manual_seed(0)
    model = build(OBJECTIVE.dense_config(VIT, num_classes=K))
    assert isinstance(model, Detector)
    module = OBJECTIVE.wrap(model, None).train()
    parts = (torch.randn(3, 3, 32, 32), *some_objects(3), torch.full((3,), 0.7))
    together, _ = OBJECTIVE.losses(module, parts)
    alone = [OBJECTIVE.losses(module, tuple(part[row : row + 1] for part in parts))[0] for row in range(3)]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-4, atol=1e-4)
    together.sum().backward()
    assert all(parameter.grad is not None for parameter in model.decoder.parameters())


def test_generalised_iou_equals_the_formula_of_two_boxes() -> None:
    torch.manual_seed(1)
    one, other = random_boxes(20), random_boxes(20)
    wanted = [one_iou(a, b)[1] for a, b in zip(one, other, strict=True)]
    torch.testing.assert_close(giou(one, other), torch.tensor(wanted), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_boxes_are_suppressed_as_one_by_one(seed: int) -> None:
    torch.manual_seed(seed)
    boxes, labels = random_boxes(2, 60), torch.randint(0, 2, (2, 60))
    kept = kept_boxes(boxes, labels, threshold=0.3)
    for image in range(2):
        chosen: list[int] = []
        for n in range(60):
            covered = (
                labels[image, n] == labels[image, m] and one_iou(boxes[image, n], boxes[image, m])[0] > 0.3
                for m in chosen
            )
            if not any(covered):
                chosen.append(n)
        assert kept[image].nonzero()[:, 0].tolist() == chosen
        assert 5 < len(chosen) < 55
