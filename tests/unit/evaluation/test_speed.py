import itertools
import time

import pytest
import torch
from torch import nn

import vitrine
from vitrine.errors import ConfigError
from vitrine.evaluation.speed import measure_speeds, search_largest


class Waits(nn.Module):
    """Takes as long as it says, and remembers when it was called."""

    def __init__(self, seconds, calls):
        super().__init__()
        self.seconds, self.calls = seconds, calls

    def forward(self, images):
        self.calls.append(self.seconds)
        time.sleep(self.seconds)
        return images.mean()


def test_a_model_that_takes_twice_as_long_is_half_as_fast_and_turns_alternate():
    calls = []
    models = {"fast": Waits(0.01, calls), "slow": Waits(0.02, calls)}
    fast, slow = measure_speeds(models, image_size=(4, 4), batch_size=6, turns=3, turn_seconds=0.04)
    # Sleeping overshoots on a busy machine, never undershoots.
    assert 10 <= fast.latency_ms < 40
    assert 20 <= slow.latency_ms < 80
    assert slow.latency_ms > fast.latency_ms
    assert fast.images_per_second == pytest.approx(6000 / fast.latency_ms)
    changes = sum(first != second for first, second in itertools.pairwise(calls[4:]))
    assert changes == 5  # fast, slow, fast, slow, fast, slow


def test_models_are_timed_in_evaluation_mode():
    model = nn.Dropout(0.5).train()
    measure_speeds({"model": model}, image_size=(2, 2), batch_size=1, turns=1, turn_seconds=0.001)
    assert not model.training


@pytest.mark.parametrize("limit", [0, 1, 2, 7, 100, 1000, 54_321, 70_000])
def test_the_largest_batch_is_found_to_one_per_cent_and_never_above(limit):
    asked = []

    def fits(count):
        asked.append(count)
        return count <= limit

    found = search_largest(fits, most=2**16)
    most = min(limit, 2**16)
    assert most - max(1, most // 100) <= found <= most
    assert len(asked) < 40


def test_bench_measures_sizes_and_batches_and_says_what_it_cannot(monkeypatch):
    monkeypatch.setattr("vitrine.evaluation.speed.TURN_SECONDS", 0.001)
    result = vitrine.bench("ViT-Ti/16", sizes="30", batches="1,2", turns=1, device="cpu", peer=False)
    assert [(speed.image_size, speed.batch_size) for speed in result.speeds] == [((32, 32), 1), ((32, 32), 2)]
    assert any("30 to 32" in note for note in result.notes)
    assert any("largest batch is not looked for on cpu" in note for note in result.notes)
    assert "ms a batch" in str(result)


def test_bench_beside_timm_has_a_model_of_equal_size():
    from vitrine.commands.bench import _with_peer

    from ...oracles import import_timm

    import_timm()
    ours = vitrine.create_model("ViT-Ti/16", image_size=32)
    models, notes = _with_peer(ours, 32, is_wanted=True)
    assert not notes
    counts = [sum(p.numel() for p in model.parameters()) for model in models.values()]
    assert counts[0] == counts[1]
    assert models["timm"](torch.zeros(1, 3, 32, 32)).shape == (1, 1000)


def test_bench_refuses_nonsense():
    with pytest.raises(ConfigError, match="sizes must be whole numbers with commas between, got '64;128'"):
        vitrine.bench("ViT-Ti/16", sizes="64;128")
    with pytest.raises(ConfigError, match="turns must be 1 or more"):
        vitrine.bench("ViT-Ti/16", turns=0)
