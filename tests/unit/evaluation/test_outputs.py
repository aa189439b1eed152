import socket

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing

from vitrine.data.preparing.preprocess import Preprocess
from vitrine.data.sources.file_list import FileList
from vitrine.data.sources.in_memory import ArraySource
from vitrine.errors import DataError
from vitrine.evaluation.features import (
    extract_features,
    feature_identity,
    read_features,
    representation,
    weights_hash,
)
from vitrine.evaluation.outputs import at_a_time, gather_mappings, gather_rows, on_every_rank, run_model
from vitrine.models import create_model
from vitrine.runtime.progress import listening

PREPROCESS = Preprocess(size=(16, 16))


def tiny(seed=0, num_classes=3):
    torch.manual_seed(seed)
    return create_model(
        "ViT-B/16",
        image_size=16,
        num_classes=num_classes,
        patch_size=8,
        width=16,
        depth=2,
        num_heads=2,
        mlp_width=32,
    )


def pictures(count=11, seed=0):
    images = np.random.default_rng(seed).integers(0, 256, (count, 16, 16, 3), dtype=np.uint8)
    labels = (np.arange(count) % 3).astype(np.int32)
    return ArraySource(images, labels=labels, classes=("a", "b", "c"), address="pictures", root=None)


def test_outputs_are_the_models_own_for_every_image_in_order_whatever_the_batch():
    model, data = tiny().train(), pictures()
    model.head.weight.data.normal_()
    images = torch.stack([PREPROCESS(data.images[index]) for index in range(len(data))])
    with torch.no_grad():
        expected = model.eval()(images)
    model.train()
    for batch_size in (1, 4, 64):
        rows = run_model(model, data, preprocess=PREPROCESS, batch_size=batch_size).rows
        torch.testing.assert_close(rows, expected, rtol=0, atol=1e-5)  # batches differ in summation order
    assert model.training  # left as it was found


def test_on_a_cpu_large_images_are_taken_few_at_a_time():
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    sizes = [(32, 32), (224, 224), (518, 518), (2048, 2048)]
    assert [at_a_time(cpu, size) for size in sizes] == [64, 8, 1, 1]
    assert {at_a_time(cuda, size) for size in sizes} == {64}


def test_progress_is_told_in_images():
    class Heard:
        def __init__(self):
            self.totals, self.steps = [], []

        def start(self, what, total, done=0):
            self.totals.append(total)

        def advance(self, steps, note=""):
            self.steps.append(steps)

        def finish(self): ...
        def notice(self, text, advice=()): ...

    heard = Heard()
    with listening(heard):
        run_model(tiny(), pictures(5), preprocess=PREPROCESS, batch_size=2, num_workers=0)
    assert heard.totals == [5] and heard.steps == [2, 2, 1]


def test_the_representation_is_that_of_the_features_dictionary():
    model, images = tiny().eval(), torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(
        representation(model, images), model.features(images)["representation"], rtol=0, atol=2e-6
    )


def test_an_unreadable_image_is_set_aside_with_its_reason(tmp_path):
    from PIL import Image

    Image.new("RGB", (16, 16), "red").save(tmp_path / "good.png")
    (tmp_path / "bad.png").write_text("no image")
    data = FileList(tmp_path, ["good.png", "bad.png"], labels=np.zeros(2, dtype=np.int32), classes=["a"])
    outputs = run_model(tiny(), data, preprocess=PREPROCESS)
    assert list(outputs.failures) == [1]
    assert "bad.png" in outputs.failures[1]
    assert outputs.readable.tolist() == [True, False]
    (tmp_path / "good.png").write_text("no image either")
    with pytest.raises(DataError, match=f"any image of {tmp_path}; .*good.png"):
        run_model(tiny(), data, preprocess=PREPROCESS)


def test_a_model_whose_output_is_not_finite_is_refused_with_the_image():
    model = tiny()
    model.head.bias.data[0] = float("nan")
    with pytest.raises(DataError, match=r"output for 000000 .*NaN"):
        run_model(model, pictures(), preprocess=PREPROCESS)


def test_features_are_worked_out_once_and_recalled_with_equal_numbers(tmp_path, monkeypatch):
    model, data = tiny(), pictures()
    first = extract_features(model, data, preprocess=PREPROCESS, cache=tmp_path)
    monkeypatch.setattr("vitrine.evaluation.features.run_model", None)  # must not be needed again
    second = extract_features(model, data, preprocess=PREPROCESS, cache=tmp_path)
    assert (first.from_cache, second.from_cache) == (False, True)
    assert torch.equal(first.rows, second.rows)
    assert first.rows.shape == (11, 16)
    np.testing.assert_array_equal(second.labels, data.labels)


