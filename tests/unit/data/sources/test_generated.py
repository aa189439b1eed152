import numpy as np
import pytest

from vitrine.data.sources.generated import FACTORS, GeneratedSource, render
from vitrine.data.sources.opening import open_source, open_splits
from vitrine.errors import ConfigError


def test_a_picture_is_a_pure_function_of_seed_and_number():
    few, many = GeneratedSource(count=5), GeneratedSource(count=500)
    for index in (0, 4):
        assert np.array_equal(few.read(index).data, many.read(index).data)
    assert not np.array_equal(few.read(0).data, GeneratedSource(count=5, seed=1).read(0).data)
    assert few.fingerprint() == GeneratedSource(count=5).fingerprint()


@pytest.mark.parametrize("name", list(FACTORS))
def test_every_label_is_what_the_picture_was_drawn_with(name):
    source = GeneratedSource(count=60, label=name)
    assert source.classes == tuple(sorted(source.classes)) == FACTORS[name]
    for index in range(60):
        assert source.classes[source.label(index)] == source.factors(index)[name]


def test_labels_are_balanced_and_independent_of_each_other():
    columns = [GeneratedSource(count=20_000, label=name).labels for name in FACTORS]
    for name, labels in zip(FACTORS, columns, strict=True):
        counts = np.bincount(labels)
        assert counts.min() / counts.max() > 0.85, name
    correlations = np.corrcoef(np.stack(columns)) - np.eye(len(columns))
    assert np.abs(correlations).max() < 0.03  # four standard errors of 20,000 draws


def test_changing_one_factor_changes_the_picture_and_nothing_else_is_needed():
    base = {name: values[0] for name, values in FACTORS.items()}
    plain = render(base, size=48, seed=0, number=3, noise=0)
    for name, values in FACTORS.items():
        changed = render(base | {name: values[1]}, size=48, seed=0, number=3, noise=0)
        assert np.abs(changed.astype(int) - plain).max() > 20, name


def test_shapes_and_marks_never_cover_each_other():
    # The marks stay countable: on the border ring, outside the reach of the largest shape.
    source = GeneratedSource(count=200, size=64, label="count", noise=0)
    for index in range(200):
        ring = source.read(index).data[:, :, :].astype(int).min(axis=2) > 240
        ring[8:-8, 8:-8] = False
        assert ring.any()


def test_splits_share_no_picture_and_keep_val_and_test_when_train_grows():
    small = open_splits("generated:shapes?size=16&count=20&val=5&test=5")
    large = open_splits("generated:shapes?size=16&count=200&val=5&test=5")
    assert {name: len(source) for name, source in small.items()} == {"train": 20, "val": 5, "test": 5}
    assert np.array_equal(small["test"].read(3).data, large["test"].read(3).data)
    pictures = {example.data.tobytes() for source in small.values() for example in source}
    assert len(pictures) == 30


def test_several_labels_at_once_make_a_multi_label_set():
    source = open_source(
        "generated:shapes?count=10&label=shape,colour", split="train", allow_empty_class=True
    )
    assert source.is_multi_label and "colour=red" in source.classes
    words = {source.classes[number] for number in source.label(0)}
    factors = source.factors(0)
    assert words == {f"shape={factors['shape']}", f"colour={factors['colour']}"}


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("generated:cats", "'cats'; use generated:shapes"),
        ("generated:shapes?sise=3", "no option 'sise'; .*size"),
        ("generated:shapes?label=form", "no label 'form'; .*shape, colour"),
        ("generated:shapes?count=many", "count .*whole number, got 'many'"),
        ("generated:shapes?size=2", "size .*8 to 4096,.*and 2"),
    ],
)
def test_a_wrong_address_is_answered_with_what_would_do(address, message):
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        open_source(address)
