"""DINOv3, DINOv2-g, EVA-02, CLIP, SigLIP and MAE: what their own libraries compute, from and to their files.

Models are small and random, and their numerics are the published ones. Tolerance: 1e-5 on outputs of order one in
fp32, the rounding of another order of sums.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from oracles import import_timm, import_torchvision
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from vitrine.checkpoints import convert, load

import_torchvision()
TOLERANCE = 1e-5
SHAPE = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}
TIMM = {"depth": 2, "embed_dim": 64, "num_heads": 4, "num_classes": 5}


def stirred(model: nn.Module) -> nn.Module:
    """Move every parameter: biases of zero and gains of one would hide a swap."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def pictures(size: int | tuple[int, int] = 32) -> Tensor:
    height, width = (size, size) if isinstance(size, int) else size
    return torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(5))


HUGGING_FACE: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "DINOv3 S": ("DINOv3ViTConfig", "DINOv3ViTModel", {"num_register_tokens": 4}, "pooler_output"),
    "DINOv3 S+": (
        "DINOv3ViTConfig",
        "DINOv3ViTModel",
        {"num_register_tokens": 4, "use_gated_mlp": True, "hidden_act": "silu", "intermediate_size": 96},
        "pooler_output",
    ),
    "DINOv3 7B": (
        "DINOv3ViTConfig",
        "DINOv3ViTModel",
        {
            "num_register_tokens": 4,
            "use_gated_mlp": True,
            "hidden_act": "silu",
            "query_bias": False,
            "value_bias": False,
            "num_attention_heads": 2,
        },
        "pooler_output",
    ),
    "DINOv2 g": ("Dinov2Config", "Dinov2Model", {"use_swiglu_ffn": True}, "pooler_output"),
    "DINOv2 g with registers": (
        "Dinov2WithRegistersConfig",
        "Dinov2WithRegistersModel",
        {"use_swiglu_ffn": True, "num_register_tokens": 4},
        "pooler_output",
    ),
    "CLIP": ("CLIPVisionConfig", "CLIPVisionModelWithProjection", {"projection_dim": 24}, "image_embeds"),
    "CLIP with GELU": ("CLIPVisionConfig", "CLIPVisionModel", {"hidden_act": "gelu"}, "pooler_output"),
    "SigLIP": ("SiglipVisionConfig", "SiglipVisionModel", {"intermediate_size": 96}, "pooler_output"),
    "MAE": ("ViTMAEConfig", "ViTMAEModel", {"mask_ratio": 0.0}, "class token"),
}


def hugging_face(kind: str) -> nn.Module:
    import transformers

    config, name, options, _ = HUGGING_FACE[kind]
    return stirred(getattr(transformers, name)(getattr(transformers, config)(**{**SHAPE, **options})))


def answer_of(theirs: nn.Module, images: Tensor, *, kind: str) -> Tensor:
    with torch.inference_mode():
        found = theirs(images)
    which = HUGGING_FACE[kind][3]
    return found.last_hidden_state[:, 0] if which == "class token" else getattr(found, which)


def largest(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).abs().max())


@pytest.mark.parametrize("kind", HUGGING_FACE)
def test_a_folder_of_transformers_computes_what_transformers_computes(tmp_path: Path, kind: str) -> None:
    theirs = hugging_face(kind)
    theirs.save_pretrained(tmp_path / "saved")  # type: ignore[operator]
    loaded = load(tmp_path / "saved")
    with torch.inference_mode():
        assert largest(loaded.model(pictures()), answer_of(theirs, pictures(), kind=kind)) < TOLERANCE
    assert loaded.model.config.norm_eps == theirs.config.layer_norm_eps  # type: ignore[attr-defined, union-attr]


@pytest.mark.parametrize("kind", [kind for kind in HUGGING_FACE if kind != "MAE"])
def test_converted_to_transformers_it_is_the_same_file_and_computes_the_same(
    tmp_path: Path, kind: str
) -> None:
    theirs = hugging_face(kind)
    theirs.save_pretrained(tmp_path / "saved")  # type: ignore[operator]
    made = convert(tmp_path / "saved", tmp_path / "again", to="hf")
    assert made.num_identical == len(made.tensors) and made.exit_code == 0
    assert {check.against.split()[0]: check.agrees for check in made.parity} == {
        "Vitrine,": True,
        "transformers": True,
    }
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("saved", "again"))
    # A bare tower of transformers 5 has no prefix; ours is the one that both versions read.
    bare = {name.removeprefix("vision_model."): tensor for name, tensor in after.items()}
    for name, tensor in before.items():
        if not name.endswith(("mask_token", "bias_mask")):
            assert torch.equal(bare[name.removeprefix("vision_model.")], tensor), name


