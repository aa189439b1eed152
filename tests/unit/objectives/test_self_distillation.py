"""Self-distillation: the loss written out, a teacher that is the student's average and nothing else, schedules."""

import dataclasses
import math

import pytest
import torch
from torch import Tensor, nn
from unit.objectives.test_masked_patches import small_vit

from vitrine.errors import ConfigError
from vitrine.objectives.self_distillation import (
    OUTPUTS,
    PROBABILITIES,
    SQUARES,
    SelfDistillation,
    SelfDistillationConfig,
    teacher_momentum,
    teacher_temperature,
)

SMALL = SelfDistillationConfig(num_prototypes=12, hidden_width=16, bottleneck_width=8, momentum=0.9)
FINE = torch.zeros(())


def module_of(config: SelfDistillationConfig = SMALL, **options: object) -> SelfDistillation:
    torch.manual_seed(0)
    module = SelfDistillation(small_vit(**options), config)
    with torch.no_grad():  # a teacher that is not the student, a centre that is not zero: as after some steps
        for parameter in module.teacher.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
        module.center.copy_(0.1 * torch.randn(12))
    return module.train()


def views(count: int = 3, small: int = 2) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return (
        torch.randn(count, 2, 3, 32, 32, generator=generator),
        torch.randn(count, small, 3, 16, 16, generator=generator),
    )


def output(vit: nn.Module, projection: nn.Module, image: Tensor) -> Tensor:
    """One image through backbone and projection, the last layer written out."""
    hidden = projection.mlp(vit.embed(image[None]))[0]  # type: ignore[arg-type]
    rows = projection.prototypes.weight
    return torch.stack([hidden @ row / (hidden.norm() * row.norm()) for row in rows])


@pytest.mark.parametrize("small", [2, 0])
def test_the_loss_equals_the_sum_over_pairs_written_out(small: int) -> None:
    module = module_of()
    large, few = views(small=small)
    losses, sums = module(large, few)
    for image in range(len(large)):
        seen = [*large[image], *few[image]]
        answers = [
            torch.softmax(
                (output(module.teacher.vit, module.teacher.projection, view) - module.center) / 0.04, dim=0
            )
            for view in large[image]
        ]
        guesses = [
            torch.log_softmax(output(module.vit, module.projection, view) / 0.1, dim=0) for view in seen
        ]
        pairs = [
            -(answer * guess).sum()
            for g, answer in enumerate(answers)
            for v, guess in enumerate(guesses)
            if v != g
        ]
        assert len(pairs) == 2 + 2 * small
        # Cosines to 1e-6, divided by .04: logits to some 1e-5.
        assert torch.isclose(losses[image], torch.stack(pairs).mean(), atol=1e-4)
    assert torch.isclose(sums[PROBABILITIES].sum(), torch.tensor(3.0), atol=1e-4)


def test_gradients_reach_the_student_alone_and_all_of_it_but_waiting_prototypes() -> None:
    module = module_of()
    losses, _ = module(*views())
    losses.sum().backward()
    for name, parameter in module.named_parameters():
        if name.startswith("teacher."):
            assert parameter.grad is None and not parameter.requires_grad, name
        else:
            assert parameter.grad is not None, name
    assert not module.projection.prototypes.weight.grad.any()  # it waits for a hundredth of the run
    module.update_teacher(torch.zeros(12), FINE, step=0, total_steps=1, bad=FINE)
    module.zero_grad()
    module(*views())[0].sum().backward()
    assert module.projection.prototypes.weight.grad.any()