def test_the_cache_lies_in_the_users_cache_folder_unless_told_otherwise(tmp_path, monkeypatch):
    monkeypatch.setenv("VITRINE_CACHE", str(tmp_path / "own"))
    extract_features(tiny(), pictures(), preprocess=PREPROCESS)
    assert len(list((tmp_path / "own" / "features").glob("*.safetensors"))) == 1


def test_another_model_preprocessing_or_data_never_gets_the_same_cache(tmp_path):
    extract_features(tiny(), pictures(), preprocess=PREPROCESS, cache=tmp_path)
    changed = tiny()
    changed.blocks[1].mlp.contract.bias.data[0] += 1e-3
    other = Preprocess(size=(16, 16), mean=(0.4, 0.5, 0.5))
    for model, data, preprocess in [
        (changed, pictures(), PREPROCESS),
        (tiny(), pictures(seed=1), PREPROCESS),  # same names, sizes and labels: other pixels
        (tiny(), pictures(), other),
    ]:
        assert not extract_features(model, data, preprocess=preprocess, cache=tmp_path).from_cache
    assert len(list(tmp_path.iterdir())) == 4


def test_a_new_head_keeps_the_cache_as_the_representation_is_the_same(tmp_path):
    assert weights_hash(tiny(num_classes=3)) == weights_hash(tiny(num_classes=3))
    model = tiny()
    before = weights_hash(model)
    model.head.weight.data += 1
    assert weights_hash(model) == before


def test_other_outputs_of_a_model_are_kept_apart_from_its_representation(tmp_path):
    model, data = tiny(), pictures()
    model.head.weight.data.normal_()
    options = {"preprocess": PREPROCESS, "cache": tmp_path}
    plain = extract_features(model, data, **options)
    logits = extract_features(
        model, data, **options, function=model, output=f"logits {weights_hash(model, includes_head=True)}"
    )
    assert logits.rows.shape == (11, 3) and not logits.from_cache
    assert torch.equal(extract_features(model, data, **options).rows, plain.rows)
    before = weights_hash(model, includes_head=True)
    model.head.bias.data.add_(1)
    assert weights_hash(model, includes_head=True) != before


def test_a_feature_cache_of_another_model_is_refused(tmp_path):
    data = pictures()
    extract_features(tiny(seed=1), data, preprocess=PREPROCESS, cache=tmp_path)
    (file,) = tmp_path.iterdir()
    identity = feature_identity(tiny(seed=2), data, preprocess=PREPROCESS, precision="fp32")
    with pytest.raises(DataError, match=f"{file.name} .*of another model "):
        read_features(file, identity=identity)


def test_a_damaged_feature_cache_is_refused(tmp_path):
    extract_features(tiny(), pictures(), preprocess=PREPROCESS, cache=tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(DataError, match=f"{file.name} is not a file"):
        extract_features(tiny(), pictures(), preprocess=PREPROCESS, cache=tmp_path)


def _in_process(rank, port, folder):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    torch.set_num_threads(1)
    outputs = run_model(tiny(), pictures(), preprocess=PREPROCESS, batch_size=2, num_workers=0)
    features = extract_features(
        tiny(), pictures(), preprocess=PREPROCESS, cache=folder / "cache", num_workers=0
    )
    failures = gather_mappings({10 - rank: f"rank {rank}"})
    agreed = on_every_rank(rank == 0)
    torch.save((outputs.rows, features.rows, failures, agreed), folder / f"{rank}.pt")
    dist.destroy_process_group()


def test_two_processes_score_every_image_exactly_once_and_both_have_all_rows(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(_in_process, (port, tmp_path), nprocs=2)
    alone = run_model(tiny(), pictures(), preprocess=PREPROCESS).rows
    for rank in (0, 1):
        rows, features, failures, agreed = torch.load(tmp_path / f"{rank}.pt")
        torch.testing.assert_close(rows, alone, rtol=0, atol=1e-5)  # 11 images on 2 processes: unequal shares
        assert len(features) == 11
        assert failures == {9: "rank 1", 10: "rank 0"}
        assert agreed is False
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_rows_of_one_process_are_all_rows():
    rows = torch.arange(6).view(3, 2)
    assert torch.equal(gather_rows(rows, length=3), rows)
