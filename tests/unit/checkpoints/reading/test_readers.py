"""Weights files of every format, read whole, by rows and into place; what cannot be read is refused."""

import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from safetensors.torch import save_file

from vitrine.checkpoints.reading import open_tensors
from vitrine.checkpoints.reading.npz_file import MAX_ARRAYS
from vitrine.errors import CheckpointError

TABLE = torch.arange(24, dtype=torch.float32).reshape(4, 6)


def saved_npz(path: Path, *, compressed: bool = False) -> Path:
    (np.savez_compressed if compressed else np.savez)(
        path, table=TABLE.numpy(), bias=np.ones(3, dtype=np.float16)
    )
    return path


def saved_onnx(path: Path, tensor: TensorProto) -> Path:
    graph = helper.make_graph([], "graph", [], [], initializer=[tensor])
    path.write_bytes(helper.make_model(graph).SerializeToString())
    return path


@pytest.fixture(params=["npz", "compressed npz", "safetensors", "torch", "onnx"])
def weights_file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    match request.param:
        case "safetensors":
            save_file({"table": TABLE}, tmp_path / "a.safetensors")
            return tmp_path / "a.safetensors"
        case "torch":
            torch.save({"table": TABLE}, tmp_path / "a.pt")
            return tmp_path / "a.pt"
        case "onnx":
            raw = helper.make_tensor("table", TensorProto.FLOAT, (4, 6), TABLE.numpy().tobytes(), raw=True)
            return saved_onnx(tmp_path / "a.onnx", raw)
        case kind:
            return saved_npz(tmp_path / "a.npz", compressed=kind.startswith("compressed"))


def test_a_tensor_is_read_whole_by_row_and_into_place(weights_file: Path) -> None:
    file = open_tensors(weights_file)
    assert file.index["table"].shape == (4, 6)
    assert torch.equal(file.read("table"), TABLE)
    assert torch.equal(file.read("table", row=2), TABLE[2])
    whole, row = torch.empty(4, 6), torch.empty(6)
    file.read_into("table", whole)
    file.read_into("table", row, row=3)
    assert torch.equal(whole, TABLE) and torch.equal(row, TABLE[3])


def test_a_tensor_is_read_into_another_type_and_into_memory_with_gaps(weights_file: Path) -> None:
    file = open_tensors(weights_file)
    rounded, turned = torch.empty(4, 6, dtype=torch.bfloat16), torch.empty(6, 4).T
    file.read_into("table", rounded)
    file.read_into("table", turned)
    assert torch.equal(rounded, TABLE.bfloat16()) and torch.equal(turned, TABLE)


def test_floats_in_an_onnx_file_may_be_stored_as_numbers(tmp_path: Path) -> None:
    tensor = helper.make_tensor("table", TensorProto.FLOAT, (4, 6), TABLE.flatten().tolist())
    assert torch.equal(open_tensors(saved_onnx(tmp_path / "a.onnx", tensor)).read("table"), TABLE)


def test_an_onnx_file_without_weights_of_its_own_is_refused(tmp_path: Path) -> None:
    graph = helper.make_graph([], "graph", [], [])
    (tmp_path / "a.onnx").write_bytes(helper.make_model(graph).SerializeToString())
    with pytest.raises(CheckpointError) as refused:
        open_tensors(tmp_path / "a.onnx")
    assert "a.onnx" in str(refused.value)


def test_a_tensor_of_an_onnx_file_with_too_few_bytes_is_named(tmp_path: Path) -> None:
    tensor = onnx.TensorProto(name="table", dims=[4, 6], data_type=TensorProto.FLOAT, raw_data=b"\0" * 80)
    with pytest.raises(CheckpointError) as refused:
        open_tensors(saved_onnx(tmp_path / "a.onnx", tensor))
    assert "table" in str(refused.value) and "96" in str(refused.value)


@pytest.mark.parametrize("end", [b"\x3b", b"\x3a\xff\x01", b"\x3f\x00" + b"\xff" * 12])
def test_an_onnx_file_that_ends_in_the_middle_is_refused(tmp_path: Path, end: bytes) -> None:
    raw = helper.make_tensor("table", TensorProto.FLOAT, (4, 6), TABLE.numpy().tobytes(), raw=True)
    path = saved_onnx(tmp_path / "a.onnx", raw)
    path.write_bytes(path.read_bytes() + end)
    with pytest.raises(CheckpointError) as refused:
        open_tensors(path)
    assert "a.onnx" in str(refused.value) and "\n" not in str(refused.value)


def test_an_array_of_another_kind_than_numbers_is_refused_by_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", words=np.array(["cat", "dog"]))
    with pytest.raises(CheckpointError) as refused:
        open_tensors(tmp_path / "a.npz").read("words")
    assert "words" in str(refused.value)


def test_an_array_in_fortran_order_is_refused_by_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", turned=np.asfortranarray(TABLE.numpy()))
    with pytest.raises(CheckpointError) as refused:
        open_tensors(tmp_path / "a.npz")
    assert "turned" in str(refused.value)


def test_an_entry_of_an_npz_that_is_no_array_is_refused_by_name(tmp_path: Path) -> None:
    path = saved_npz(tmp_path / "a.npz")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("notes.npy", "no array at all")
    with pytest.raises(CheckpointError) as refused:
        open_tensors(path)
    assert "notes" in str(refused.value)


def test_an_npz_of_very_many_entries_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitrine.checkpoints.reading.npz_file.MAX_ARRAYS", 1)
    assert MAX_ARRAYS > 10_000
    with pytest.raises(CheckpointError) as refused:
        open_tensors(saved_npz(tmp_path / "a.npz"))
    assert "2 entries" in str(refused.value)