TIMM_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "DINOv3 S": ("vit_small_patch16_dinov3_qkvb", {"img_size": 32, "patch_size": 8}),
    "DINOv3 S without biases": ("vit_small_patch16_dinov3", {"img_size": 32, "patch_size": 8}),
    "DINOv3 S+": ("vit_small_plus_patch16_dinov3_qkvb", {"img_size": 32, "patch_size": 8}),
    "EVA-02 Ti": ("eva02_tiny_patch14_224", {"img_size": 56}),
    "EVA-02 B": ("eva02_base_patch14_448", {"img_size": 56}),
    "EVA g": ("eva_giant_patch14_224", {"img_size": 56, "patch_size": 14}),
    "EVA g with a class token": ("eva_giant_patch14_224", {"img_size": 56, "global_pool": "token"}),
    "DINOv2 g": ("vit_giant_patch14_dinov2", {"img_size": 28, "mlp_ratio": 4}),
    "attention pooling beside other tokens": (
        "vit_base_patch16_224",
        {"img_size": 32, "patch_size": 8, "global_pool": "map", "reg_tokens": 2, "no_embed_class": True},
    ),
    "attention pooling of all tokens": (
        "vit_base_patch16_224",
        {"img_size": 32, "patch_size": 8, "global_pool": "map", "pool_include_prefix": True},
    ),
    "CLIP": ("vit_base_patch16_clip_224", {"img_size": 32}),
    "CLIP with quick GELU": ("vit_base_patch16_clip_quickgelu_224", {"img_size": 32}),
}


@pytest.mark.parametrize("kind", TIMM_MODELS)
def test_timms_models_compute_the_same_here_and_after_conversion_to_timm(tmp_path: Path, kind: str) -> None:
    name, options = TIMM_MODELS[kind]
    theirs = stirred(import_timm().create_model(name, **{**TIMM, **options}))
    save_file(theirs.state_dict(), tmp_path / "weights.safetensors")
    said: dict[str, Any] = {"num_heads": 4}
    if "quick" in kind:
        said["activation"] = "quick_gelu"
    if "pool_include_prefix" in options:
        said["pools_leading_tokens"] = True
    ours = load(tmp_path / "weights.safetensors", image_size=options["img_size"], options=said).model
    images = pictures(options["img_size"])
    with torch.inference_mode():
        expected = theirs(images)
        assert largest(ours(images), expected) < TOLERANCE
    made = convert(
        tmp_path / "weights.safetensors",
        tmp_path / "timm",
        to="timm",
        image_size=options["img_size"],
        options=said,
    )
    assert made.num_identical == len(made.tensors)
    assert [check.agrees for check in made.parity if check.against.startswith("timm")] == [True]
    written = load_file(tmp_path / "timm" / "model.safetensors")
    assert all(torch.equal(written[name], tensor) for name, tensor in theirs.state_dict().items())


def test_another_grid_turns_eva_and_dinov3_as_timm_and_transformers_do(tmp_path: Path) -> None:
    theirs = hugging_face("DINOv3 S")
    theirs.save_pretrained(tmp_path / "dinov3")  # type: ignore[operator]
    images = pictures((48, 64))
    ours = load(tmp_path / "dinov3").model
    with torch.inference_mode():
        assert largest(ours(images), theirs(images).pooler_output) < TOLERANCE
    options = {**TIMM, "img_size": 56, "dynamic_img_size": True, "use_abs_pos_emb": True}
    eva = stirred(import_timm().create_model("eva02_tiny_patch14_224", **options))
    save_file(eva.state_dict(), tmp_path / "eva.safetensors")
    ours = load(tmp_path / "eva.safetensors", image_size=56, options={"num_heads": 4}).model
    images = pictures((84, 112))
    with torch.inference_mode():
        assert largest(ours(images), eva(images)) < TOLERANCE


def test_the_official_file_of_dinov3_is_read_and_written_with_its_masks(tmp_path: Path) -> None:
    theirs = hugging_face("DINOv3 S+")
    theirs.save_pretrained(tmp_path / "hf")  # type: ignore[operator]
    made = convert(tmp_path / "hf", tmp_path / "official.safetensors", to="dinov3")
    assert made.num_identical == len(made.tensors)
    written = load_file(tmp_path / "official.safetensors")
    assert written["blocks.1.attn.qkv.bias_mask"].view(3, 64).sum(1).tolist() == [64, 0, 64]
    assert written["rope_embed.periods"].tolist() == pytest.approx([100 ** (j / 4) for j in range(4)])
    # What stands in the keys' place of the bias does not count, as in the authors' code.
    for name in list(written):
        if name.endswith("qkv.bias"):
            written[name].view(3, 64)[1] = 7.0
    written["mask_token"], written["local_cls_norm.weight"] = torch.ones(1, 64), torch.ones(64)
    save_file(written, tmp_path / "bare.safetensors")
    bare = load(tmp_path / "bare.safetensors", image_size=32).model
    assert bare.config.num_heads == 4  # as many as the frequencies say, without a config.json
    with torch.inference_mode():
        assert largest(bare(pictures()), theirs(pictures()).pooler_output) < TOLERANCE


