"""Each wrong file gets one sentence that names it, and the first tensor that is wrong; nothing is half-written."""

import io
import json
import os
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from unit.checkpoints.made import arrays_of, small_vit, write_npz

from vitrine.checkpoints import convert, hub, load, save
from vitrine.checkpoints.reading import safetensors_file
from vitrine.errors import CheckpointError, MissingCheckpointError, TryVerb, VitrineError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save(small_vit(), tmp_path / "model")


@pytest.fixture
def npz(tmp_path: Path) -> Path:
    return save(small_vit(), tmp_path / "model.npz", to="npz")


def refused(path: Path | str, *words: str, **options: object) -> str:
    with pytest.raises(CheckpointError) as caught:
        load(path, **options)  # type: ignore[arg-type]
    sentence = str(caught.value)
    assert "\n" not in sentence
    for word in (*words, Path(path).name):
        assert word in sentence, sentence
    return sentence


def changed(folder: Path, **tensors: torch.Tensor | None) -> Path:
    """Write a folder's weights anew, as someone else would, without our record."""
    path = folder / "model.safetensors"
    found = load_file(path) | {name.replace("__", "."): tensor for name, tensor in tensors.items()}
    save_file({name: tensor for name, tensor in found.items() if tensor is not None}, path)
    config = json.loads((folder / "config.json").read_text())
    del config["vitrine"]
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("part", [0.001, 0.5, 0.999])
def test_a_truncated_safetensors_file_is_named(folder: Path, part: float) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * part)])
    refused(path, "truncated")


@pytest.mark.parametrize("part", [0.3, 0.999])
def test_a_truncated_npz_file_is_named(npz: Path, part: float) -> None:
    npz.write_bytes(npz.read_bytes()[: int(npz.stat().st_size * part)])
    refused(npz, "truncated or damaged")


@pytest.mark.parametrize("part", [0.3, 0.999])
@pytest.mark.parametrize("is_zip", [True, False])
def test_a_truncated_torch_file_is_named(tmp_path: Path, part: float, is_zip: bool) -> None:
    path = tmp_path / "model.pth"
    torch.save(small_vit().state_dict(), path, _use_new_zipfile_serialization=is_zip)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * part)])
    refused(path, "truncated or damaged")


def test_a_flipped_bit_in_our_own_file_is_found(folder: Path) -> None:
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    refused(path, "not the file that was saved")


