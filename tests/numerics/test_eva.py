"""EVA-02's files of its authors and EVA-CLIP's image towers: what timm and the formulas written out compute.

Models are small and random. Tolerance: 1e-5 on outputs of order one in fp32, the rounding of another order of sums.
The authors' names are checked by timm's own conversion of their files.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from numerics.test_backbones_of_today import TOLERANCE, largest, pictures, stirred
from oracles import import_timm, import_torchvision
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from vitrine.checkpoints import convert, load
from vitrine.checkpoints.opening import open_weights
from vitrine.errors import CheckpointError

import_torchvision()
SMALL: dict[str, Any] = {"depth": 2, "embed_dim": 64, "num_heads": 4}
TOWER: dict[str, Any] = {**SMALL, "img_size": 64, "num_classes": 24}
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
TIMM: dict[str, tuple[str, dict[str, Any]]] = {
    "EVA-02 Ti": ("eva02_tiny_patch14_224", {**SMALL, "img_size": 56, "num_classes": 5}),
    "EVA-02 B": ("eva02_base_patch14_448", {**SMALL, "img_size": 70, "num_classes": 5}),
    "EVA-02 B, pre-trained": ("eva02_base_patch14_224", {**SMALL, "img_size": 56, "num_classes": 0}),
    "EVA-CLIP B": ("eva02_base_patch16_clip_224", TOWER),
    "EVA-CLIP on EVA": (
        "eva_giant_patch14_clip_224",
        {**SMALL, "img_size": 56, "num_classes": 24, "mlp_ratio": 2.0},
    ),
}
PREFIXES = {kind: "visual." if "CLIP" in kind else "" for kind in TIMM}
HEADS = SMALL["num_heads"]


def timms(kind: str) -> nn.Module:
    name, options = TIMM[kind]
    return stirred(import_timm().create_model(name, **options))


def wide_tower(num_classes: int) -> nn.Module:
    """Return a tower of the published width, at which a head with 512 outputs is the projection."""
    torch.manual_seed(0)
    options = {"depth": 1, "img_size": 64, "num_classes": num_classes, "head_init_scale": 1.0}
    return import_timm().create_model("eva02_base_patch16_clip_224", **options).eval()  # type: ignore[no-any-return]


def authors_name(name: str, *, is_fused: bool) -> str:
    """Return the authors' name of a tensor of timm's EVA-02."""
    gates = {"mlp.fc1.": "mlp.w12."} if is_fused else {"mlp.fc1_g.": "mlp.w1.", "mlp.fc1_x.": "mlp.w2."}
    renamed = {
        **gates, "mlp.fc2.": "mlp.w3.", "mlp.norm.": "mlp.ffn_ln.", "attn.norm.": "attn.inner_attn_ln.",
        "attn.q_proj.bias": "attn.q_bias", "attn.v_proj.bias": "attn.v_bias",
    }  # fmt: skip
    for theirs, authors in renamed.items():
        name = name.replace(theirs, authors)
    return name


def turns(grid: int, head: int) -> tuple[Tensor, Tensor]:
    """Write out the authors' cosines and sines of a square grid, stretched to the 16 x 16 of pre-training."""
    frequencies = 10_000.0 ** -(torch.arange(0, head // 2, 2) / (head // 2))
    angles = (torch.arange(grid) / grid * 16)[:, None] * frequencies
    angles = angles.repeat_interleave(2, dim=1)
    rows, columns = (
        angles[:, None].expand(grid, grid, -1),
        angles[None].expand(grid, grid, -1),
    )
    both = torch.cat([rows, columns], dim=-1).flatten(0, 1)
    return both.cos(), both.sin()


def authors_file(kind: str, theirs: nn.Module, *, prefix: str = "") -> dict[str, Tensor]:
    """Return the tensors of timm's model as the authors store them, tables of rotary positions included."""
    is_rotary = theirs.rope is not None
    written = {
        prefix + (authors_name(name, is_fused="Ti" in kind) if is_rotary else name): tensor
        for name, tensor in theirs.state_dict().items()
    }
    if is_rotary:
        head = theirs.embed_dim // theirs.blocks[0].attn.num_heads  # type: ignore[operator, index, union-attr]
        cosines, sines = turns(theirs.patch_embed.grid_size[0], head)  # type: ignore[index, union-attr]
        for place in (prefix, *(f"{prefix}blocks.{i}.attn." for i in range(len(theirs.blocks)))):  # type: ignore[arg-type]
            written |= {f"{place}rope.freqs_cos": cosines.clone(), f"{place}rope.freqs_sin": sines.clone()}
    if "pre-trained" in kind:
        for part in ("weight", "bias"):
            written[f"norm.{part}"] = written.pop(f"fc_norm.{part}")
        written |= {"mask_token": torch.ones(1, 1, 64), "lm_head.weight": torch.ones(8, 64)}
    if prefix:
        written |= {"logit_scale": torch.ones(()), "text.transformer.resblocks.0.ln_1.weight": torch.ones(4)}
    return written


@pytest.mark.parametrize("kind", TIMM)
def test_the_authors_file_computes_what_timm_computes_from_its_own_conversion(
    tmp_path: Path, kind: str
) -> None:
    theirs = timms(kind)
    written = authors_file(kind, theirs, prefix=PREFIXES[kind])
    torch.save({"module": written}, tmp_path / "authors.pt")
    converted = import_timm().models.eva.checkpoint_filter_fn({"module": dict(written)}, theirs)
    converted = {name: value for name, value in converted.items() if name in theirs.state_dict()}
    theirs.load_state_dict(converted, strict=True)
    heads = {} if theirs.rope is not None else {"num_heads": HEADS}
    ours = load(tmp_path / "authors.pt", options=heads).model
    assert ours.config.num_heads == HEADS  # as many as the cosines say
    images = pictures(TIMM[kind][1]["img_size"])
    with torch.inference_mode():
        assert largest(ours(images), theirs(images)) < TOLERANCE
        if theirs.rope is not None:
            assert largest(ours(images), from_the_file(written, images, kind=kind)) < TOLERANCE


def from_the_file(file: dict[str, Tensor], images: Tensor, *, kind: str) -> Tensor:
    """Write out the authors' model in the names of their file (arXiv:2303.11331, section 2; arXiv:2303.15389)."""
    file = {name.removeprefix(PREFIXES[kind]): tensor for name, tensor in file.items()}

    def normed(tokens: Tensor, name: str) -> Tensor:
        return F.layer_norm(tokens, tokens.shape[-1:], file[f"{name}.weight"], file[f"{name}.bias"], eps=1e-6)

    def dense(tokens: Tensor, name: str, bias: str = "") -> Tensor:
        return F.linear(tokens, file[f"{name}.weight"], file.get(bias or f"{name}.bias"))

    def turned(values: Tensor) -> Tensor:
        swapped = torch.stack([-values[..., 1::2], values[..., ::2]], dim=-1).flatten(-2)
        return values * file["rope.freqs_cos"] + swapped * file["rope.freqs_sin"]

    patch = file["patch_embed.proj.weight"]
    tokens = F.conv2d(images, patch, file["patch_embed.proj.bias"], stride=patch.shape[-1])
    tokens = tokens.flatten(2).transpose(1, 2)
    tokens = torch.cat([file["cls_token"].expand(len(images), -1, -1), tokens], dim=1) + file["pos_embed"]
    for i in range(TIMM[kind][1]["depth"]):
        block = f"blocks.{i}."
        x = normed(tokens, f"{block}norm1")
        if f"{block}attn.qkv.weight" in file:
            q, k, v = dense(x, f"{block}attn.qkv").chunk(3, dim=-1)
            q, v = q + file[f"{block}attn.q_bias"], v + file[f"{block}attn.v_bias"]
        else:
            q = dense(x, f"{block}attn.q_proj", f"{block}attn.q_bias")
            k = dense(x, f"{block}attn.k_proj")
            v = dense(x, f"{block}attn.v_proj", f"{block}attn.v_bias")
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (q, k, v))
        q, k = (torch.cat([part[:, :, :1], turned(part[:, :, 1:])], dim=2) for part in (q, k))
        weights = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(dim=-1)
        mixed = (weights @ v).transpose(1, 2).flatten(2)
        if f"{block}attn.inner_attn_ln.weight" in file:
            mixed = normed(mixed, f"{block}attn.inner_attn_ln")
        tokens = tokens + dense(mixed, f"{block}attn.proj")
        x = normed(tokens, f"{block}norm2")
        if f"{block}mlp.w12.weight" in file:
            gates, values = dense(x, f"{block}mlp.w12").chunk(2, dim=-1)
        else:
            gates, values = dense(x, f"{block}mlp.w1"), dense(x, f"{block}mlp.w2")
        hidden = F.silu(gates) * values
        if f"{block}mlp.ffn_ln.weight" in file:
            hidden = normed(hidden, f"{block}mlp.ffn_ln")
        tokens = tokens + dense(hidden, f"{block}mlp.w3")
    if "CLIP" in kind:
        return dense(normed(tokens, "norm")[:, 0], "head")
    pooled = normed(tokens[:, 1:].mean(dim=1), "norm" if "pre-trained" in kind else "fc_norm")
    return dense(pooled, "head") if "head.weight" in file else pooled


@pytest.mark.parametrize("kind", TIMM)
def test_between_the_authors_names_and_timms_every_tensor_stays_the_same(tmp_path: Path, kind: str) -> None:
    theirs = timms(kind)
    written = authors_file(kind, theirs, prefix=PREFIXES[kind])
    save_file(written, tmp_path / "authors.safetensors")
    heads = {} if theirs.rope is not None else {"num_heads": HEADS}
    made = convert(tmp_path / "authors.safetensors", tmp_path / "timm", to="timm", options=heads)
    assert made.num_identical == len(made.tensors)
    assert [check.agrees for check in made.parity] == [True, True]  # read back, and timm
    in_timm = load_file(tmp_path / "timm" / "model.safetensors")
    assert in_timm.keys() == theirs.state_dict().keys()
    assert all(torch.equal(in_timm[name], tensor) for name, tensor in theirs.state_dict().items())
    back = convert(tmp_path / "timm", tmp_path / "official.safetensors", to="official")
    assert back.exit_code == 0
    again = load_file(tmp_path / "official.safetensors")
    if "pre-trained" in kind:  # written as the authors' classifier without a head
        for part in ("weight", "bias"):
            again[f"norm.{part}"] = again.pop(f"fc_norm.{part}")
    save_file(again, tmp_path / "bare.safetensors")  # without the record
    bare, images = (
        load(tmp_path / "bare.safetensors", options=heads).model,
        pictures(theirs.patch_embed.img_size),
    )
    with torch.inference_mode():
        assert largest(bare(images), theirs(images)) < TOLERANCE
    assert (bare.config.representation_width == 24) == ("CLIP" in kind)
    only_theirs = {name for name in written if name.startswith(("mask_token", "lm_head", "text", "logit"))}
    assert again.keys() == written.keys() - only_theirs
    for name, tensor in again.items():
        # Another order of products: angles up to 15, cosines in fp32.
        rounding = 1e-5 if "rope" in name else 0.0
        torch.testing.assert_close(tensor, written[name], rtol=0, atol=rounding, msg=name)


def test_a_tower_of_eva_clip_is_read_with_its_projection_preprocessing_and_licence(tmp_path: Path) -> None:
    theirs = timms("EVA-CLIP B")
    save_file(authors_file("EVA-CLIP B", theirs, prefix="visual."), tmp_path / "clip.safetensors")
    loaded = load(tmp_path / "clip.safetensors")
    config = loaded.model.config
    assert config.num_classes is None and config.representation_width == 24
    assert (loaded.preprocess.rule, loaded.preprocess.crop_fraction) == ("shorter", 1.0)
    assert loaded.preprocess.mean == CLIP_MEAN
    assert any("EVA-CLIP weights have: mit" in note for note in loaded.notes)
    left_out = open_weights(tmp_path / "clip.safetensors").weights.left_out  # type: ignore[union-attr]
    assert set(left_out.values()) == {"of the text tower", "computed here"}
    with torch.inference_mode():
        features = loaded.model.embed(pictures(64))
        assert torch.equal(features, loaded.model(pictures(64)))


def test_timms_tower_is_read_with_its_projection_and_a_classifier_on_it_with_classes(tmp_path: Path) -> None:
    theirs = wide_tower(512)
    save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    loaded = load(tmp_path / "model.safetensors")
    assert loaded.model.config.representation_width == 512
    assert any("read as EVA-CLIP's projection" in note for note in loaded.notes)
    with torch.inference_mode():
        assert largest(loaded.model(pictures(64)), theirs(pictures(64))) < TOLERANCE
    named = {"architecture": "eva02_base_patch16_clip_224", "label_names": [str(i) for i in range(512)]}
    (tmp_path / "config.json").write_text(json.dumps(named))
    assert load(tmp_path / "model.safetensors").model.config.num_classes == 512
    (tmp_path / "config.json").unlink()
    other = wide_tower(10)
    save_file(other.state_dict(), tmp_path / "model.safetensors")
    ours = load(tmp_path / "model.safetensors").model
    assert ours.config.num_classes == 10
    with torch.inference_mode():
        assert largest(ours(pictures(64)), other(pictures(64))) < TOLERANCE


def test_openclips_file_of_timms_tower_is_read_with_the_projection_that_its_config_states(
    tmp_path: Path,
) -> None:
    theirs = timms("EVA-CLIP B")
    file = {f"visual.trunk.{name}": tensor for name, tensor in theirs.state_dict().items()}
    save_file({**file, "logit_scale": torch.ones(())}, tmp_path / "open_clip_model.safetensors")
    said = {"model_cfg": {"embed_dim": 24, "vision_cfg": {"timm_model_name": "eva02_base_patch16_clip_224"}}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(said))
    loaded = load(tmp_path, options={"num_heads": HEADS})
    assert loaded.model.config.representation_width == 24
    with torch.inference_mode():
        assert largest(loaded.model(pictures(64)), theirs(pictures(64))) < TOLERANCE


def test_the_tower_at_another_size_turns_and_places_as_timm_does(tmp_path: Path) -> None:
    theirs = timms("EVA-CLIP B")
    larger = import_timm().create_model("eva02_base_patch16_clip_224", **{**TOWER, "img_size": 96}).eval()
    written = authors_file("EVA-CLIP B", theirs, prefix="visual.")
    larger.load_state_dict(import_timm().models.eva.checkpoint_filter_fn(written, larger))
    save_file(written, tmp_path / "clip.safetensors")
    ours = load(tmp_path / "clip.safetensors", image_size=96).model
    with torch.inference_mode():
        assert largest(ours(pictures(96)), larger(pictures(96))) < TOLERANCE


@pytest.mark.parametrize("prefix", ["visual.", "visual.trunk.", ""])
def test_the_largest_eva_is_refused_in_one_sentence(tmp_path: Path, prefix: str) -> None:
    with torch.device("meta"):
        theirs = import_timm().create_model(
            "eva02_enormous_patch14_clip_224", depth=1, img_size=28, num_classes=8, mlp_ratio=0.1
        )
    file = {prefix + name: torch.zeros(tensor.shape) for name, tensor in theirs.state_dict().items()}
    save_file({**file, "logit_scale": torch.ones(())}, tmp_path / "e.safetensors")
    with pytest.raises(CheckpointError, match="EVA-02 E") as caught:
        load(tmp_path / "e.safetensors")
    assert "\n" not in str(caught.value)
