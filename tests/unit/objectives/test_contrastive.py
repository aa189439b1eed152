"""Contrastive learning: both losses written out, an average that has no gradients, many processes like one."""

import math
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from unit.objectives.test_masked_patches import small_vit

import vitrine
from vitrine.errors import ConfigError
from vitrine.objectives import MocoObjective, SimclrObjective
from vitrine.objectives.contrast import MATCHED, Contrast, ContrastConfig, MomentumContrast, SimpleContrast
from vitrine.recipes.options import chosen_recipe
from vitrine.training.config import TrainingConfig
from vitrine.training.optimizer import freeze
from vitrine.training.step import StepState, forward_backward

SMALL = ContrastConfig(hidden_width=16, output_width=8)


def views(count: int = 5) -> Tensor:
    return torch.randn(count, 2, 3, 32, 32, generator=torch.Generator().manual_seed(5))


def momentum_contrast() -> MomentumContrast:
    torch.manual_seed(0)
    module = MomentumContrast(small_vit(), SMALL, momentum=0.9)
    with torch.no_grad():  # an average that is not the student, as after some steps
        for parameter in module.teacher.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return module.double().train()


def simple_contrast() -> SimpleContrast:
    torch.manual_seed(0)
    return SimpleContrast(small_vit(), SMALL).double().train()


def through(projection: nn.Module, rows: Tensor) -> Tensor:
    """An MLP with torch's own batch normalisation."""
    for layer in projection:
        if isinstance(layer, nn.Linear):
            rows = rows @ layer.weight.T
        elif isinstance(layer, nn.ReLU):
            rows = rows.clamp_min(0)
        else:
            weight, bias = layer.weight, layer.bias
            rows = nn.functional.batch_norm(rows, None, None, weight, bias, training=True)
    return rows


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return a @ b / (a.norm() * b.norm())


def test_momentum_contrast_equals_its_paper_written_out() -> None:
    module, images = momentum_contrast(), views().double()
    losses, sums = module(images)
    student = [through(module.projection, module.vit.embed(images[:, view])) for view in (0, 1)]
    guesses = [through(module.predictor, rows) for rows in student]
    answers = [
        through(module.teacher.projection, module.teacher.vit.embed(images[:, view])) for view in (0, 1)
    ]
    for image in range(5):
        expected = 0.0
        for view in (0, 1):
            scores = torch.stack([cosine(guesses[view][image], key) / 0.2 for key in answers[1 - view]])
            expected += 2 * 0.2 * -torch.log_softmax(scores, dim=0)[image].item()
        assert losses[image].item() == pytest.approx(expected, abs=1e-9)
    assert 0 <= float(sums[MATCHED]) <= 5


def test_simple_contrast_equals_its_paper_written_out() -> None:
    module, images = simple_contrast(), views().double()
    losses, _ = module(images)
    stacked = torch.cat([module.vit.embed(images[:, 0]), module.vit.embed(images[:, 1])])
    outputs = through(module.projection, stacked)
    terms = []
    for row in range(10):
        own = (row + 5) % 10
        scores = [
            cosine(outputs[row], outputs[other]).item() / 0.2 if other != row else -math.inf
            for other in range(10)
        ]
        terms.append(-torch.log_softmax(torch.tensor(scores, dtype=torch.float64), dim=0)[own].item())
    assert losses.tolist() == pytest.approx([(terms[i] + terms[i + 5]) / 2 for i in range(5)], abs=1e-9)
    assert losses.mean().item() == pytest.approx(sum(terms) / 10, abs=1e-9)  # 1 / 2N of all terms


def test_a_view_that_is_found_at_once_has_the_least_loss() -> None:
    module = SimpleContrast(small_vit(), SMALL).train()
    same = views()[:, :1].expand(-1, 2, -1, -1, -1).contiguous()
    losses, sums = module(same)
    assert float(sums[MATCHED]) == 5
    assert losses.mean() < module(views())[0].mean()


@pytest.mark.parametrize("make", [momentum_contrast, simple_contrast])
def test_gradients_reach_all_but_the_patches_and_the_average(make: type[Contrast]) -> None:
    module = make().float()
    freeze(module, TrainingConfig())  # as the loop does
    module(views())[0].sum().backward()
    for name, parameter in module.named_parameters():
        still = name.startswith(("teacher.", "vit.patch_projection."))
        assert (parameter.grad is None) == still, name


def test_the_average_follows_the_student() -> None:
    module = momentum_contrast()
    before = {name: value.clone() for name, value in module.teacher.named_parameters()}
    student = dict(module.named_parameters())
    module.update_teacher(step=5, total_steps=10)  # half of the way from .9 to 1
    for name, value in module.teacher.named_parameters():
        assert torch.allclose(value, 0.95 * before[name] + 0.05 * student[name]), name


def test_images_alone_give_the_representation() -> None:
    module, images = simple_contrast().float(), torch.randn(2, 3, 32, 32)
    assert torch.equal(module(images), module.vit.embed(images))


def test_the_batch_is_never_divided() -> None:
    state = StepState(micro_batch=4, bad=torch.zeros(()), divides_batch=False)

    def too_large(module: nn.Module, parts: tuple[Tensor, ...]) -> tuple[Tensor, dict[str, Tensor]]:
        raise torch.OutOfMemoryError("no memory")

    with pytest.raises(vitrine.VitrineError, match="memory with 4 images") as caught:
        forward_backward(
            nn.Linear(1, 1), (torch.zeros(4, 1), torch.zeros(4)), loss_of=too_large, state=state,
            autocast=torch.no_grad, processes=vitrine.runtime.processes.Processes(),
        )  # fmt: skip
    assert state.micro_batch == 4
    assert caught.value.advice[0].option == "batch_size"
    with pytest.raises(ConfigError, match=r"^training\.micro_batch=8 .*simclr; .*=null$"):
        chosen_recipe("demo", objective="simclr", settings=["training.micro_batch=8"])


def test_nonsense_is_refused() -> None:
    with pytest.raises(ConfigError, match="two large views"):
        SimclrObjective(multi_crop=vitrine.data.augmenting.multi_crop.MultiCrop(num_local=2))
    with pytest.raises(ConfigError, match=r"^temperature .*above 0"):
        MocoObjective(temperature=0.0)
    with pytest.raises(ConfigError, match=r"^momentum.*0 to 1, got 2.0"):
        MocoObjective(momentum=2.0)


def losses_of_share(rank: int, folder: str) -> None:
    """Compute the loss of half the images in one of two processes, and the gradient that all exchange."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    try:
        module = momentum_contrast()
        losses, _ = module(views(6).double()[rank * 3 : rank * 3 + 3])
        losses.mean().backward()
        gradients = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
        for gradient in gradients.values():
            dist.all_reduce(gradient)
            gradient.div_(2)
        torch.save((losses.detach(), gradients), f"{folder}/{rank}.pt")
    finally:
        dist.destroy_process_group()


def test_two_processes_learn_what_one_learns(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(losses_of_share, args=(str(tmp_path),), nprocs=2)
    module = momentum_contrast()
    losses, _ = module(views(6).double())
    losses.mean().backward()
    parts = [torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1)]
    assert torch.allclose(torch.cat([part[0] for part in parts]), losses, atol=1e-9)
    for name, parameter in module.named_parameters():
        if parameter.grad is not None:
            assert torch.allclose(parts[0][1][name], parameter.grad, atol=1e-9), name
