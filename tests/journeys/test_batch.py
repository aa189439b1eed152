"""Jobs in parts, from the command line's functions: the same rows as small jobs, resumed to equal bytes, merged."""

import gc
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from full_disk import files_of_at_most
from pictures import photo, save

import vitrine
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.errors import ConfigError, DataError, MissingExtraError

from .commandline import SOURCE, refusal

parquet = pytest.importorskip("pyarrow.parquet")
CPU = {"device": "cpu", "workers": 0}


@pytest.fixture(scope="module")
def desk(tmp_path_factory) -> Path:
    """Thirty pictures of 16 px in two folders, one of them damaged, a model for them, and the same as shards."""
    desk = tmp_path_factory.mktemp("desk")
    for number in range(29):
        save(desk / "photos" / f"class{number % 2}" / f"{number:02d}.png", photo(number, 20, 18))
    (desk / "photos" / "class0" / "bad.jpg").write_text("no picture")
    torch.manual_seed(0)
    model = vitrine.create_model(
        "ViT", width=8, depth=1, num_heads=1, mlp_width=8, image_size=16, patch_size=8, num_classes=3
    )
    torch.nn.init.normal_(model.head.weight)
    vitrine.save(model, desk / "model", preprocess=Preprocess(size=(16, 16)), classes=("ant", "bee", "cow"))
    vitrine.shard(desk / "photos", desk / "shards")
    return desk


@pytest.fixture(scope="module")
def whole(desk) -> Path:
    """The parts of one uninterrupted run."""
    vitrine.embed(desk / "model", desk / "photos", out=desk / "whole", part_size=8, **CPU)
    return desk / "whole"


def hashes(folder: Path) -> dict[str, str]:
    files = (file for file in sorted(folder.rglob("*")) if file.is_file())
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def test_parts_hold_the_rows_that_small_jobs_write(desk, whole):
    table = parquet.read_table(whole)
    assert table.schema.names == ["path", "sha256", "predicted", "confidence", "embedding", "error"]
    vitrine.embed(desk / "model", desk / "photos", out=desk / "small.npy", batch_size=8, **CPU)
    rows = np.load(desk / "small.npy")
    good = [row for row, error in enumerate(table["error"].to_pylist()) if error is None]
    assert len(good) == 29 and table.num_rows == 30
    np.testing.assert_allclose(np.stack(table["embedding"].take(good).to_pylist()), rows, rtol=0, atol=1e-6)
    predictions = vitrine.predict(desk / "model", desk / "photos", **CPU).predictions
    assert [one.name for one in predictions] == table["path"].to_pylist()
    for prediction, name, confidence in zip(
        predictions, table["predicted"].to_pylist(), table["confidence"].to_pylist(), strict=True
    ):
        if prediction.error is None:
            assert prediction.answers[0].label == name
            assert confidence == pytest.approx(prediction.answers[0].probability, abs=1e-6)
    bad = table["error"].to_pylist().index(next(one.error for one in predictions if one.error))
    digests = table["sha256"].to_pylist()
    assert table["embedding"].to_pylist()[bad] is None and table["predicted"].to_pylist()[bad] is None
    for path, digest in zip(table["path"].to_pylist(), digests, strict=True):
        assert digest == hashlib.sha256(Path(path).read_bytes()).hexdigest()


def test_a_rerun_computes_nothing_and_a_missing_part_comes_back_with_the_same_bytes(desk, whole):
    before = hashes(whole)
    again = vitrine.embed(desk / "model", desk / "photos", out=whole, part_size=8, **CPU)
    assert (again.parts.num_computed, again.parts.num_skipped) == (0, 30) and hashes(whole) == before
    for name in ("part-00001.parquet", "_job/part-00001.json", "_job/manifest.json"):
        (whole / name).unlink()
    (whole / ".part-00002.parquet.0123456789abcdef").write_text("half written")
    third = vitrine.embed(desk / "model", desk / "photos", out=whole, part_size=8, **CPU)
    assert (third.parts.num_computed, third.parts.num_skipped) == (8, 22) and hashes(whole) == before


