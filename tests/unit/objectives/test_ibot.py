"""iBOT: the loss on hidden patches written out, which patches are hidden, and a centre of their own."""

import dataclasses

import pytest
import torch
from torch import Tensor
from unit.objectives.test_masked_patches import small_vit
from unit.objectives.test_self_distillation import output, views

from vitrine.errors import ConfigError
from vitrine.models.dropout import image_keys, randomness_of
from vitrine.objectives import IbotObjective
from vitrine.objectives.ibot import PATCH_OUTPUTS, PATCH_SQUARES, MaskedSelfDistillation
from vitrine.objectives.self_distillation import cross_view_entropy
from vitrine.training.config import TrainingConfig
from vitrine.training.optimizer import freeze

SMALL = IbotObjective(
    num_prototypes=12, hidden_width=16, bottleneck_width=8, momentum=0.9, hidden_chance=1.0, patch_weight=2.0
)


def module_of(config: IbotObjective = SMALL) -> MaskedSelfDistillation:
    torch.manual_seed(0)
    module = MaskedSelfDistillation(small_vit(), config)
    with torch.no_grad():
        for parameter in module.teacher.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
        module.center.copy_(0.1 * torch.randn(12))
        module.patch_center.copy_(0.1 * torch.randn(12))
        module.patch_variance.fill_(0.25 / 8)
    return module.double().train()


def keyed() -> Tensor:
    return image_keys(0, first=0, count=3, device=torch.device("cpu"))


def test_the_loss_equals_views_and_hidden_patches_written_out() -> None:
    module = module_of()
    large, few = (each.double() for each in views())
    with randomness_of(keyed()):
        losses, sums = module(large, few)
    with randomness_of(keyed()):
        places, weights = module.hidden_patches(6, 16, device=torch.device("cpu"))
    expected, of_patches = [], []
    for image in range(3):
        answers, guesses, terms = [], [], []
        for view in range(2):
            row = 2 * image + view
            hidden = [int(place) for place, weight in zip(places[row], weights[row], strict=True) if weight]
            patches, grid = module.vit.embed_patches(large[image, view][None])
            patches[0, hidden] = module.mask_embedding[0, 0]
            tokens = module.vit.encode(module.vit.assemble(patches, grid), grid)
            whole = module.teacher.vit.features(large[image, view][None])["patch_tokens"][0]
            answers.append(module.teacher.projection(module.teacher.vit.embed(large[image, view][None]))[0])
            guesses.append(module.projection(module.vit.pool(tokens))[0])
            own = tokens[0, module.vit.num_leading_tokens :]
            for place in hidden:
                # The gain is 2: the variance is a quarter of independent directions'.
                answer = 2 * (module.teacher.projection(whole[place][None])[0] - module.patch_center) / 0.04
                guess = module.projection(own[place][None])[0] / 0.1
                cross = -(answer.softmax(0) * guess.log_softmax(0)).sum()
                terms.append(cross / len(hidden) / 2)
        guesses += [output(module.vit, module.projection, view) for view in few[image]]
        classes = (torch.stack(answers) - module.center) / 0.04
        seen = torch.stack(guesses) / 0.1
        across = cross_view_entropy(classes.softmax(-1)[None], seen.log_softmax(-1)[None])[0]
        of_patches.append(torch.stack(terms).sum())
        expected.append(across + 2.0 * of_patches[-1])
    # The projection's cosines are computed in float32.
    assert torch.allclose(losses, torch.stack(expected).to(losses.dtype), atol=1e-4)
    assert float(sums["patch_loss"]) == pytest.approx(float(torch.stack(of_patches).sum().detach()), abs=1e-4)


def test_as_many_patches_are_hidden_as_was_asked_for() -> None:
    module = module_of(dataclasses.replace(SMALL, hidden=(0.25, 0.5), hidden_chance=0.5))
    places, weights = module.hidden_patches(4000, 16, device=torch.device("cpu"))
    counts = (weights > 0).sum(dim=1)
    assert places.shape == (4000, 8) and all(len(set(row.tolist())) == 8 for row in places[:50])
    assert set(counts.tolist()) == {0, 4, 5, 6, 7, 8}
    assert abs(float((counts > 0).double().mean()) - 0.5) < 0.04  # five standard errors
    assert torch.allclose(weights.sum(dim=1), (counts > 0).to(weights.dtype))
    everywhere = torch.bincount(places[weights > 0], minlength=16).double()
    assert everywhere.min() > 0.8 * everywhere.mean()


def test_patches_draw_by_image_so_that_micro_batches_change_nothing() -> None:
    module = module_of()
    large, few = (each.double() for each in views())
    with randomness_of(keyed()):
        whole, _ = module(large, few)
    parts = []
    for image in range(3):
        with randomness_of(keyed()[image : image + 1]):
            parts.append(module(large[image : image + 1], few[image : image + 1])[0])
    assert torch.allclose(torch.cat(parts), whole, atol=1e-5)


def test_gradients_reach_the_student_and_the_mask_alone() -> None:
    module = module_of().float()
    freeze(module, TrainingConfig())
    module(*views())[0].sum().backward()
    for name, parameter in module.named_parameters():
        assert (parameter.grad is None) == name.startswith("teacher."), name
    assert module.mask_embedding.grad is not None and module.mask_embedding.grad.any()


def test_patches_have_a_centre_of_their_own() -> None:
    module = module_of().float()
    _, sums = module(*views())
    before, variance = module.patch_center.clone(), module.patch_variance.clone()
    outputs, squares = sums[PATCH_OUTPUTS] / 3, sums[PATCH_SQUARES] / 3
    class_center = module.center.clone()
    module.move_center(
        module.patch_center, module.patch_variance, outputs, squares, step=3, bad=torch.zeros(())
    )
    assert torch.allclose(module.patch_center, 0.9 * before + 0.1 * outputs, atol=1e-6)
    assert torch.allclose(module.patch_variance, 0.9 * variance + 0.1 * squares, atol=1e-6)
    assert torch.equal(module.center, class_center)


def test_nonsense_is_refused() -> None:
    with pytest.raises(ConfigError, match="two shares of the patches"):
        IbotObjective(hidden=(0.5, 0.1))
    with pytest.raises(ConfigError, match=r"^hidden_chance.*0 to 1, got 2.0"):
        IbotObjective(hidden_chance=2.0)
    with pytest.raises(ConfigError, match=r"^patch_weight .*got -1.0"):
        IbotObjective(patch_weight=-1.0)
