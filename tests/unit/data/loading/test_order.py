import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrine.data.loading.order import evaluation_rows, index_at, training_rows, view_numbers
from vitrine.data.randomness import BETA_UNIFORMS, beta_from_uniforms, philox, uniforms
from vitrine.errors import ConfigError


@given(length=st.integers(1, 3000), epoch=st.integers(0, 10**6), seed=st.integers(0, 2**40))
@settings(max_examples=60, deadline=None)
def test_an_epoch_is_a_permutation_of_the_set(length, epoch, seed):
    order = index_at(np.arange(length), epoch=epoch, seed=seed, length=length)
    assert np.array_equal(np.sort(order), np.arange(length))


def test_epochs_and_seeds_give_different_orders():
    orders = [
        tuple(index_at(np.arange(100), epoch=epoch, seed=seed, length=100))
        for epoch in range(5)
        for seed in range(5)
    ]
    assert len(set(orders)) == 25


def test_the_order_looks_random():
    # Mean distance between successive numbers of a random permutation of N is N/3; the sign of steps is fair.
    order = index_at(np.arange(20_000), epoch=0, seed=1, length=20_000)
    assert abs(np.abs(np.diff(order)).mean() / 20_000 - 1 / 3) < 0.01
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.03


@given(length=st.integers(1, 500), steps=st.integers(1, 20), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_the_global_batch_is_the_same_on_one_two_four_or_eight_processes(length, steps, seed):
    alone = training_rows(steps, length=length, batch_size=16, seed=seed)
    for world_size in (2, 4, 8):
        parts = [
            training_rows(steps, length=length, batch_size=16, seed=seed, rank=rank, world_size=world_size)
            for rank in range(world_size)
        ]
        assert np.array_equal(np.concatenate([part.indices for part in parts]), alone.indices)
        assert np.array_equal(np.concatenate([part.positions for part in parts]), alone.positions)


def test_every_image_is_seen_once_an_epoch_though_batches_straddle_epochs():
    rows = [training_rows(step, length=10, batch_size=4, seed=3) for step in range(15)]
    stream = np.concatenate([row.indices for row in rows])
    for epoch in range(6):
        assert sorted(stream[10 * epoch : 10 * epoch + 10]) == list(range(10))


@given(length=st.integers(1, 300), batch_size=st.integers(1, 40), world_size=st.integers(1, 9))
@settings(max_examples=80, deadline=None)
def test_evaluation_scores_every_image_exactly_once_on_any_number_of_processes(
    length, batch_size, world_size
):
    seen = [
        index
        for rank in range(world_size)
        for rows in evaluation_rows(length=length, batch_size=batch_size, rank=rank, world_size=world_size)
        for index in rows.indices.tolist()
    ]
    assert seen == list(range(length))


def test_a_batch_that_processes_cannot_share_is_refused_with_the_nearest_sizes():
    with pytest.raises(ConfigError, match=r"batch_size.*30 and 8;.*24 and 32"):
        training_rows(0, length=10, batch_size=30, seed=0, world_size=8)


def test_philox_gives_the_published_test_vectors():
    # Random123's known answers for philox4x32-10.
    zeros, ones = np.zeros(1, np.uint64), np.full(1, 0xFFFFFFFF, np.uint64)
    assert [int(w[0]) for w in philox([zeros] * 4, (0, 0))] == [
        0x6627E8D5,
        0xE169C58D,
        0xBC57AC4C,
        0x9B00DBD8,
    ]
    assert [int(w[0]) for w in philox([ones] * 4, (0xFFFFFFFF, 0xFFFFFFFF))] == [
        0x408F276D,
        0x41C83B0E,
        0xA20BC7C6,
        0x6D5451FD,
    ]


def test_numbers_do_not_depend_on_the_company_they_are_drawn_in():
    many = uniforms(5, stream="view", epochs=2, positions=np.arange(100), count=23)
    one = uniforms(5, stream="view", epochs=2, positions=[42], count=23)
    assert np.array_equal(many[42], one[0])
    assert not np.array_equal(one, uniforms(5, stream="augment", epochs=2, positions=[42], count=23))
    assert abs(many.mean() - 0.5) < 0.02 and many.min() >= 0 and many.max() < 1


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.8, 1.0, 4.0])
def test_beta_draws_have_the_mean_and_variance_of_beta(alpha):
    draws = beta_from_uniforms(
        uniforms(0, stream="mix", epochs=0, positions=np.arange(20_000), count=BETA_UNIFORMS), alpha
    )
    variance = 1 / (4 * (2 * alpha + 1))
    # Standard error of the mean is below 0.0033; four of them.
    assert abs(draws.mean() - 0.5) < 0.014
    assert abs(draws.var() / variance - 1) < 0.05


def flips_of(steps, *, seed=3, length=100, batch_size=20):
    """Return whether each image is flipped in each epoch, (epochs, images), from the batches of these steps."""
    flips = np.full((max(steps) * batch_size // length + 1, length), -1)
    for step in steps:
        rows = training_rows(step, length=length, batch_size=batch_size, seed=seed)
        numbers = view_numbers(rows, seed=seed, count=3, alternates_flip=True)
        flips[rows.epochs, rows.indices] = numbers[:, 0] < 0.5
    return flips


def test_an_image_is_flipped_in_every_other_epoch():
    flips = flips_of(range(30))
    assert np.array_equal(flips[2:], flips[:-2]) and np.array_equal(flips[1:], 1 - flips[:-1])
    # Which images begin flipped is drawn by the seed: binomial with mean 50 and deviation 5.
    assert 25 < flips[0].sum() < 75 and not np.array_equal(flips[0], flips_of(range(5), seed=4)[0])


def test_a_resumed_run_flips_the_same_images():
    assert np.array_equal(flips_of(range(17, 25))[4], flips_of(range(25))[4])


def test_alternating_flips_leave_the_crops_as_they_were():
    rows = training_rows(5, length=100, batch_size=20, seed=3)
    at_random, alternating = (
        view_numbers(rows, seed=3, count=9, alternates_flip=alternates) for alternates in (False, True)
    )
    assert np.array_equal(at_random[:, 1:], alternating[:, 1:])
