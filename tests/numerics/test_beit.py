"""BEiT and BEiT v2: what transformers and timm compute, from and to their files.

Models are small and random. Tolerance: 1e-5 on outputs of order one in fp32, the rounding of another order of sums.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from numerics.test_backbones_of_today import TOLERANCE, largest, pictures, stirred
from oracles import import_timm, import_torchvision
from safetensors.torch import load_file, save_file
from torch import nn

from vitrine.checkpoints import convert, load
from vitrine.errors import CheckpointError

import_torchvision()
HUGGING_FACE: dict[str, tuple[str, dict[str, Any]]] = {
    "fine-tuned": ("BeitForImageClassification", {"use_relative_position_bias": True, "num_labels": 5}),
    "averaged": ("BeitModel", {"use_relative_position_bias": True, "layer_norm_eps": 1e-6}),
    "shared": ("BeitModel", {"use_shared_relative_position_bias": True, "use_mean_pooling": False}),
    "masked": ("BeitForMaskedImageModeling", {"use_shared_relative_position_bias": True, "use_mask_token": True}),
}  # fmt: skip


def hugging_face(kind: str) -> nn.Module:
    import transformers

    name, options = HUGGING_FACE[kind]
    config = transformers.BeitConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96, image_size=32, patch_size=8,
        vocab_size=16, **options,
    )  # fmt: skip
    return stirred(getattr(transformers, name)(config))


def answer_of(theirs: nn.Module, size: int | tuple[int, int] = 32) -> torch.Tensor:
    with torch.inference_mode():
        if type(theirs).__name__ == "BeitForMaskedImageModeling":
            tokens = theirs.beit(pictures(size)).last_hidden_state  # type: ignore[operator, union-attr]
            return theirs.layernorm(tokens)[:, 0]  # type: ignore[operator]
        output = theirs(pictures(size))
    return output.logits if "logits" in output else output.pooler_output


@pytest.mark.parametrize("kind", HUGGING_FACE)
def test_a_folder_of_transformers_computes_what_transformers_computes_at_two_sizes(
    tmp_path: Path, kind: str
) -> None:
    theirs = hugging_face(kind)
    theirs.save_pretrained(tmp_path / "saved")  # type: ignore[operator]
    ours = load(tmp_path / "saved").model
    with torch.inference_mode():
        assert largest(ours(pictures()), answer_of(theirs)) < TOLERANCE
        assert largest(ours(pictures((48, 64))), answer_of(theirs, (48, 64))) < TOLERANCE
    larger = load(tmp_path / "saved", image_size=48).model
    with torch.inference_mode():
        assert largest(larger(pictures(48)), answer_of(theirs, 48)) < TOLERANCE


@pytest.mark.parametrize("kind", ["fine-tuned", "averaged", "shared"])
def test_converted_to_transformers_it_is_the_same_file_and_computes_the_same(
    tmp_path: Path, kind: str
) -> None:
    theirs = hugging_face(kind)
    theirs.save_pretrained(tmp_path / "saved")  # type: ignore[operator]
    made = convert(tmp_path / "saved", tmp_path / "again", to="hf")
    assert made.num_identical == len(made.tensors)
    assert [check.agrees for check in made.parity] == [True, True]
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("saved", "again"))
    assert before.keys() == after.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


TIMM: dict[str, dict[str, Any]] = {
    "fine-tuned": {},
    "BEiT v2": {"init_values": 1e-5},
    "pre-trained": {"use_rel_pos_bias": False, "use_shared_rel_pos_bias": True, "global_pool": "token"},
    "without LayerScale": {"init_values": 0.0},
}


def timms(kind: str) -> nn.Module:
    return stirred(
        import_timm().create_model(
            "beit_base_patch16_224", img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=4, num_classes=5,
            **TIMM[kind],
        )
    )  # fmt: skip


@pytest.mark.parametrize("kind", TIMM)
def test_timms_and_the_authors_files_compute_the_same_here_and_after_conversion(
    tmp_path: Path, kind: str
) -> None:
    theirs = timms(kind)
    save_file(theirs.state_dict(), tmp_path / "weights.safetensors")
    ours = load(tmp_path / "weights.safetensors").model
    with torch.inference_mode():
        assert largest(ours(pictures()), theirs(pictures())) < TOLERANCE
    made = convert(tmp_path / "weights.safetensors", tmp_path / "timm", to="timm")
    assert made.num_identical == len(made.tensors)
    assert [check.agrees for check in made.parity if check.against.startswith("timm")] == [True]
    written = load_file(tmp_path / "timm" / "model.safetensors")
    assert written.keys() == theirs.state_dict().keys()
    assert all(torch.equal(written[name], tensor) for name, tensor in theirs.state_dict().items())


def test_the_authors_files_have_the_rows_of_all_pairs_of_tokens(tmp_path: Path) -> None:
    theirs = timms("fine-tuned")
    index = theirs.blocks[1].attn.relative_position_index  # type: ignore[index, union-attr]
    save_file(theirs.state_dict(), tmp_path / "weights.safetensors")
    convert(tmp_path / "weights.safetensors", tmp_path / "official.safetensors", to="official")
    written = load_file(tmp_path / "official.safetensors")
    assert torch.equal(written["blocks.1.attn.relative_position_index"], index)
    written |= {"mask_token": torch.ones(1, 1, 64), "lm_head.weight": torch.ones(8, 64)}
    torch.save({"model": written}, tmp_path / "official.pth")
    ours = load(tmp_path / "official.pth").model
    with torch.inference_mode():
        assert largest(ours(pictures()), theirs(pictures())) < TOLERANCE


def test_a_table_for_no_square_is_refused_until_the_size_is_given(tmp_path: Path) -> None:
    theirs = stirred(
        import_timm().create_model(
            "beit_base_patch16_224", img_size=(16, 32), patch_size=8, embed_dim=64, depth=1, num_heads=4
        )
    )
    save_file(theirs.state_dict(), tmp_path / "weights.safetensors")
    with pytest.raises(CheckpointError):
        load(tmp_path / "weights.safetensors")
    ours = load(tmp_path / "weights.safetensors", image_size=(16, 32)).model
    with torch.inference_mode():
        assert largest(ours(pictures((16, 32))), theirs(pictures((16, 32)))) < TOLERANCE