def test_a_full_disk_leaves_no_half_a_part_and_nothing_to_say_later(
    desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", later.append)
    with files_of_at_most(2_000), pytest.raises(OSError, match="File too large"):
        vitrine.embed(desk / "model", desk / "photos", out=desk / "full", part_size=8, **CPU)
    gc.collect()  # Parquet's writer writes once more when it is freed
    assert later == []
    assert [file.name for file in (desk / "full").rglob("*") if file.is_file()] == ["job.json"]


def test_an_engine_that_is_not_installed_is_refused_before_anything_is_written(
    desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError) as refused:
        vitrine.embed(desk / "model", desk / "photos", out=desk / "rays", engine="ray", part_size=8, **CPU)
    assert (refused.value.package, refused.value.extra) == ("ray", "ray")
    assert not (desk / "rays").exists()


def test_several_shares_in_any_order_make_the_bytes_of_one_process_and_merge_says_what_is_missing(
    desk, whole
):
    out = desk / "shares"
    options = {"out": out, "part_size": 8, **CPU}
    last = vitrine.embed(desk / "model", desk / "photos", part="3/3", **options)
    assert last.parts.own_parts == (2, 4) and last.parts.manifest is None
    merged = vitrine.merge(out)
    assert merged.missing == (0, 1) and merged.exit_code == 1 and merged.manifest is None
    vitrine.embed(desk / "model", desk / "photos", part="1/3", **options)
    vitrine.embed(desk / "model", desk / "photos", part="2/3", **options)
    assert hashes(out) == hashes(whole)
    (out / "_job" / "manifest.json").unlink()
    assert vitrine.merge(out, verify=True).exit_code == 0 and hashes(out) == hashes(whole)
    data = (out / "part-00003.parquet").read_bytes()
    (out / "part-00003.parquet").write_bytes(data[:-1] + b"x")
    assert vitrine.merge(out).damaged == ()
    assert vitrine.merge(out, verify=True).damaged == ("part-00003.parquet",)
    (out / "part-00003.parquet").write_bytes(data[:-1])
    assert vitrine.merge(out).damaged == ("part-00003.parquet",)


def test_threads_and_processes_write_the_same_bytes(desk, whole, monkeypatch):
    vitrine.embed(desk / "model", desk / "photos", out=desk / "threads", part_size=8, device="cpu", workers=2)
    assert hashes(desk / "threads") == hashes(whole)
    monkeypatch.setattr("vitrine.jobs.parts_job.chosen_workers", lambda *_, **__: (1, "processes"))
    vitrine.embed(desk / "model", desk / "photos", out=desk / "processes", part_size=8, device="cpu")
    assert hashes(desk / "processes") == hashes(whole)


def test_torchrun_divides_the_parts_and_a_single_file_is_refused(desk, whole, monkeypatch):
    for rank in (1, 0):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        done = vitrine.embed(desk / "model", desk / "photos", out=desk / "two", part_size=8, **CPU)
        assert done.parts.num_computed == 16 - 2 * rank
        for out in (None, desk / "one.npy"):
            with refusal(ConfigError, "2 processes", str(out).lower(), option="out"):
                vitrine.embed(desk / "model", desk / "photos", out=out, **CPU)
        with refusal(ConfigError, "2 processes", option="out"):
            vitrine.predict(desk / "model", desk / "photos", **CPU)
    assert hashes(desk / "two") == hashes(whole)


def test_changed_pictures_are_computed_again_and_another_number_of_them_is_refused(desk):
    photos, out = desk / "changing", desk / "changed"
    for number in range(12):
        save(photos / f"{number:02d}.png", photo(number, 20, 18))
    options = {"out": out, "part_size": 4, **CPU}
    vitrine.embed(desk / "model", photos, **options)
    before = hashes(out)
    save(photos / "05.png", photo(50, 20, 18))
    again = vitrine.embed(desk / "model", photos, **options)
    assert again.parts.num_computed == 4
    changed = {name for name, digest in hashes(out).items() if before[name] != digest}
    assert changed == {"part-00001.parquet", "_job/part-00001.json", "_job/manifest.json"}
    save(photos / "12.png", photo(60, 20, 18))
    with refusal(ConfigError, "12 there, 13 now", option="out", advice=["overwrite"]):
        vitrine.embed(desk / "model", photos, **options)
    assert vitrine.embed(desk / "model", photos, overwrite=True, **options).parts.num_computed == 13


@pytest.mark.parametrize("place", ["shards", "shards/*.tar"])
def test_local_shards_are_read_as_they_are_from_an_address(desk, place, monkeypatch):
    monkeypatch.chdir(desk)
    if "*" in place:
        place = str(next(Path("shards").glob("*.tar")))
    done = vitrine.embed("model", place, out=f"of-{place.partition('/')[0]}-{len(place)}", part_size=8, **CPU)
    table = parquet.read_table(done.parts.folder)
    assert table.num_rows == 30 and set(table["label"].to_pylist()) == {"class0", "class1"}
    with_address = vitrine.embed(
        "model", f"file://{desk / place}", out=f"{done.parts.folder}-url", part_size=8, **CPU
    )
    assert parquet.read_table(with_address.parts.folder)["sha256"].equals(table["sha256"])


def test_photos_without_labels_are_packed_into_shards_and_read_from_them(desk):
    for number in range(5):
        save(desk / "loose" / f"{number}.png", photo(number, 20, 18))
    vitrine.shard(desk / "loose", desk / "loose-shards")
    for place in (desk / "loose-shards", next((desk / "loose-shards").glob("*.tar"))):
        done = vitrine.embed(desk / "model", place, out=desk / f"of-{place.stem}", **CPU)
        table = parquet.read_table(done.parts.folder)
        expected = [hashlib.sha256((desk / "loose" / f"{n}.png").read_bytes()).hexdigest() for n in range(5)]
        assert table["sha256"].to_pylist() == expected and "label" not in table.schema.names


def test_features_of_patches_and_half_precision_are_stored_with_their_shape(desk):
    done = vitrine.embed(
        desk / "model",
        desk / "photos",
        out=desk / "tokens",
        tokens=True,
        store="float16",
        part_size=16,
        **CPU,
    )
    table = parquet.read_table(done.parts.folder)
    assert table.schema.metadata[b"shape.tokens"] == b"4x8"  # 2 x 2 patches of 8 features
    predictor = vitrine.Predictor.open(desk / "model", device="cpu")
    pixels = predictor.pixels(table["path"][1].as_py())
    with torch.no_grad():
        tokens = predictor.model.features(predictor.preprocess.normalise(pixels[None]))["patch_tokens"]
    stored = np.array(table["tokens"][1].as_py(), dtype=np.float32).reshape(4, 8)
    np.testing.assert_allclose(stored, tokens[0].numpy(), rtol=2**-10, atol=1e-3)  # half precision
    with pytest.raises(ConfigError, match="needs a folder of parts"):
        vitrine.embed(desk / "model", desk / "photos", out=desk / "x.npy", tokens=True, **CPU)


def test_predictions_go_into_parts_with_the_most_likely_classes(desk):
    done = vitrine.predict(desk / "model", desk / "shards", out=desk / "classes", top=2, part_size=16, **CPU)
    assert done.num_pictures == 30 and done.num_errors == 1 and done.parts.num_parts == 2
    table = parquet.read_table(desk / "classes")
    assert table.schema.names == [
        "path", "sha256", "label", "predicted", "confidence", "predicted_2", "confidence_2", "error",
    ]  # fmt: skip


@pytest.mark.parametrize("verb", ["predict", "embed"])
def test_an_output_may_be_named_by_text_or_path_and_an_address_is_no_folder_called_s3(
    desk, verb, monkeypatch
):
    monkeypatch.chdir(desk)
    call = getattr(vitrine, verb)
    suffix = ".csv" if verb == "predict" else ".npy"
    for out in (f"text{suffix}", Path(f"path{suffix}")):
        call("model", "photos", out=out, overwrite=True, **CPU)
        assert Path(out).is_file()
    with refusal(ConfigError, f"s3:/bucket/x{suffix}", option="out"):
        call("model", "photos", out=Path(f"s3://bucket/x{suffix}"), **CPU)
    with refusal(ConfigError, "s3://bucket/shards"):
        vitrine.shard("photos", "s3://bucket/shards")
    assert not any(path.name.startswith("s3:") for path in desk.iterdir())


def test_what_is_written_to_an_address_equals_what_is_written_here(desk, whole):
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    out = "memory://bucket/parts"
    for _ in range(2):
        done = vitrine.embed(desk / "model", desk / "photos", out=out, part_size=8, **CPU)
    assert done.parts.num_skipped == 30 and done.parts.manifest == f"{out}/_job/manifest.json"
    there = {
        name.removeprefix("/bucket/parts/"): hashlib.sha256(memory.cat_file(name)).hexdigest()
        for name in memory.find("/bucket/parts")
    }
    assert there == hashes(whole)
    assert vitrine.merge(out, verify=True).num_pictures == 30
    vitrine.predict(desk / "model", desk / "photos", out="memory://bucket/p.csv", **CPU)
    assert memory.cat_file("/bucket/p.csv").decode().splitlines()[0].startswith("path,predicted,confidence")
    vitrine.embed(desk / "model", desk / "photos", out="memory://bucket/f.npy", **CPU)
    assert sorted(memory.ls("/bucket", detail=False)) == [
        "/bucket/f.csv", "/bucket/f.npy", "/bucket/p.csv", "/bucket/parts",
    ]  # fmt: skip


def test_a_job_that_is_killed_ends_with_the_bytes_of_one_that_was_not(desk):
    """One kill here; `benchmarks/batch.py kills` does ten during 50,000 pictures."""
    photos = "generated:shapes?count=1500&size=16&val=0&test=0"
    command = [sys.executable, "-m", "vitrine", "embed", str(desk / "model"), photos, "--part-size", "64"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    out = desk / "killed"
    process = subprocess.Popen(
        [*command, "--device", "cpu", "--out", str(out)], env=environment, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    while len(list(out.glob("part-*"))) < 3 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    left = len(list(out.glob("_job/part-*")))
    assert 0 < left < 24
    options = {"part_size": 64, "device": "cpu"}
    done = vitrine.embed(desk / "model", photos, out=out, **options)
    assert done.parts.num_skipped >= 64 * (left - 1)
    vitrine.embed(desk / "model", photos, out=desk / "not-killed", **options)
    assert hashes(out) == hashes(desk / "not-killed")
    manifest = json.loads((out / "_job" / "manifest.json").read_text())
    assert manifest["num_rows"] == 1500 and len(manifest["parts"]) == 24


def test_a_folder_that_holds_no_parts_is_no_job(tmp_path):
    with pytest.raises(DataError, match="holds no parts"):
        vitrine.merge(tmp_path)


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_an_error_within_a_part_leaves_no_part_and_no_further_message(desk, monkeypatch):
    def fail(*_, **__):
        raise DataError("the disk is gone")

    monkeypatch.setattr("vitrine.jobs.parts_job.table_of", fail)
    with pytest.raises(DataError, match="the disk is gone"):
        vitrine.embed(desk / "model", desk / "photos", out=desk / "failed", part_size=8, **CPU)
    gc.collect()  # what Parquet's writer says when it is deleted
    assert not list((desk / "failed").glob("*.parquet"))
