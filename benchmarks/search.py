"""Search: recall and speed beside exact search, at any number of vectors, and the libraries compared.

    python benchmarks/search.py index --count 10000000     an index of Vitrine, built from generated vectors
    python benchmarks/search.py compare --count 50000      faiss, usearch and lance on the same vectors

Vectors are drawn around centres, as features of pictures are; the same seed gives the same ones.
"""

import argparse
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from vitrine.batch.index_segment import IndexRecord, Named, unit
from vitrine.batch.vector_index import VectorIndex

CHUNK = 100_000
NUM_CENTRES = 2000


def vectors(start: int, count: int, width: int, *, seed: int = 0) -> np.ndarray:
    centres = np.random.default_rng(1).normal(size=(NUM_CENTRES, width)).astype(np.float32)
    rng = np.random.default_rng([seed, start])
    noise = rng.normal(0, 0.5, (count, width)).astype(np.float32)
    return unit(centres[rng.integers(0, NUM_CENTRES, count)] + noise)


def chunks(count: int, width: int) -> Iterator[Named]:
    for start in range(0, count, CHUNK):
        size = min(CHUNK, count - start)
        names = [f"photos/{number:09d}.jpg" for number in range(start, start + size)]
        keys = np.arange(start, start + size, dtype=np.int64)
        yield Named(vectors=vectors(start, size, width), names=names, keys=keys)


def nearest(count: int, width: int, queries: np.ndarray, neighbours: int) -> np.ndarray:
    """Compare the queries with every vector, a chunk at a time."""
    best = np.full((len(queries), neighbours), -np.inf, dtype=np.float32)
    numbers = np.full((len(queries), neighbours), -1, dtype=np.int64)
    for start in range(0, count, CHUNK):
        size = min(CHUNK, count - start)
        cosines = queries @ vectors(start, size, width).T
        both = np.concatenate([best, cosines], axis=1)
        those = np.concatenate(
            [numbers, np.broadcast_to(np.arange(start, start + size), cosines.shape)], axis=1
        )
        order = np.argpartition(-both, neighbours - 1, axis=1)[:, :neighbours]
        best, numbers = np.take_along_axis(both, order, 1), np.take_along_axis(those, order, 1)
    return numbers


def recall(answered: np.ndarray, expected: np.ndarray) -> float:
    return float(np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(answered, expected, strict=True)]))


def spent() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def index(options: argparse.Namespace, work: Path) -> None:
    record = IndexRecord(model="none", weights="none", precision="fp32", width=options.width)
    built, began, before = VectorIndex(work / "index", record), time.monotonic(), spent()
    built.add(chunks(options.count, options.width))
    size = sum(file.stat().st_size for file in (work / "index").iterdir())
    print(
        f"{options.count:,} vectors of {options.width}: built in {spent() - before:,.0f} s of processor time "
        f"({time.monotonic() - began:,.0f} s), {size / 1e9:.2f} GB, {len(built.record.segments)} segments, "
        f"peak memory {peak():.2f} GiB",
        flush=True,
    )
    queries = vectors(0, options.queries, options.width, seed=7)
    before = spent()
    expected = nearest(options.count, options.width, queries, 10)
    print(
        f"exact search: {1000 * (spent() - before) / options.queries:,.1f} ms per query (vectors drawn again)"
    )
    opened = VectorIndex.open(work / "index")
    print("\nprobes  recall@10  ms of processor time per query")
    for probes in (1, 4, 16, 64):
        opened.probes = probes
        opened.search(queries[:2], 10)
        before = spent()
        answered = np.concatenate(
            [opened.search(queries[row : row + 1], 10)[1] for row in range(len(queries))]
        )
        print(
            f"{probes:6}  {recall(answered, expected):9.4f}  {1000 * (spent() - before) / len(queries):10.2f}",
            flush=True,
        )
    print(f"peak memory {peak():.2f} GiB, mapped files included")