def test_a_flipped_bit_in_an_npz_is_found(npz: Path) -> None:
    data = bytearray(npz.read_bytes())
    data[npz.stat().st_size // 2] ^= 1
    npz.write_bytes(data)
    refused(npz, "damaged")


def test_a_wrong_width_names_the_first_tensor_with_both_shapes(folder: Path) -> None:
    name = "vit__encoder__layer__1__intermediate__dense__weight"
    changed(folder, **{name: torch.zeros(96, 32)})
    refused(
        folder / "model.safetensors",
        "vit.encoder.layer.1.intermediate.dense.weight",
        "has shape (96, 32), expected (96, 64)",
    )


def test_a_missing_tensor_is_named_with_the_shape_that_it_should_have(folder: Path) -> None:
    changed(folder, vit__encoder__layer__1__attention__attention__key__bias=None)
    refused(
        folder / "model.safetensors",
        "does not contain the tensor vit.encoder.layer.1.attention.attention.key.bias",
        "(64,)",
    )


def test_a_tensor_too_much_is_named_with_the_nearest_known_name(folder: Path) -> None:
    changed(folder, vit__layernormal__weight=torch.zeros(64))
    refused(
        folder / "model.safetensors",
        "unexpected tensor: vit.layernormal.weight",
        "(64,)",
        "nearest known: vit.layernorm",
    )


def test_a_missing_array_of_an_npz_is_named(tmp_path: Path, npz: Path) -> None:
    arrays = arrays_of(npz)
    del arrays["Transformer/encoderblock_1/MlpBlock_3/Dense_1/bias"]
    refused(
        write_npz(tmp_path / "less.npz", arrays),
        "does not contain the tensor Transformer/encoderblock_1/MlpBlock_3/Dense_1/bias",
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_none_are_refused_by_tensor(folder: Path, value: float) -> None:
    bad = torch.zeros(64)
    bad[3] = value
    changed(folder, vit__encoder__layer__0__attention__attention__value__bias=bad)
    refused(
        folder / "model.safetensors",
        "vit.encoder.layer.0.attention.attention.value.bias",
        "NaN or infinity",
    )


class Evil:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {self.mark}",)


@pytest.mark.parametrize("is_zip", [True, False])
def test_a_pickle_that_wants_to_run_code_is_refused_and_runs_nothing(tmp_path: Path, is_zip: bool) -> None:
    mark, path = tmp_path / "ran", tmp_path / "evil.pth"
    torch.save({"model": Evil(mark)}, path, _use_new_zipfile_serialization=is_zip)
    refused(path, "run code", "system")
    assert not mark.exists()


def test_a_plain_pickle_is_refused(tmp_path: Path) -> None:
    mark, path = tmp_path / "ran", tmp_path / "evil.bin"
    path.write_bytes(pickle.dumps(Evil(mark)))
    refused(path, "refused")
    assert not mark.exists()


def test_an_npz_with_python_objects_is_refused_by_array(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    np.savez(tmp_path / "evil.npz", **{"embedding/kernel": np.array([Evil(mark)], dtype=object)})
    refused(tmp_path / "evil.npz", "Python objects in embedding/kernel")
    assert not mark.exists()


def test_a_zip_bomb_is_refused_before_anything_is_unpacked(tmp_path: Path) -> None:
    path, header = tmp_path / "bomb.npz", io.BytesIO()
    zeros = 200 << 20
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (zeros,)})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("cls.npy", "w") as member:
        member.write(header.getvalue())
        for _ in range(200):
            member.write(bytes(1 << 20))
    sentence = refused(path, "zip bomb", "cls.npy")
    assert re.search(r"grow from [\d,]+ to 209,7", sentence)


def test_an_array_whose_header_promises_more_than_there_is_is_refused(tmp_path: Path) -> None:
    path, header = tmp_path / "liar.npz", io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": (1 << 40,)}
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("embedding/kernel.npy", header.getvalue() + bytes(64))
    refused(path, "embedding/kernel", "needs 4,398,046,511,104 bytes and has 64")


def test_a_safetensors_header_of_absurd_length_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes((1 << 60).to_bytes(8, "little") + b"{}")
    refused(path, "truncated or not a safetensors file")


def test_overlong_offsets_are_refused_by_tensor(tmp_path: Path) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 4]}}).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))
    refused(path, "tensor a of (4,) float32 needs 16 bytes, the header gives it 4")


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [4, 0]}}, "is damaged: its tensor a"),
        ({"a": {"dtype": "F32", "shape": [4], "data_offsets": ["x", "y"]}}, "shape for the tensor a"),
        ({"a": {"dtype": [], "shape": [4], "data_offsets": [0, 16]}}, "holds a as []; known"),
        ({"__metadata__": [1]}, "its __metadata__ is not"),
    ],
)
def test_a_header_that_makes_no_sense_is_refused_in_words(
    tmp_path: Path, header: dict[str, object], words: str
) -> None:
    path, text = tmp_path / "x.safetensors", json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(16))
    refused(path, words)


