import pytest
import torch

from vitrine.evaluation.temperature import EQUAL, answer_losses, divide_head, fit_temperature, log_losses
from vitrine.models import create_model


def labels_drawn_from(logits, *, seed=0):
    return torch.multinomial(logits.softmax(dim=1), 1, generator=torch.Generator().manual_seed(seed))[:, 0]


@pytest.mark.parametrize("factor", [0.2, 1.0, 5.0])
def test_the_temperature_undoes_a_factor_on_honest_logits(factor):
    logits = 2 * torch.randn(4000, 5, generator=torch.Generator().manual_seed(1))
    # 4,000 labels: a standard error of about 3 % of the temperature.
    assert fit_temperature(factor * logits, labels_drawn_from(logits)) == pytest.approx(factor, rel=0.1)


def test_sigmoids_of_several_labels_are_calibrated_too():
    logits = 2 * torch.randn(2000, 5, generator=torch.Generator().manual_seed(1))
    flags = torch.bernoulli(logits.sigmoid(), generator=torch.Generator().manual_seed(2)).long()
    assert fit_temperature(3 * logits, flags) == pytest.approx(3, rel=0.1)


def test_twenty_correct_answers_do_not_claim_certainty():
    logits = 10 * torch.eye(4).repeat(5, 1)
    temperature = fit_temperature(logits, torch.arange(20) % 4)
    confidence = (logits / temperature).softmax(dim=1).max(dim=1).values
    assert confidence.min() > 0.9 and confidence.max() < 0.99


def test_a_hundred_labels_of_many_classes_do_not_make_probabilities_doubtful():
    gaps = []
    for seed in range(12):
        generator = torch.Generator().manual_seed(seed)
        logits = torch.randn(100, 200, generator=generator, dtype=torch.float64) - 18
        logits[:, :4] = 2 * torch.randn(100, 4, generator=generator, dtype=torch.float64)
        logits = logits[:, torch.randperm(200, generator=generator)]
        temperature = fit_temperature(logits, labels_drawn_from(logits, seed=seed))
        honest, fitted = (rows.softmax(1).amax(1).mean() for rows in (logits, logits / temperature))
        gaps.append(float(fitted - honest))
    # Spread over all classes, the smoothing of the labels costs 6 points here.
    assert abs(sum(gaps) / len(gaps)) < 0.02


def test_the_temperature_has_the_least_loss_of_all_that_are_tried():
    logits = 3 * torch.randn(60, 7, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    labels = labels_drawn_from(logits / 2)

    def loss(temperature):
        scaled = logits / temperature
        every, answer = (
            losses(scaled, labels, num_images=60).sum() for losses in (log_losses, answer_losses)
        )
        return float(every * EQUAL / 60 + answer)

    best = fit_temperature(logits, labels)
    assert all(loss(best) <= loss(best * factor) for factor in torch.linspace(-6, 6, 200).exp().tolist())


@pytest.mark.parametrize("is_right", [True, False])
def test_certain_answers_have_a_finite_temperature(is_right):
    logits = 500 * torch.eye(3, dtype=torch.float64).repeat(10, 1)
    labels = (torch.arange(30) + (not is_right)) % 3
    temperature = fit_temperature(logits, labels)
    confidence = float((logits / temperature).softmax(1).amax(1).mean())
    assert 0.9 < confidence < 0.999 if is_right else confidence < 0.5


def test_dividing_the_head_divides_the_logits():
    model = create_model(
        "ViT", width=32, depth=1, num_heads=2, mlp_width=64, patch_size=8, image_size=16, num_classes=3
    )
    torch.nn.init.normal_(model.head.weight)
    images = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        before = model.eval()(images)
        divide_head(model, 2.0)
        torch.testing.assert_close(model(images), before / 2)