def compare(options: argparse.Namespace, work: Path) -> None:
    rows = vectors(0, options.count, options.width)
    queries = vectors(0, options.queries, options.width, seed=7)
    expected = np.argsort(-(queries @ rows.T), axis=1)[:, :10]
    measured = {"usearch": usearch, "faiss": faiss, "lance": lance}
    print("library                      build s  bytes per vector  ms per query  recall@10")
    for name in options.libraries.split(","):
        for kind, build, size, query, answered in measured[name](rows, queries, work):
            share = recall(answered, expected)
            print(f"{name + ' ' + kind:28} {build:7.1f} {size / len(rows):17.0f} {query:13.2f} {share:10.4f}")


def usearch(
    rows: np.ndarray, queries: np.ndarray, work: Path
) -> Iterator[tuple[str, float, int, float, np.ndarray]]:
    from usearch.index import Index

    before = spent()
    graph = Index(ndim=rows.shape[1], metric="cos", dtype="f16")
    graph.add(np.arange(len(rows)), rows, threads=1)
    build, file = spent() - before, work / "usearch"
    graph.save(str(file))
    opened = Index.restore(str(file), view=True)
    for effort in (64, 128):
        opened.expansion_search, before = effort, spent()
        answered = opened.search(queries, 10, threads=1).keys
        yield (
            f"HNSW, ef {effort}",
            build,
            file.stat().st_size,
            1000 * (spent() - before) / len(queries),
            answered,
        )


def faiss(
    rows: np.ndarray, queries: np.ndarray, work: Path
) -> Iterator[tuple[str, float, int, float, np.ndarray]]:
    import faiss as library

    library.omp_set_num_threads(1)
    lists = int(4 * len(rows) ** 0.5)
    for kind in ("SQfp16", "SQ8"):
        before = spent()
        inverted = library.index_factory(rows.shape[1], f"IVF{lists},{kind}", library.METRIC_INNER_PRODUCT)
        inverted.train(rows[: 64 * lists])
        inverted.add(rows)
        build, file = spent() - before, work / "faiss"
        library.write_index(inverted, str(file))
        opened = library.read_index(str(file), library.IO_FLAG_MMAP | library.IO_FLAG_READ_ONLY)
        opened.nprobe, before = 16, spent()
        answered = opened.search(queries, 10)[1]
        yield f"IVF, {kind}", build, file.stat().st_size, 1000 * (spent() - before) / len(queries), answered


def lance(
    rows: np.ndarray, queries: np.ndarray, work: Path
) -> Iterator[tuple[str, float, int, float, np.ndarray]]:
    import lance as library
    import pyarrow

    lists = int(4 * len(rows) ** 0.5)
    flat = pyarrow.array(rows.astype(np.float16).reshape(-1))
    vector = pyarrow.FixedSizeListArray.from_arrays(flat, rows.shape[1])
    table = pyarrow.table({"number": np.arange(len(rows)), "vector": vector})
    for kind in ("IVF_FLAT", "IVF_SQ", "IVF_HNSW_SQ"):
        before, folder = spent(), work / kind
        written = library.write_dataset(table, str(folder))
        # With HNSW each list has a graph of its own, so there are few lists, all of which are asked.
        number = 1 if "HNSW" in kind else lists
        written.create_index("vector", kind, metric="cosine", num_partitions=number)
        build, size = spent() - before, sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
        opened = library.dataset(str(folder))
        for _turn in range(2):  # the first one opens files
            answered, before = [], spent()
            for query in queries.astype(np.float16):
                wish = {"column": "vector", "q": query, "k": 10, "nprobes": 16}
                rows_found = opened.to_table(columns=["number", "_distance"], nearest=wish)
                answered.append(rows_found["number"].to_numpy())
        yield kind, build, size, 1000 * (spent() - before) / len(queries), np.stack(answered)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("index", "compare"))
    parser.add_argument("--count", type=int, default=50_000)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--libraries", default="usearch,faiss,lance")
    parser.add_argument("--work", type=Path, help="folder to work in [default: a temporary one]")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="vitrine-search-", dir=options.work) as folder:
        {"index": index, "compare": compare}[options.what](options, Path(folder))


if __name__ == "__main__":
    main()