def test_the_official_formula_of_dinov3_written_out_gives_the_same_attention(tmp_path: Path) -> None:
    """The rotation of arXiv:2508.10104 as the authors' code computes it, in float64, for one block and head."""
    from vitrine.models import create_model

    torch.manual_seed(0)
    ours = create_model(
        "ViT", width=16, depth=1, num_heads=2, mlp_width=16, patch_size=4, image_size=(8, 12), num_classes=None,
        positions="none", rotary="dinov3", num_registers=1, key_bias=False,
    ).double()  # fmt: skip
    stirred(ours)
    ours.rotary.table = ours.rotary.table.double()  # type: ignore[union-attr, operator]
    images = torch.randn(1, 3, 8, 12, dtype=torch.float64)
    ((_, weights),) = ours.attention(images)
    tokens = ours.assemble(*ours.embed_patches(images))  # type: ignore[operator]
    block = ours.blocks[0]  # type: ignore[index]
    fused = block.norm_1(tokens)[0] @ block.attention.to_qkv.weight.T
    q, k, _ = fused.chunk(3, dim=-1)
    q = q + block.attention.to_qkv.bias[:16]
    q, k = q[:, 8:].clone(), k[:, 8:].clone()  # the second head, 8 channels
    periods = [100 ** (2 * j / 4) for j in range(2)]
    for number in range(6):
        y, x = 2 * (number // 3 + 0.5) / 2 - 1, 2 * (number % 3 + 0.5) / 3 - 1
        angle = torch.tensor([2 * torch.pi * c / p for c in (y, x) for p in periods], dtype=torch.float64)
        for rows in (q, k):
            first, second = rows[2 + number, :4].clone(), rows[2 + number, 4:].clone()
            rows[2 + number, :4] = first * angle.cos() - second * angle.sin()
            rows[2 + number, 4:] = second * angle.cos() + first * angle.sin()
    expected = (q @ k.T / 8**0.5).softmax(-1)
    torch.testing.assert_close(weights[0, 1], expected, rtol=0, atol=1e-6)  # cosines of the table are fp32


def test_whole_clip_and_siglip_models_are_read_as_their_image_towers(tmp_path: Path) -> None:
    import transformers

    vision = {**SHAPE, "intermediate_size": 96}
    text = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 48}
    text["vocab_size"] = 50
    for kind, config in (("CLIPModel", "CLIPConfig"), ("SiglipModel", "SiglipConfig")):
        options = {"projection_dim": 24} if kind == "CLIPModel" else {}
        theirs = stirred(
            getattr(transformers, kind)(
                getattr(transformers, config)(vision_config=vision, text_config=dict(text), **options)
            )
        )
        theirs.save_pretrained(tmp_path / kind)  # type: ignore[operator]
        loaded = load(tmp_path / kind)
        with torch.inference_mode():
            expected = theirs.get_image_features(pixel_values=pictures())  # type: ignore[operator]
            expected = getattr(expected, "pooler_output", expected)
            assert largest(loaded.model(pictures()), expected) < TOLERANCE


def test_openclip_names_are_read_and_written(tmp_path: Path) -> None:
    theirs = hugging_face("CLIP")
    theirs.save_pretrained(tmp_path / "hf")  # type: ignore[operator]
    made = convert(tmp_path / "hf", tmp_path / "open.safetensors", to="openclip")
    assert made.exit_code == 0
    written = load_file(tmp_path / "open.safetensors")
    assert written["visual.proj"].shape == (64, 24) and written["visual.class_embedding"].shape == (64,)
    attention = written["visual.transformer.resblocks.1.attn.in_proj_weight"]
    assert torch.equal(
        attention[64:128], theirs.state_dict()["vision_model.encoder.layers.1.self_attn.k_proj.weight"]
    )
    written |= {"logit_scale": torch.ones(()), "transformer.resblocks.0.ln_1.weight": torch.ones(4)}
    save_file(written, tmp_path / "bare.safetensors")
    loaded = load(tmp_path / "bare.safetensors", options={"num_heads": 4})
    assert any("quick_gelu assumed" in note for note in loaded.notes)
    with torch.inference_mode():
        assert largest(loaded.model(pictures()), theirs(pictures()).image_embeds) < TOLERANCE
