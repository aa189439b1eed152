"""Pictures at addresses of fsspec: folders, single files, patterns, shards and Parquet give the rows of local ones.

`memory://` and `file://` run here; the same in object stores (emulators on loopback) is slow.
"""

import csv
import os
import tempfile
from pathlib import Path

import pytest
import torch
from journeys.commandline import assert_refused, inside, refusal
from pictures import photo, save

import vitrine
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.data.sources.opening import open_splits
from vitrine.errors import ConfigError, DataError
from vitrine.runtime import block_cache
from vitrine.runtime.places import delivered

fsspec = pytest.importorskip("fsspec")
pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
CPU = {"device": "cpu", "workers": 0}


@pytest.fixture(scope="module")
def desk(tmp_path_factory) -> Path:
    desk = tmp_path_factory.mktemp("desk")
    for number in range(12):
        save(desk / "photos" / ("cat", "dog")[number % 2] / f"{number:02d}.png", photo(number, 20, 18))
    (desk / "photos" / "cat" / "notes.txt").write_text("no picture")
    (desk / "photos" / "cat" / "bad.jpg").write_text("no picture either")
    torch.manual_seed(0)
    model = vitrine.create_model(
        "ViT", width=8, depth=1, num_heads=1, mlp_width=8, image_size=16, patch_size=8
    )
    vitrine.save(model, desk / "model", preprocess=Preprocess(size=(16, 16)))
    vitrine.shard(desk / "photos", desk / "shards")
    files = sorted((desk / "photos").glob("*/*.png"))
    table = pyarrow.table({"image": [{"bytes": file.read_bytes(), "path": file.name} for file in files]})
    (desk / "table").mkdir()
    parquet.write_table(table, desk / "table" / "rows.parquet")
    return desk


def digests(model: Path, place: object, out: str) -> dict[str, str]:
    """Names and checksums of the pictures that a job reads."""
    done = vitrine.embed(model, place, out=out, **CPU)
    table = parquet.read_table(done.parts.folder)
    names = [name.rpartition("/")[2] for name in table["path"].to_pylist()]
    return {name: digest for name, digest in zip(names, table["sha256"].to_pylist(), strict=True) if digest}


def check_every_kind(desk: Path, base: str, tmp_path: Path) -> None:
    """Compare each kind of input at an address with the same files here."""
    fsspec.core.url_to_fs(base)[0].put(f"{desk}/", base, recursive=True)
    local = digests(desk / "model", desk / "photos", tmp_path / "local")
    assert len(local) == 13
    assert digests(desk / "model", f"{base}/photos", tmp_path / "folder") == local
    assert digests(desk / "model", f"{base}/shards", tmp_path / "shards") == local
    tar = next(path.name for path in (desk / "shards").glob("*.tar"))
    of_tar = digests(desk / "model", f"{base}/shards/{tar}", tmp_path / "tar")  # named by their numbers there
    assert sorted(of_tar.values()) == sorted(local.values())
    rows = digests(desk / "model", f"{base}/table", tmp_path / "rows")
    assert sorted(rows.values()) == sorted(digest for name, digest in local.items() if name != "bad.jpg")
    one = digests(desk / "model", f"{base}/photos/cat/04.png", tmp_path / "one")
    assert one == {"04.png": local["04.png"]}
    some = digests(
        desk / "model", [f"{base}/photos/dog/0*.png", desk / "photos/cat/10.png"], tmp_path / "some"
    )
    assert sorted(some) == ["01.png", "03.png", "05.png", "07.png", "09.png", "10.png"]
    listed = tmp_path / "list.csv"
    with listed.open("w", newline="") as file:
        csv.writer(file).writerows([["path"], [f"{base}/photos/dog/01.png"]])
    assert digests(desk / "model", listed, tmp_path / "listed") == {"01.png": local["01.png"]}
    splits = open_splits(f"{base}/photos", val_fraction=0)
    assert splits["train"].classes == ("cat", "dog") and splits["train"].counts().tolist() == [7, 6]
    with refusal(DataError, f"{base}/nothing"):
        vitrine.embed(desk / "model", f"{base}/nothing", out=tmp_path / "nothing", **CPU)


def test_every_kind_of_input_is_read_at_an_address(desk, tmp_path, monkeypatch):
    monkeypatch.setenv("VITRINE_CACHE", str(tmp_path / "cache"))
    check_every_kind(desk, "memory://desk", tmp_path)


