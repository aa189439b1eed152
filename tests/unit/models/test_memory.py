"""The memory of a step, by part, and the mildest change that makes it fit."""

import pytest

from vitrine.models.cost import cost_of
from vitrine.models.memory import Demand, fit
from vitrine.models.variants import configure

ADAM = 2  # numbers kept per weight
ViT = Demand(cost=cost_of(configure("ViT-B/16")), states=ADAM, bytes_kept=2)


def total(**options: int | bool) -> float:
    return ViT.memory(**options).total  # type: ignore[arg-type]


def test_activations_grow_with_the_micro_batch_and_nothing_else_does() -> None:
    small, large = ViT.memory(micro_batch=8), ViT.memory(micro_batch=16)
    assert large.activations == pytest.approx(2 * small.activations)
    assert (large.weights, large.gradients, large.optimizer) == (
        small.weights,
        small.gradients,
        small.optimizer,
    )


def test_shards_divide_gradients_and_optimizer_but_not_activations() -> None:
    whole, shard = ViT.memory(micro_batch=8), ViT.memory(micro_batch=8, shards=4)
    assert shard.optimizer == pytest.approx(whole.optimizer / 4)
    assert shard.gradients == pytest.approx(whole.gradients / 4)
    assert shard.activations == whole.activations


def test_the_table_in_gib_has_every_part_and_their_total() -> None:
    parts = ViT.memory(micro_batch=8)
    table = parts.in_gib()
    assert table["optimizer"] == pytest.approx(2 * table["gradients"])
    assert table["total"] == pytest.approx(parts.total / 2**30)


def test_a_batch_that_fits_is_left_alone() -> None:
    choice = fit(ViT, per_device=64, devices=4, limit=total(micro_batch=64))
    assert choice.fits and choice.micro_batch == 64
    assert not choice.shard and not choice.activation_checkpointing


def test_smaller_micro_batches_come_before_recomputation() -> None:
    choice = fit(ViT, per_device=64, devices=1, limit=total(micro_batch=16))
    assert (choice.fits, choice.micro_batch, choice.activation_checkpointing) == (True, 16, False)


def test_recomputation_comes_before_micro_batches_below_eight_images() -> None:
    limit = total(micro_batch=16, checkpointing=True)
    assert limit < total(micro_batch=8), "the case needs a limit that eight images do not fit"
    choice = fit(ViT, per_device=64, devices=4, limit=limit)
    assert (choice.micro_batch, choice.activation_checkpointing, choice.shard) == (16, True, False)


def test_sharding_is_the_last_resort_and_needs_several_devices() -> None:
    limit = total(micro_batch=8, shards=4, checkpointing=True)
    assert fit(ViT, per_device=8, devices=4, limit=limit).shard
    alone = fit(ViT, per_device=8, devices=1, limit=limit)
    assert not alone.fits and not alone.shard


def test_the_closest_choice_is_returned_if_nothing_fits() -> None:
    choice = fit(ViT, per_device=64, devices=2, limit=1.0)
    assert not choice.fits
    assert (choice.micro_batch, choice.shard, choice.activation_checkpointing) == (1, True, True)
    assert choice.memory.total == total(micro_batch=1, shards=2, checkpointing=True)
