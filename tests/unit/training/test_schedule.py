"""Learning rates equal the formulas at every step."""

import math

import pytest

from vitrine.training.optimizer import learning_rate


def test_cosine_with_warm_up_is_the_papers_formula_at_every_step() -> None:
    base, warmup, total = 0.03, 500, 10_000
    for step in range(total + 1):
        progress = max(0, step - warmup) / (total - warmup)
        expected = base * 0.5 * (1 + math.cos(math.pi * progress)) * min(1, step / warmup)
        found = learning_rate(step, peak=base, warmup_steps=warmup, total_steps=total)
        assert found == pytest.approx(expected, rel=1e-12, abs=1e-18)


def test_linear_decay_ends_at_its_end() -> None:
    base, end, warmup, total = 8e-4, 1e-5, 100, 1000
    for step in range(total + 1):
        progress = max(0, step - warmup) / (total - warmup)
        expected = (end + (base - end) * (1 - progress)) * min(1, step / warmup)
        found = learning_rate(
            step, peak=base, warmup_steps=warmup, total_steps=total, decay="linear", end=end
        )
        assert found == pytest.approx(expected, rel=1e-12)
    assert found == end


def test_bit_hyperrule_divides_by_ten_at_its_boundaries() -> None:
    rates = [
        learning_rate(
            step, peak=0.003, warmup_steps=100, total_steps=500, decay="steps", boundaries=(0.4, 0.6, 0.8)
        )
        for step in range(500)
    ]
    assert rates[50] == pytest.approx(0.0015)
    assert [rates[i] for i in (100, 199, 200, 300, 400)] == pytest.approx([0.003, 0.003, 3e-4, 3e-5, 3e-6])


def test_a_run_without_warm_up_begins_at_its_peak() -> None:
    assert learning_rate(0, peak=1.0, warmup_steps=0, total_steps=10) == 1.0
    assert learning_rate(0, peak=1.0, warmup_steps=0, total_steps=10, decay="constant") == 1.0


def test_wsd_stays_at_its_peak_and_then_falls_as_one_minus_a_square_root() -> None:
    base, end, warmup, total = 8e-4, 1e-5, 100, 1000
    for step in range(total + 1):
        fallen = math.sqrt((step - 750) / 250) if step > 750 else 0.0
        expected = (base - (base - end) * fallen) * min(1, step / warmup)
        found = learning_rate(
            step, peak=base, warmup_steps=warmup, total_steps=total, decay="wsd", end=end, cooldown=0.25
        )
        assert found == pytest.approx(expected, rel=1e-12)
    assert found == pytest.approx(end)


def test_a_longer_wsd_run_has_the_same_rates_until_the_shorter_one_cools_down() -> None:
    short, long = (
        [learning_rate(step, peak=1.0, warmup_steps=10, total_steps=total, decay="wsd") for step in range(80)]
        for total in (100, 1000)
    )
    assert short == long