@pytest.mark.parametrize("record", [5, [], {"format": 1, "model": 3, "preprocess": {}}, {"format": 1}])
def test_a_record_that_is_none_is_told(folder: Path, record: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vitrine": record}))
    with pytest.raises(CheckpointError, match=r"config\.json holds a record"):
        load(folder)


def test_a_record_inside_a_file_that_is_no_json_is_told(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file(small_vit().state_dict(), path, metadata={"vitrine": "{"})
    with pytest.raises(CheckpointError, match=r"record .* is not JSON"):
        load(path)


@pytest.mark.parametrize("text", ["{", "[]", '{"weight_map": []}', '{"weight_map": {"a": 1}}'])
def test_an_index_of_shards_that_is_none_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    refused(tmp_path / "model.safetensors.index.json", "is not an index of shards")


@pytest.mark.parametrize(
    "settings", [{"id2label": {"first": "cat"}}, {"model_args": [1]}, {"image_size": [1, 2, 3]}]
)
def test_a_foreign_config_that_makes_no_sense_is_refused_in_words(
    folder: Path, settings: dict[str, object]
) -> None:
    changed(folder)
    config = json.loads((folder / "config.json").read_text())
    del config["image_size"]
    (folder / "config.json").write_text(json.dumps(config | settings))
    with pytest.raises(CheckpointError, match=r"config\.json gives no .*image size"):
        load(folder)


def test_a_file_that_is_replaced_while_it_is_opened_is_read_as_the_one_that_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is served while it trains replaces its checkpoint now and then."""
    path, later = tmp_path / "last.safetensors", tmp_path / "later.safetensors"
    save_file({"a": torch.zeros(4)}, path)
    save_file({"a": torch.ones(4)}, later)
    read_index = safetensors_file.read_index

    def replaced_meanwhile(*given: Any, **options: Any) -> Any:
        later.replace(path)
        return read_index(*given, **options)

    monkeypatch.setattr(safetensors_file, "read_index", replaced_meanwhile)
    assert safetensors_file.SafetensorsFile(path).read("a").tolist() == [0.0] * 4


def test_a_folder_without_weights_says_what_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    refused(tmp_path, "holds no weights", "model.safetensors")


def test_a_run_that_was_stopped_says_how_it_goes_on(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(CheckpointError, match="has not finished") as caught:
        load(tmp_path)
    assert caught.value.advice == (TryVerb("resume", (str(tmp_path),), "to continue it"),)


def test_a_folder_with_several_files_of_weights_lists_them(tmp_path: Path) -> None:
    for name in ("a.npz", "b.npz"):
        (tmp_path / name).write_bytes(b"x")
    refused(tmp_path, "a.npz, b.npz")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_named(npz: Path) -> None:
    npz.chmod(0)
    refused(npz, "no permission")


def test_permission_refusals_become_sentences(npz: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The same as above for a test that runs as root, who may read and write everything.
    def deny(self: Path, *args: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", deny)
        refused(npz, "no permission to read")
    with monkeypatch.context() as patched:
        opened = Path.open
        patched.setattr(
            Path,
            "open",
            lambda self, mode="r", **options: (deny if "x" in mode else opened)(self, mode, **options),
        )
        with pytest.raises(CheckpointError, match=r"no permission .*out\.npz; nothing .*written"):
            convert(npz, npz.with_name("out.npz"), to="npz", check_logits=False)


def test_a_wrong_path_suggests_the_nearest(npz: Path) -> None:
    with pytest.raises(MissingCheckpointError, match=r"modle\.npz") as refused:
        load(str(npz.with_name("modle.npz")))
    assert refused.value.suggestions == (str(npz),)


def test_a_text_file_is_no_file_of_weights(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensor"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1234\n")
    refused(path, "is not a weights file", "begins with")


def test_an_empty_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.npz").write_bytes(b"")
    refused(tmp_path / "model.npz", "is empty")


def test_weights_of_something_else_are_named_by_their_first_tensors(tmp_path: Path) -> None:
    save_file({"layer1.conv.weight": torch.zeros(2)}, tmp_path / "resnet.safetensors")
    refused(tmp_path / "resnet.safetensors", "no known layout", "layer1.conv.weight")


def test_unknown_heads_are_asked_for(tmp_path: Path) -> None:
    path = save(small_vit(gelu="erf", width=48), tmp_path / "model.safetensors", to="timm")
    save_file(load_file(path), tmp_path / "bare.safetensors")
    refused(tmp_path / "bare.safetensors", "attention heads", "width 48", "num_heads")
    assert load(tmp_path / "bare.safetensors", num_heads=4).model.config.num_heads == 4


def test_a_failed_write_leaves_the_old_file_and_no_other(
    tmp_path: Path, npz: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = npz.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    for destination, to in ((npz, "npz"), (tmp_path / "folder", "hf"), (tmp_path / "x.safetensors", "timm")):
        with pytest.raises(CheckpointError, match=r"No space left"):
            save(small_vit(seed=1), destination, to=to, overwrite=True)  # type: ignore[arg-type]
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.npz"]
    assert npz.read_bytes() == before


def test_what_is_there_is_not_overwritten_unasked(folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"exists"):
        save(small_vit(seed=1), folder)
    save(small_vit(seed=1), folder, overwrite=True)
    assert sorted(entry.name for entry in folder.iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
        "preprocessor_config.json",
    ]
    load(folder)  # the checksum goes with the new weights


def test_pickles_are_never_written(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"pickles are never written.*model\.safetensors"):
        save(small_vit(), tmp_path / "model.pth")


def test_a_record_of_a_later_format_asks_for_an_update(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["vitrine"]["format"] = 99
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"later Vitrine .*pip install -U"):
        load(folder)


NONSENSE = [
    float("inf"),
    float("nan"),
    -1,
    0,
    2**63,
    10**30,
    2_000_000,
    1.5,
    "x",
    None,
    [],
    {},
    [1e999, 1e999],
    True,
]


def numbers_in(values: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """List the places of all numbers and lists of a JSON object."""
    if isinstance(values, dict):
        return [place for key, value in values.items() for place in numbers_in(value, (*path, key))]
    return [path] if isinstance(values, int | float | list) else []


def with_value(values: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    return {**values, path[0]: with_value(values[path[0]], path[1:], value)}


@pytest.mark.parametrize(
    "to",
    ["vitrine", pytest.param("hf", marks=pytest.mark.slow), pytest.param("timm", marks=pytest.mark.slow)],
)
@pytest.mark.timeout(120)
def test_no_number_in_a_config_makes_more_than_one_sentence(tmp_path: Path, to: str) -> None:
    """Absurd sizes are refused before anything is built; whatever can still be loaded is a model."""
    folder = save(small_vit(), tmp_path / "model", to=to)
    file = folder / "config.json"
    config = json.loads(file.read_text())
    for place in numbers_in(config):
        for value in NONSENSE:
            file.write_text(json.dumps(with_value(config, place, value)))
            try:
                load(folder)
            except VitrineError as error:
                assert "\n" not in str(error), (place, value)


@pytest.mark.parametrize("depth", [2_000_000, 10**12])
def test_a_record_of_millions_of_blocks_is_refused_at_once(folder: Path, depth: int) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["vitrine"]["model"]["depth"] = depth
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"depth .*1,000, got \de\+"):
        load(folder)


def test_a_header_nested_without_end_is_refused(tmp_path: Path) -> None:
    header = b'{"a":' * 200_000 + b"1" + b"}" * 200_000
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    refused(path, "not a JSON object")


@pytest.mark.parametrize("name", ["config.json", "preprocessor_config.json", "model.safetensors.index.json"])
def test_a_small_file_nested_without_end_is_refused(folder: Path, name: str) -> None:
    (folder / name).write_text("[" * 200_000)
    if name.endswith("index.json"):
        (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=re.escape(name)):
        load(folder)


@pytest.mark.parametrize("field", ["shape", "data_offsets"])
@pytest.mark.parametrize(
    "value", ["[1e999]", "[1e999, 1e999]", "[1e308, 1e308]", "[NaN, NaN]", "[-1, -1]", "[[]]"]
)
def test_a_shape_that_is_no_number_is_refused(tmp_path: Path, field: str, value: str) -> None:
    entry = {"dtype": '"F32"', "shape": "[1]", "data_offsets": "[0, 4]"} | {field: value}
    header = ('{"a": {' + ", ".join(f'"{key}": {text}' for key, text in entry.items()) + "}}").encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    refused(path, "damaged")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["model.safetensors", "model.npz", "model.pth", "model.onnx"])
def test_a_pipe_in_the_place_of_weights_is_refused_instead_of_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    refused(tmp_path / name, "not a regular file")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "preprocessor_config.json"])
def test_a_pipe_in_a_folder_of_weights_is_refused_instead_of_waited_for(folder: Path, name: str) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(CheckpointError, match="not a regular file"):
        load(folder)


def test_the_latest_run_where_there_is_none_never_asks_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hub, "fetch", lambda *given, **options: pytest.fail("the hub was asked"))
    for place in ("runs/latest", "elsewhere/latest"):
        with pytest.raises(VitrineError, match="no training run"):
            load(place)
