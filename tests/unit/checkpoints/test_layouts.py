"""Each layout is read for what it reveals, written as its own code wants it, and given back bit for bit."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from unit.checkpoints.made import arrays_of, images, logits, randomised, small_vit, write_npz

from vitrine.checkpoints import convert, load, save
from vitrine.checkpoints.layouts import layout_for
from vitrine.checkpoints.layouts.native import empty_state
from vitrine.errors import CheckpointError
from vitrine.models import BiTConfig, Model, build
from vitrine.models.stem_configs import ResNetStemConfig

STEM = {"stem": ResNetStemConfig(units=(2, 1)), "patch_size": (1, 1)}
PROJECTION = {"representation_width": 8, "representation_layer": "projection", "projection_bias": True}
EVA_CLIP = {
    **PROJECTION, "rotary": "eva", "rotary_grid": (16, 16), "mlp": "swiglu", "mlp_norm": True, "attention_norm": True,
    "key_bias": False,
}  # fmt: skip
OFFICIAL_EVERYTHING = {
    "plain": {},
    "pre_logits": {"representation_width": 40},
    "hybrid": STEM,
    "average": {"pooling": "average"},
    "not square": {"image_size": (32, 48), "patch_size": (8, 16)},
    "one layer": {"depth": 1},
}


def small_bit(**options: Any) -> Model:
    config = BiTConfig(units=(1, 2, 1, 1), image_size=(32, 32), num_classes=5, **options)
    return randomised(build(config))


def same_files(one: Path, other: Path) -> bool:
    if one.suffix == ".npz":
        first, second = arrays_of(one), arrays_of(other)
        assert list(first) == list(second)
        return all(first[name].tobytes() == second[name].tobytes() for name in first)
    return one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize("kind", OFFICIAL_EVERYTHING)
@pytest.mark.parametrize("generation", "ABCD")
def test_official_files_come_back_bit_for_bit_through_our_format(
    tmp_path: Path, kind: str, generation: Any
) -> None:
    model = small_vit(**OFFICIAL_EVERYTHING[kind])
    first = save(model, tmp_path / "1.npz", to="npz", generation=generation)
    size = model.config.image_size
    convert(first, tmp_path / "ours", to="vitrine", image_size=size, check_logits=False)
    again = tmp_path / "2.npz"
    convert(tmp_path / "ours", again, to="npz", generation=generation, check_logits=False)
    assert same_files(first, again)
    loaded = load(first, image_size=size).model
    # A position slot that is merged into the class token is the same sum made earlier.
    assert torch.equal(logits(loaded, images(model)), logits(model, images(model)))


@pytest.mark.parametrize("to", ["hf", "timm", "torchvision"])
def test_torch_files_come_back_byte_for_byte_through_an_official_file(tmp_path: Path, to: Any) -> None:
    first = save(small_vit(gelu="erf"), tmp_path / "1", to=to)
    options = {"check_logits": False, "approximate": True}
    convert(first, tmp_path / "x.npz", to="npz", **options)
    convert(tmp_path / "x.npz", tmp_path / "2", to=to, **options)
    assert (tmp_path / "1" / "model.safetensors").read_bytes() == (
        tmp_path / "2" / "model.safetensors"
    ).read_bytes()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_number_types_survive_a_round_trip(tmp_path: Path, dtype: torch.dtype) -> None:
    model = small_vit().to(dtype)
    first = save(model, tmp_path / "1.npz", to="npz")
    if dtype == torch.bfloat16:  # as in JAX's files: two bytes of something
        assert arrays_of(first)["cls"].dtype == np.dtype("V2")
    convert(first, tmp_path / "ours", to="vitrine", check_logits=False)
    convert(tmp_path / "ours", tmp_path / "2.npz", to="npz", check_logits=False)
    assert same_files(first, tmp_path / "2.npz")
    assert next(load(first).model.parameters()).dtype == torch.float32
    assert next(load(first, dtype=dtype).model.parameters()).dtype == dtype


def test_a_bit_file_comes_back_bit_for_bit_and_may_number_its_convolutions(tmp_path: Path) -> None:
    model = small_bit()
    first = save(model, tmp_path / "1.npz", to="npz")
    arrays = arrays_of(first)
    numbered = {
        name.replace("standardized_conv2d/", f"standardized_conv2d_{i}/"): array
        for i, (name, array) in enumerate(arrays.items())
    }
    loaded = load(write_npz(tmp_path / "numbered.npz", numbered), image_size=32).model
    assert torch.equal(logits(loaded, images(model)), logits(model, images(model)))
    convert(first, tmp_path / "timm", to="timm", image_size=32, check_logits=False)
    convert(tmp_path / "timm", tmp_path / "2.npz", to="npz", check_logits=False)
    assert same_files(first, tmp_path / "2.npz")


def test_old_hybrid_files_keep_group_norms_in_four_axes(tmp_path: Path) -> None:
    model = small_vit(**STEM)
    arrays = arrays_of(save(model, tmp_path / "1.npz", to="npz"))
    old = {name: array.reshape(1, 1, 1, -1) if "gn" in name else array for name, array in arrays.items()}
    loaded = load(write_npz(tmp_path / "old.npz", old)).model
    assert torch.equal(logits(loaded, images(model)), logits(model, images(model)))


@pytest.mark.parametrize("prefix", ["", "params/img/", "opt/target/"])
def test_big_vision_files_are_read_under_every_prefix_and_without_their_training_state(
    tmp_path: Path, prefix: str
) -> None:
    model = small_vit(pooling="attention")
    arrays = arrays_of(save(model, tmp_path / "1.npz", to="npz", generation="C"))
    moved = {prefix + name.removeprefix("params/"): array for name, array in arrays.items()}
    if prefix == "params/img/":
        moved["params/t"] = np.zeros(1, np.float32)
    path = write_npz(tmp_path / "moved.npz", moved)
    loaded = load(path)
    assert loaded.model.config.pooling == "attention"
    assert torch.equal(logits(loaded.model, images(model)), logits(model, images(model)))


def test_big_vision_leaves_fixed_positions_out_of_its_files(tmp_path: Path) -> None:
    model = small_vit(positions="sincos_2d", pooling="average")
    path = save(model, tmp_path / "1.npz", to="npz", generation="C")
    assert not [name for name in arrays_of(path) if "pos" in name]
    loaded = load(path, image_size=32)
    assert loaded.model.config.positions == "sincos_2d"
    assert torch.equal(logits(loaded.model, images(model)), logits(model, images(model)))
    # Elsewhere they are written out as a table, which computes the same.
    result = convert(path, tmp_path / "timm", to="timm", image_size=32, check_logits=False)
    assert any("written out as one table" in note for note in result.notes)
    again = load(tmp_path / "timm").model
    assert torch.equal(logits(again, images(model)), logits(model, images(model)))


def test_heads_of_an_odd_width_are_read_from_an_official_file(tmp_path: Path) -> None:
    model = small_vit(width=48, num_heads=2, mlp_width=20, depth=3, channels=1, num_classes=2)
    loaded = load(save(model, tmp_path / "1.npz", to="npz"))
    assert loaded.model.config == model.config
    assert len(loaded.preprocess.mean) == 1


@pytest.mark.parametrize(
    ("options", "to", "reason"),
    [
        ({"pooling": "average"}, "hf", "average pooling; the layouts timm"),
        ({"pooling": "average"}, "torchvision", "average pooling; the layouts timm"),
        (STEM, "hf", "a ResNet stem"),
        ({"representation_width": 8}, "timm", "drops the representation layer"),
        ({"representation_width": 8}, "hf", "ignores the representation layer"),
        ({"num_registers": 2}, "npz", "registers; the layout vitrine"),
        ({"layer_scale": 1.0}, "npz", "LayerScale"),
        ({"layer_scale": 1.0}, "hf", "DINOv2 classifier reads twice"),
        ({"qk_norm": True}, "torchvision", "norms of queries and keys"),
        ({"positions": "relative"}, "timm", "relative positions"),
        ({"pooling": "attention"}, "npz", "attention pooling"),
        ({"image_size": (32, 48)}, "torchvision", "not square"),
        ({"has_distillation_token": True}, "npz", "a distillation token"),
        ({}, "dinov2", "files have no head"),
        ({"num_classes": None}, "dinov2", "always has LayerScale"),
        ({"embedding_norm": True}, "timm", "if patches have no bias"),
        (
            {"embedding_norm": True, "num_classes": None},
            "hf",
            "CLIP .*no patch bias",
        ),
        ({"embedding_norm": True, "patch_bias": False}, "hf", "CLIP has no head"),
        (
            {"embedding_norm": True, "patch_bias": False, "num_classes": None, "activation": "silu"},
            "hf",
            "silu",
        ),
        ({"pooling": "attention"}, "hf", "SigLIP has no head"),
        ({"rotary": "eva"}, "timm", "a bias of the keys"),
        ({"rotary": "dinov3"}, "hf", "learned_1d positions"),
        (
            {"rotary": "dinov3", "positions": "none", "num_registers": 4, "key_bias": False},
            "dinov3",
            "has no head",
        ),
        ({"mlp": "swiglu"}, "hf", "SwiGLU"),
        ({"attention_norm": True}, "timm", "a norm of the mixed values"),
        ({**EVA_CLIP, "num_classes": None, "projection_bias": False}, "timm", "one layer after pooling"),
        (EVA_CLIP, "timm", "one layer after pooling"),
        (EVA_CLIP, "official", "a head beside its projection"),
        (
            {**EVA_CLIP, "num_classes": None, "mlp_norm": False},
            "official",
            "in one of attention and MLP alone",
        ),
        ({**EVA_CLIP, "num_classes": None, "rotary_grid": None}, "official", "stretched to None"),
        ({**EVA_CLIP, "num_classes": None, "key_bias": True}, "official", "a bias of the keys"),
        ({**EVA_CLIP, "num_classes": None, "rotary_base": 100.0}, "official", "of base 100.0"),
        ({**EVA_CLIP, "num_classes": None, "mlp": "dense", "mlp_norm": False}, "official", "or the reverse"),
        ({**EVA_CLIP, "num_classes": None, "pooling": "average"}, "official", "average pooling"),
        ({**EVA_CLIP, "num_classes": None, "positions": "none"}, "official", "none positions"),
        (
            {"num_classes": None, **PROJECTION, "embedding_norm": True, "patch_bias": False},
            "openclip",
            "a projection with a bias",
        ),
        ({"stem": "hmlp"}, "timm", "stem other than a ResNet"),
        ({"positions": "peg"}, "timm", "peg positions"),
    ],
)
def test_what_a_target_cannot_hold_is_refused_with_the_reason_and_a_way(
    tmp_path: Path, options: dict[str, Any], to: Any, reason: str
) -> None:
    gelu = "tanh" if to == "npz" else "erf"
    with pytest.raises(CheckpointError, match="not converted") as caught:
        save(
            small_vit(**({"gelu": gelu} | options)),
            tmp_path / ("out.npz" if to == "npz" else "out"),
            to=to,
        )
    assert re.search(reason, str(caught.value))
    assert any(word in str(caught.value) for word in ("layout", "keep it"))
    assert list(tmp_path.iterdir()) == []


def test_bit_models_are_refused_where_only_transformers_live(tmp_path: Path) -> None:
    for to in ("hf", "torchvision"):
        with pytest.raises(CheckpointError, match=r"BiT ResNets; .*npz and timm"):
            save(small_bit(), tmp_path / "out", to=to)  # type: ignore[arg-type]


ODD = {
    "registers": {"num_registers": 2, "layer_scale": 0.1},
    "relative": {"positions": "relative"},
    "each layer": {"positions": "learned_2d", "position_placement": "every_layer"},
    "attention pooling": {"pooling": "attention"},
    "stem": STEM,
    "sincos": {"positions": "sincos_2d"},
    "hidden layer": {"representation_width": 7},
    "features": {"num_classes": None},
    "distilled": {"has_distillation_token": True},
}


@pytest.mark.parametrize("kind", ODD)
def test_our_format_holds_every_model(tmp_path: Path, kind: str) -> None:
    model = small_vit(**ODD[kind])
    save(model, tmp_path / "model", recipe={"epochs": 3})
    loaded = load(tmp_path / "model")
    assert loaded.model.config == model.config
    assert loaded.record.recipe == {"epochs": 3}
    assert torch.equal(logits(loaded.model, images(model)), logits(model, images(model)))


def test_a_bare_state_dict_of_ours_is_read_too(tmp_path: Path) -> None:
    model = small_vit(**STEM)
    torch.save({"model": model.state_dict(), "step": 3}, tmp_path / "last.pt")
    loaded = load(tmp_path / "last.pt", num_heads=4)
    assert torch.equal(logits(loaded.model, images(model)), logits(model, images(model)))


def test_a_bare_state_dict_of_a_resnet_is_read_too(tmp_path: Path) -> None:
    model = small_bit()
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    loaded = load(tmp_path / "weights.pt", image_size=32)
    assert isinstance(loaded.model.config, BiTConfig)
    assert torch.equal(logits(loaded.model, images(model)), logits(model, images(model)))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"hidden_act": "swish"}, "has the unknown activation 'swish'"),
        ({"pooler_act": "relu"}, "has the unknown pooler 'relu'"),
    ],
)
def test_a_config_of_transformers_with_another_function_is_refused(
    tmp_path: Path, changed: dict[str, str], reason: str
) -> None:
    folder = tmp_path / "model"
    save(small_vit(gelu="erf", num_classes=None, representation_width=32), folder, to="hf")
    config = json.loads((folder / "config.json").read_text())
    config.pop("vitrine", None)
    (folder / "config.json").write_text(json.dumps(config | changed))
    with pytest.raises(CheckpointError, match=reason):
        load(folder)


def test_class_names_of_another_number_than_the_head_has_are_skipped_with_a_note(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save(small_vit(gelu="erf"), folder, to="hf", classes=list("abcde"))
    config = json.loads((folder / "config.json").read_text())
    config.pop("vitrine", None)
    config["id2label"] = {"0": "a", "1": "b", "2": "c"}
    config.pop("label2id", None)
    (folder / "config.json").write_text(json.dumps(config))
    loaded = load(folder)
    assert loaded.classes is None
    assert any(re.search("^3 class .*head for 5", note) for note in loaded.notes)


def test_dinov2_files_bring_their_way_to_resample_and_leave_the_mask_token(tmp_path: Path) -> None:
    model = small_vit(num_classes=None, layer_scale=1.0, gelu="erf")
    path = save(model, tmp_path / "d.safetensors", to="dinov2")
    plain = load_file(path) | {"mask_token": torch.zeros(1, 64)}
    save_file(plain, tmp_path / "bare.safetensors")
    loaded = load(tmp_path / "bare.safetensors", num_heads=4)
    assert loaded.model.config.position_resampling == "bicubic_offset"
    assert loaded.preprocess.mean[0] == 0.485
    assert torch.equal(logits(loaded.model, images(model)), logits(model, images(model)))


@pytest.mark.parametrize("to", ["npz", "hf", "timm", "torchvision", "vitrine"])
def test_every_view_of_a_layout_shares_memory_so_that_reading_fills_the_model(to: Any) -> None:
    config = small_vit(gelu="erf").config
    for rule in layout_for(to, config).rules(config):
        ours = torch.zeros(empty_state(config)[rule.ours[0]].shape)
        rule.view.apply(ours).fill_(1)
        assert ours.any(), rule.theirs


def test_hugging_face_shards_are_joined_and_a_missing_one_is_named(tmp_path: Path) -> None:
    import json

    model = small_vit()
    tensors = load_file(save(model, tmp_path / "model") / "model.safetensors")
    names, folder = list(tensors), tmp_path / "shards"
    folder.mkdir()
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for shard, part in parts.items():
        save_file({name: tensors[name] for name in part}, folder / shard)
    mapping = {name: shard for shard, part in parts.items() for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": mapping}))
    settings = json.loads((tmp_path / "model" / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings))
    assert torch.equal(logits(load(folder).model, images(model)), logits(model, images(model)))
    (folder / "b.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"names the shard b\.safetensors"):
        load(folder)