def test_every_kind_of_input_is_read_through_file_addresses(desk, tmp_path, monkeypatch):
    monkeypatch.setenv("VITRINE_CACHE", str(tmp_path / "cache"))
    check_every_kind(desk, f"file://{tmp_path}/desk", tmp_path)


def test_the_command_line_takes_addresses(desk, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = f"local://{tmp_path}/store/parts"
    done = inside("embed", desk / "model", desk / "photos" / "dog", "--out", out, "--device", "cpu")
    assert done.returncode == 0 and f"Wrote {out}" in done.stdout, done.stderr
    assert inside("merge", out, "--verify").returncode == 0
    assert (tmp_path / "store" / "parts" / "part-00000.parquet").is_file()
    lost = inside("resume")  # whose default is a path
    assert lost.returncode == 2 and "runs" in lost.stderr, lost.stderr
    assert_refused(
        inside("index", desk / "photos", "--out", "s3://bucket/index"), "s3://bucket/index", error=ConfigError
    )


@pytest.mark.slow
def test_every_kind_of_input_is_read_from_object_stores_and_parts_are_written_there(
    desk, tmp_path, monkeypatch, store
):
    monkeypatch.setenv("VITRINE_CACHE", str(tmp_path / "cache"))
    check_every_kind(desk, f"{store}/desk", tmp_path)
    out = f"{store}/parts"
    for done in (vitrine.embed(desk / "model", f"{store}/desk/shards", out=out, **CPU) for _ in range(2)):
        assert done.parts.manifest == f"{out}/_job/manifest.json"
    assert done.parts.num_skipped == 13
    assert vitrine.merge(out, verify=True).exit_code == 0
    vitrine.embed(desk / "model", desk / "shards", out=tmp_path / "parts", **CPU)
    system, place = fsspec.core.url_to_fs(f"{out}/part-00000.parquet")
    assert system.cat_file(place) == (tmp_path / "parts" / "part-00000.parquet").read_bytes()
    vitrine.predict(desk / "photos" / "cat" / "00.png", out=f"{store}/p.csv", device="cpu")
    system, place = fsspec.core.url_to_fs(f"{store}/p.csv")
    assert b"00.png" in system.cat_file(place)


def test_remote_shards_are_read_in_blocks_that_stay_on_this_disk_within_a_limit(desk, tmp_path, monkeypatch):
    monkeypatch.setenv("VITRINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(block_cache, "BLOCK_BYTES", 1000)
    memory = fsspec.filesystem("memory")
    content = os.urandom(10_500)
    memory.pipe_file("/blocks/file.bin", content)
    asked = []
    read = block_cache.read_remote
    monkeypatch.setattr(
        block_cache, "read_remote", lambda *words, **options: asked.append(options) or read(*words, **options)
    )
    monkeypatch.setattr(block_cache, "_AHEAD", 0)
    address = "memory://blocks/file.bin"
    for start, end in ((0, 10), (990, 1010), (10_400, 10_500), (0, 10_500), (3, 3)):
        assert block_cache.read_cached(address, start=start, end=end) == content[start:end]
    assert len(asked) == 11  # each block once
    files = list((tmp_path / "cache" / "blocks").glob("*/*"))
    block_cache.make_room(4000, now=True)
    left = [file for file in files if file.exists()]
    assert sum(file.stat().st_size for file in left) <= 4000 and left
    assert block_cache.read_cached(address, start=0, end=10_500) == content
    monkeypatch.setenv("VITRINE_CACHE_GB", "0.000004")
    block_cache.make_room(0, now=True)
    for start in range(0, 10_500, 500):  # faster than the clock by which the cache is looked at
        block_cache.read_cached(address, start=start, end=start + 1)
        left = (tmp_path / "cache" / "blocks").glob("*/*")
        assert sum(file.stat().st_size for file in left) <= 4000
    monkeypatch.setenv("VITRINE_CACHE_GB", "much")
    with refusal(ConfigError, "VITRINE_CACHE_GB", "'much'"):
        block_cache.limit_bytes()


def test_results_that_cannot_be_uploaded_are_kept_and_a_missing_bucket_is_named(tmp_path, monkeypatch):
    def refuse(*_):
        raise FileNotFoundError("the bucket does not exist")

    monkeypatch.setattr(fsspec.get_filesystem_class("memory"), "put_file", refuse)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with (
        pytest.raises(DataError, match=r"memory://x/p\.csv: the bucket") as caught,
        delivered("memory://x/p.csv") as file,
    ):
        file.write_text("hours of work")
    [kept] = tmp_path.glob("vitrine-*")
    assert str(kept) in str(caught.value) and (kept / "p.csv").read_text() == "hours of work"
