"""An index on disk finds what comparing every vector finds, grows, forgets, and joins its small segments."""

import numpy as np
import pytest

from vitrine.batch import index_segment, vector_index
from vitrine.batch.index_segment import IndexRecord, Named, key_of, unit
from vitrine.batch.vector_index import VectorIndex
from vitrine.errors import ConfigError, DataError

pytest.importorskip("faiss")
pytest.importorskip("pyarrow")
RECORD = IndexRecord(model="box", weights="w", precision="fp32", width=16)


def clustered(count, *, seed=0, width=16):
    """Vectors as features are: near some of many centres."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(9).normal(size=(200, width))
    return unit(centres[rng.integers(0, 200, count)] + rng.normal(0, 0.4, (count, width)))


def named(vectors, start=0):
    names = [f"{number:06d}.jpg" for number in range(start, start + len(vectors))]
    return Named(vectors=vectors, names=names, keys=np.array([key_of(name, "1") for name in names]))


def exact(vectors, queries, count):
    halves = vectors.astype(np.float16).astype(np.float32)
    return np.argsort(-(queries @ halves.T), axis=1, kind="stable")[:, :count]


def test_a_small_index_compares_every_vector(tmp_path):
    vectors, queries = clustered(500), clustered(20, seed=1)
    index = VectorIndex(tmp_path, RECORD)
    assert index.add([named(vectors[:300]), named(vectors[300:], 300)]) == 500
    cosines, numbers = VectorIndex.open(tmp_path).search(queries, 7)
    np.testing.assert_array_equal(numbers, exact(vectors, queries, 7))
    # A product of unit vectors in half precision is exact to 16 * 2^-11 / sqrt(16).
    expected = np.take_along_axis(queries @ vectors.T, numbers, axis=1)
    np.testing.assert_allclose(cosines, expected, rtol=0, atol=2e-3)
    assert index.names([0, 499, 0]) == ["000000.jpg", "000499.jpg", "000000.jpg"]
    assert [len(rows) for _, rows in index.vectors()] == [500]
    assert [path for _, paths in index.paths() for path in paths] == named(vectors).names


def test_lists_find_nearly_everything_and_more_probes_find_more(tmp_path, monkeypatch):
    monkeypatch.setattr(index_segment, "EXACT", 1000)
    vectors, queries = clustered(6000), clustered(100, seed=1)
    index = VectorIndex(tmp_path, RECORD)
    index.add([named(vectors)])
    expected = exact(vectors, queries, 10)

    def recall(probes):
        index.probes = probes
        found = index.search(queries, 10)[1]
        return np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found, expected, strict=True)])

    few, default, all_lists = recall(1), recall(vector_index.PROBES), recall(10_000)
    assert few <= default <= all_lists and default > 0.95 and all_lists == 1
    np.testing.assert_allclose(next(index.vectors())[1], vectors, rtol=0, atol=2**-11)


def test_an_index_grows_forgets_and_joins_small_segments_with_the_same_answers(tmp_path, monkeypatch):
    monkeypatch.setattr(vector_index, "SEGMENT_BYTES", 2 * 16 * 400)  # 400 vectors
    vectors, queries = clustered(1000), clustered(10, seed=1)
    index = VectorIndex(tmp_path, RECORD)
    for start in range(0, 1000, 50):
        index.add([named(vectors[start : start + 50], start)])
    assert len(index) == 1000 and len(index.record.segments) <= 5
    assert len(list(tmp_path.glob("*.faiss"))) == len(index.record.segments)
    again = VectorIndex.open(tmp_path)
    np.testing.assert_array_equal(again.search(queries, 5)[1], exact(vectors, queries, 5))
    gone = np.unique(exact(vectors, queries, 1))
    again.remove(gone)
    found = VectorIndex.open(tmp_path).search(queries, 5)[1]
    assert not np.isin(found, gone).any()
    keys, numbers = VectorIndex.open(tmp_path).live_keys()
    assert len(keys) == 1000 - len(gone) and not np.isin(numbers, gone).any()


def test_fewer_pictures_than_were_asked_for_are_all_found(tmp_path):
    index = VectorIndex(tmp_path, RECORD)
    index.add([named(clustered(3))])
    index.remove(np.array([1]))
    _, numbers = index.search(clustered(2, seed=1), 10)
    assert [sorted(row[row >= 0]) for row in numbers] == [[0, 2], [0, 2]]


def test_other_widths_and_other_folders_are_refused(tmp_path):
    index = VectorIndex(tmp_path, RECORD)
    index.add([named(clustered(3))])
    with pytest.raises(ConfigError, match=r"8 features.* 16$"):
        index.search(clustered(1, width=8), 1)
    with pytest.raises(DataError, match=r"else .*no index\.json"):
        VectorIndex.open(tmp_path / "else")
    (tmp_path / "vectors-00000.faiss").write_bytes(b"no index")
    with pytest.raises(DataError, match=r"vectors-00000\.faiss cannot be read"):
        VectorIndex.open(tmp_path).search(clustered(1), 1)
    (tmp_path / "index.json").write_text("{}")
    with pytest.raises(DataError, match="is damaged"):
        VectorIndex.open(tmp_path)
