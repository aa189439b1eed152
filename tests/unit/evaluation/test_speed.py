import itertools
import time

import pytest
import torch
from torch import nn

import vitrine
from vitrine.cli.lines import rendered
from vitrine.cli.views.bench import lines
from vitrine.errors import ConfigError
from vitrine.evaluation.speed import (
    DTYPES,
    Ceilings,
    Speed,
    highest,
    measure_ceilings,
    measure_speeds,
    search_largest,
    time_in_turns,
    timm_counterpart,
)
from vitrine.jobs.bench import BenchResult
from vitrine.models import create_model
from vitrine.models.cost import cost_of
from vitrine.runtime import hardware


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


def shown(result: BenchResult) -> str:
    return "\n".join(rendered(lines(result), width=200))


@pytest.fixture
def few_bytes(monkeypatch):
    """Ceilings of small products and copies: these tests are not about their value."""
    monkeypatch.setattr(hardware, "SIDE", {"cpu": 64})
    monkeypatch.setattr(hardware, "COPIED_BYTES", {"cpu": 2**20})
    monkeypatch.setattr(hardware, "LEAST_SECONDS", 0.0)


def test_the_floor_is_the_longer_of_computing_and_reading():
    config = create_model("ViT-Ti/16", image_size=32).config
    cost, image_bytes = cost_of(config), 3 * 32 * 32 * 4

    def floor(images, *, precision="fp32", flops=1e12):
        ceilings = Ceilings(precision=precision, flops_per_second=flops, bytes_per_second=1e9)
        return ceilings.floor_ms(config, images=images)

    assert floor(1) == pytest.approx((4 * cost.params + image_bytes) / 1e6)
    assert floor(1, precision="bf16") == pytest.approx((2 * cost.params + image_bytes) / 1e6)
    assert floor(1000) == pytest.approx(1000 * 2 * cost.macs / 1e9)
    assert floor(1, flops=1e9) == pytest.approx(2 * cost.macs / 1e6)


def test_the_highest_of_several_ceilings_counts():
    fast, wide = (
        Ceilings(precision="fp32", flops_per_second=flops, bytes_per_second=moved)
        for flops, moved in ((3.0, 1.0), (2.0, 5.0))
    )
    assert highest([fast, wide]) == Ceilings(precision="fp32", flops_per_second=3.0, bytes_per_second=5.0)


def test_a_floor_that_other_work_made_too_high_is_said(monkeypatch):
    slow = Ceilings(precision="fp32", flops_per_second=1e6, bytes_per_second=1e6)
    monkeypatch.setattr("vitrine.evaluation.benchmark.measure_ceilings", lambda **given: slow)
    result = vitrine.bench("ViT-Ti/16", sizes="32", batches="1", turns=1, device="cpu", peer=False)
    assert result.is_below_floor


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_ceilings_are_measured_in_the_precision_that_is_timed(precision, monkeypatch, few_bytes):
    seen = []
    original = torch.Tensor.__matmul__

    def product(left, right):
        seen.append(left.dtype)
        return original(left, right)

    monkeypatch.setattr(torch.Tensor, "__matmul__", product)
    before = torch.get_rng_state()
    found = measure_ceilings(device=torch.device("cpu"), precision=precision)
    assert set(seen) == {DTYPES[precision]}
    assert found.flops_per_second > 0 and found.bytes_per_second > 0
    assert torch.equal(torch.get_rng_state(), before)


def test_no_layer_is_faster_than_the_floor_of_its_product():
    layer, rows = nn.Linear(1024, 1024, bias=False), torch.zeros(1024, 1024)
    floors, seconds = [], []
    for _ in range(3):  # in turns, so that other work on the machine falls on both
        floors.append(2 * 1024**3 / hardware.flops_per_second(torch.float32, device="cpu"))
        seconds += time_in_turns({"layer": lambda: layer(rows)}, turns=1, turn_seconds=0.1)["layer"]
    assert min(seconds) > 0.7 * min(floors)  # the same product; clocks and caches differ by less than that


def test_bench_measures_sizes_and_batches_beside_their_floor_and_says_what_it_cannot(few_bytes):
    result = vitrine.bench("ViT-Ti/16", sizes="30", batches="1,2", turns=1, device="cpu", peer=False)
    assert [(speed.image_size, speed.batch_size) for speed in result.speeds] == [((32, 32), 1), ((32, 32), 2)]
    one, two = (speed.floor_ms for speed in result.speeds)
    assert 0 < one <= two <= 2 * one
    assert result.moved_sizes == {30: 32}
    assert result.skips_largest
    text = shown(result)
    assert "ms per batch" in text and "GB/s" in text and "timm" not in text


def test_the_table_of_bench_says_share_of_the_floor_and_times_timm():
    speeds = [
        Speed(
            model=name, image_size=(32, 32), batch_size=4, images_per_second=4000 / ms, latency_ms=ms,
            slowest_ms=ms, floor_ms=3.0,
        )
        for name, ms in (("vitrine", 10.0), ("timm", 15.0))
    ]  # fmt: skip
    result = BenchResult(
        model="m",
        device="d",
        precision="bf16",
        torch="2",
        timm="1.0",
        is_compiled=True,
        turns=5,
        ceilings=Ceilings(precision="bf16", flops_per_second=7.8e14, bytes_per_second=4e12),
        speeds=tuple(speeds),
        largest=(),
        moved_sizes={},
        too_large=(),
        why_no_timm=None,
        is_below_floor=False,
        skips_largest=False,
    )
    ours, theirs = shown(result).splitlines()[3:5]
    assert ours.split()[-3:] == ["3.00", "30%", "1.50"]
    assert theirs.split()[-2:] == ["3.00", "20%"]
    assert "780.00 TFLOP/s" in shown(result) and "4,000 GB/s" in shown(result)


def test_bench_beside_timm_has_a_model_of_equal_size(few_bytes):
    from ...oracles import import_timm

    timm = import_timm()
    ours = vitrine.create_model("ViT-Ti/16", image_size=(32, 48))
    theirs = timm_counterpart(ours, timm)
    counts = [sum(p.numel() for p in model.parameters()) for model in (ours, theirs)]
    assert counts[0] == counts[1]
    assert theirs(torch.zeros(1, 3, 32, 48)).shape == (1, 1000)
    assert timm_counterpart(vitrine.create_model("BiT-R26x1", image_size=32), timm) is None
    result = vitrine.bench("ViT-Ti/16", sizes=[32], batches=1, turns=1, device="cpu")
    assert [speed.model for speed in result.speeds] == ["vitrine", "timm"]
    assert result.timm == timm.__version__


def test_bench_refuses_nonsense():
    for options in ({"sizes": "64;128"}, {"batches": [0]}, {"turns": 0}):
        with pytest.raises(ConfigError) as refused:
            vitrine.bench("ViT-Ti/16", **options)
        assert [refused.value.option] == list(options)
