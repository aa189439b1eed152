"""Distillation: losses written out, gradients to the student alone, grids that agree, the distillation token."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from unit.models.small import small_model
from unit.objectives.test_masked_patches import small_vit

from vitrine.data.preparing.preprocess import Preprocess
from vitrine.errors import ConfigError
from vitrine.objectives import DistillationObjective
from vitrine.objectives.distillation import (
    DistillationConfig,
    FeatureDistillation,
    LogitsDistillation,
    on_grid,
    teacher_features,
    teacher_loss,
    teacher_width,
)
from vitrine.objectives.teacher import Teacher
from vitrine.runtime.processes import Processes


def images(count: int = 3, size: int = 32) -> Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(2))


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(4))


@pytest.mark.parametrize("pooling", ["class_token", "average"])
def test_the_loss_of_features_equals_the_cosines_written_out(pooling: str) -> None:
    vit = small_vit(pooling=pooling)
    module = FeatureDistillation(
        vit, DistillationConfig(class_weight=0.7, patch_weight=2.0), teacher_width=20
    )
    summary, patches = numbers(3, 20), numbers(3, 16, 20)
    losses, sums = module(images(), summary, patches)
    found = vit.features(images())
    for image in range(3):
        told = module.tell_summary(found["pooled"][image])
        loss = 0.7 * (1 - told @ summary[image] / (told.norm() * summary[image].norm()))
        distances = []
        for patch in range(16):
            told = module.tell_patches(found["patch_tokens"][image, patch])
            wanted = patches[image, patch]
            distances.append(1 - told @ wanted / (told.norm() * wanted.norm()))
        loss = loss + 2.0 * torch.stack(distances).mean()
        assert torch.isclose(losses[image], loss, atol=1e-5)
    assert set(sums) == {"summary_cosine", "patch_cosine"}
    losses.sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())
    torch.testing.assert_close(module(images()), found["representation"], rtol=0, atol=4e-6)


def test_what_has_no_weight_has_no_layer() -> None:
    vit = small_vit()
    module = FeatureDistillation(vit, DistillationConfig(patch_weight=0), teacher_width=20)
    losses, sums = module(images(), numbers(3, 20), numbers(3, 0, 20))
    assert module.tell_patches is None and set(sums) == {"summary_cosine"} and losses.shape == (3,)


def test_soft_and_hard_answers_equal_the_formulas() -> None:
    logits, told, T = numbers(4, 5), 3 * numbers(4, 5).flip(0), 3.0
    soft = teacher_loss(logits, told, config=DistillationConfig(learns="soft-logits", temperature=T))
    hard = teacher_loss(logits, told, config=DistillationConfig(learns="hard-logits"))
    for image in range(4):
        p, q = torch.softmax(told[image] / T, 0), torch.softmax(logits[image] / T, 0)
        assert torch.isclose(soft[image], T**2 * (p * (p / q).log()).sum(), atol=1e-5)
        assert torch.isclose(
            hard[image], -torch.softmax(logits[image], 0)[told[image].argmax()].log(), atol=1e-5
        )
    same = teacher_loss(told, told, config=DistillationConfig(learns="soft-logits"))
    assert torch.allclose(same, torch.zeros(4), atol=1e-5)


def test_with_a_distillation_token_each_head_has_its_own_teacher_and_their_mean_is_the_answer() -> None:
    vit = small_vit(num_classes=5, has_distillation_token=True)
    torch.nn.init.normal_(vit.head.weight)
    torch.nn.init.normal_(vit.distillation_head.weight)
    module = LogitsDistillation(vit, DistillationConfig(learns="hard-logits", label_share=0.5))
    targets, told = torch.tensor([0, 3, 4]), numbers(3, 5)
    losses, sums = module(images(), targets, told)
    found = vit.features(images())
    by_labels = vit.head(found["class_token"])
    by_teacher = vit.distillation_head(found["distillation_token"])
    wanted = (
        F.cross_entropy(by_labels, targets, reduction="none")
        + F.cross_entropy(by_teacher, told.argmax(1), reduction="none")
    ) / 2
    assert torch.allclose(losses, wanted, atol=1e-5)
    answer = module(images())
    assert torch.allclose(answer, (by_labels + by_teacher) / 2, atol=1e-6)
    assert int(sums["agreement"]) == int((answer.argmax(1) == told.argmax(1)).sum())
    losses.sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


@pytest.mark.parametrize("share", [0.0, 0.9])
def test_with_one_head_it_learns_from_both(share: float) -> None:
    vit = small_vit(num_classes=5)
    torch.nn.init.normal_(vit.head.weight)
    config = DistillationConfig(learns="soft-logits", label_share=share)
    targets, told = torch.tensor([0, 3, 4]), numbers(3, 5)
    losses, _ = LogitsDistillation(vit, config)(images(), targets, told)
    logits = vit(images())
    wanted = (1 - share) * teacher_loss(logits, told, config=config)
    wanted = wanted + share * F.cross_entropy(logits, targets, reduction="none")
    assert torch.allclose(losses, wanted, atol=1e-5)


def test_a_teacher_of_logits_is_asked_inside_the_step_about_the_images_of_that_step() -> None:
    vit, objective = small_vit(num_classes=5), DistillationObjective(learns="hard-logits")
    torch.nn.init.normal_(vit.head.weight)
    asked: list[Tensor] = []

    class Asked(torch.nn.Module):
        def forward(self, pixels: Tensor) -> Tensor:
            asked.append(pixels)
            return pixels.flatten(1)[:, :5]

    preprocess = Preprocess(size=(32, 32))
    teacher = Teacher(
        name="t", model=Asked(), preprocess=preprocess, classes=None, weights="w", precision="fp32"
    )
    # The loss reads nothing else of a run.
    context = SimpleNamespace(teacher=teacher, processes=Processes())
    module, losses_of = objective.wrap(vit, teacher), objective.losses_in(context)
    for seed in range(2):
        pixels = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(seed)) * 255
        parts = (preprocess.normalise(pixels), torch.tensor([0, 3, 4]), pixels)
        losses, _ = losses_of(module, parts)
        told = asked[-1].flatten(1)[:, :5]
        assert torch.equal(asked[-1], preprocess.normalise(pixels))
        assert torch.equal(losses, module(parts[0], parts[1], told)[0])
    assert len(asked) == 2
    assert DistillationObjective(learns="hard-logits", caches=True).losses_in(context).__name__ == "losses"


def test_both_heads_have_gradients_where_no_label_counts() -> None:
    vit = small_vit(num_classes=5, has_distillation_token=True)
    config = DistillationConfig(learns="hard-logits", label_share=0)
    module = LogitsDistillation(vit, config)
    module(images(), torch.tensor([0, 3, 4]), numbers(3, 5))[0].sum().backward()
    assert vit.head.weight.grad is not None and vit.distillation_head.weight.grad is not None


def test_a_teacher_gives_its_own_features_on_the_students_grid() -> None:
    teacher = small_vit(patch_size=4, image_size=16)
    summary, patches = teacher_features(teacher, images(size=16), grid=(4, 4))
    found = teacher.features(images(size=16))
    assert torch.equal(summary, found["pooled"]) and torch.equal(patches, found["patch_tokens"])
    assert not summary.requires_grad
    _, fewer = teacher_features(teacher, images(size=16), grid=(2, 2))
    blocks = found["patch_tokens"].reshape(3, 4, 4, -1)
    # Antialiased halving weighs 1 3 3 1 over four cells; two of them are cut off at either end of so small a grid.
    line = torch.tensor([[3.0, 3, 1, 0], [0, 1, 3, 3]]) / 7
    wanted = torch.einsum("ij,bjkd,lk->bild", line, blocks, line).reshape(3, 4, -1)
    assert torch.allclose(fewer, wanted, atol=1e-5)
    assert torch.equal(on_grid(numbers(2, 6, 3, 5), (3, 5)), numbers(2, 6, 3, 5).flatten(2).transpose(1, 2))


@pytest.mark.parametrize("kind", ["norm after pooling", "BiT", "registers"])
def test_any_model_can_teach(kind: str) -> None:
    teacher = small_model(kind).eval()
    size = teacher.config.image_size[0]
    summary, patches = teacher_features(teacher, images(2, size), grid=(4, 4))
    assert summary.shape == (2, teacher_width(teacher)) and patches.shape == (2, 16, teacher_width(teacher))
    assert torch.allclose(summary, teacher.features(images(2, size))["pooled"], atol=1e-5)


def test_nonsense_is_refused_in_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"^learns .*got 'soft_logit'") as refused:
        DistillationConfig(learns="soft_logit")  # type: ignore[arg-type]
    assert refused.value.suggestions == ("soft-logits",)
    with pytest.raises(ConfigError, match=r"^label_share .*below 1, got 1"):
        DistillationConfig(label_share=1)
    with pytest.raises(ConfigError, match="not both 0"):
        DistillationConfig(class_weight=0, patch_weight=0)
    with pytest.raises(ConfigError, match="must have no head"):
        FeatureDistillation(small_vit(num_classes=2), DistillationConfig(), teacher_width=4)
    with pytest.raises(ConfigError, match="needs a head"):
        LogitsDistillation(small_vit(), DistillationConfig(learns="hard-logits"))
    with pytest.raises(ConfigError, match="several labels"):
        DistillationObjective(learns="hard-logits").for_labels(is_multi_label=True)
    with pytest.raises(ConfigError, match="needs a teacher"):
        _ = DistillationObjective().teacher_request