def test_the_teacher_is_exactly_the_exponential_average_of_the_student() -> None:
    module = module_of()
    students = dict(module.named_parameters())
    expected = {name: value.detach().double() for name, value in module.teacher.named_parameters()}
    center, variance = module.center.double(), module.variance.double()
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.1)
    for step in range(5):
        losses, sums = module(*views())
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()
        mean = sums[OUTPUTS] / 3
        squares = sums[SQUARES] / 3
        module.update_teacher(mean, squares, step=step, total_steps=5, bad=FINE)
        momentum = 1 - 0.1 * (math.cos(math.pi * step / 5) + 1) / 2
        for name, value in expected.items():
            expected[name] = momentum * value + (1 - momentum) * students[name].detach().double()
        share = 0.1 if step else 1.0
        center = (1 - share) * center + share * mean.double()
        assert torch.allclose(module.center.double(), center, atol=1e-6)
        variance = 0.9 * variance + 0.1 * squares.double()
        assert torch.allclose(module.variance.double(), variance, atol=1e-6)
    for name, value in module.teacher.named_parameters():
        assert torch.allclose(value.double(), expected[name], atol=1e-6), name  # float32 against float64


def test_what_is_not_finite_does_not_get_into_the_centre() -> None:
    module = module_of()
    before, variance = module.center.clone(), module.variance.clone()
    nothing = torch.tensor(float("nan"))
    module.update_teacher(nothing.expand(12), nothing, step=0, total_steps=10, bad=torch.ones(()))
    assert torch.equal(module.center, before) and torch.equal(module.variance, variance)


def test_outputs_that_lie_together_are_drawn_apart_to_the_deviation_of_independent_directions() -> None:
    module = module_of()
    assert float(module.gain()) == 1.0  # begins at d^-1 and never shrinks what lies further apart
    module.variance.fill_(1.0)
    assert float(module.gain()) == 1.0
    module.variance.fill_(0.25 / 8)
    assert float(module.gain()) == pytest.approx(2.0)
    module.variance.fill_(0.0)
    assert float(module.gain()) == pytest.approx(100.0)
    assert float(module_of(dataclasses.replace(SMALL, scales=False)).gain()) == 1.0


def test_the_loss_reads_the_gain() -> None:
    module = module_of()
    before, _ = module(*views())
    module.variance.fill_(0.25 / 8)
    module.temperature.mul_(2)
    assert torch.allclose(module(*views())[0], before, atol=1e-4)


def test_schedules_begin_and_end_where_they_should() -> None:
    assert teacher_momentum(0, total_steps=10, first=0.9) == pytest.approx(0.9)
    assert teacher_momentum(5, total_steps=10, first=0.9) == pytest.approx(0.95)
    assert teacher_momentum(10, total_steps=10, first=0.9) == 1.0
    warm = [teacher_temperature(step, total_steps=100, config=SMALL) for step in (0, 5, 10, 99)]
    assert warm == pytest.approx([0.04, 0.055, 0.07, 0.07])
    module = module_of()
    assert float(module.temperature) == pytest.approx(0.04)
    module.update_teacher(torch.zeros(12), FINE, step=4, total_steps=100, bad=FINE)
    assert float(module.temperature) == pytest.approx(0.055) and float(module.prototype_rate) == 1


def test_the_teacher_never_drops_anything_and_answers_with_its_representation() -> None:
    module = module_of(dropout=0.5)
    assert module.vit.training and not module.teacher.training
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(module(images), module.teacher.vit.embed(images))


def test_lengths_of_prototypes_do_not_count() -> None:
    module = module_of()
    before, _ = module(*views())
    with torch.no_grad():
        module.projection.prototypes.weight.mul_(torch.rand(12, 1) + 0.5)
    assert torch.allclose(module(*views())[0], before, atol=1e-4)


def test_outputs_stay_in_float32_under_bf16() -> None:
    module = module_of()
    with torch.autocast("cpu", torch.bfloat16):
        losses, sums = module(*views())
    assert losses.dtype == torch.float32 and sums[OUTPUTS].dtype == torch.float32
    exact, _ = module(*views())
    assert torch.allclose(losses, exact, rtol=0.1)  # the backbone in bf16: eight bits of mantissa


def test_a_head_and_nonsense_are_refused() -> None:
    with pytest.raises(ConfigError, match="without a head"):
        SelfDistillation(small_vit(num_classes=3), SMALL)
    with pytest.raises(ConfigError, match=r"^student_temperature .*above 0, got 0"):
        SelfDistillationConfig(student_temperature=0)
    with pytest.raises(ConfigError, match=r"^momentum .*got 1\.5"):
        SelfDistillationConfig(momentum=1.5)
