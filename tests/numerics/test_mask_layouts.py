"""EoMT against transformers and by its official names, Segmenter against its forward pass written out."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from vitrine.checkpoints import load
from vitrine.checkpoints.libraries import import_installed
from vitrine.models.dense.eomt import EoMT

OFFICIAL = {
    "embeddings.cls_token": "encoder.backbone.cls_token",
    "embeddings.register_tokens": "encoder.backbone.reg_token",
    "embeddings.patch_embeddings.projection": "encoder.backbone.patch_embed.proj",
    "embeddings.position_embeddings.weight": "encoder.backbone.pos_embed",
    "attention.out_proj": "attn.proj",
    "layer_scale1.lambda1": "ls1.gamma",
    "layer_scale2.lambda1": "ls2.gamma",
    "layers.": "encoder.backbone.blocks.",
    "layernorm2d": "norm",
    "layernorm": "encoder.backbone.norm",
    "query.weight": "q.weight",
    "class_predictor": "class_head",
    "mask_head.fc1": "mask_head.0",
    "mask_head.fc2": "mask_head.2",
    "mask_head.fc3": "mask_head.4",
    "upscale_block.block": "upscale",
}


@pytest.fixture(scope="module")
def theirs() -> torch.nn.Module:
    transformers = import_installed("transformers")
    torch.manual_seed(0)
    config = transformers.EomtConfig(
        hidden_size=16, num_hidden_layers=4, num_attention_heads=2, mlp_ratio=2, image_size=32, patch_size=16,
        num_blocks=2, num_queries=6, num_register_tokens=3, num_upscale_blocks=2,
        id2label=dict(enumerate(("cat", "dog", "cow"))),
    )  # fmt: skip
    model: torch.nn.Module = transformers.EomtForUniversalSegmentation(config).eval()
    for parameter in model.parameters():  # zeros would hide what is not read
        torch.nn.init.normal_(parameter, std=0.3)
    model.attn_mask_probs.zero_()  # type: ignore[operator]
    return model


def assert_same(theirs: torch.nn.Module, model: torch.nn.Module) -> None:
    assert isinstance(model, EoMT)
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        answered = theirs(images)
        masks, classes = model.eval().answers(images)
    torch.testing.assert_close(masks, answered.masks_queries_logits, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(classes, answered.class_queries_logits, rtol=1e-4, atol=1e-4)


def test_files_of_transformers_answer_as_transformers_does(theirs: torch.nn.Module, tmp_path: Path) -> None:
    theirs.save_pretrained(tmp_path)
    loaded = load(tmp_path)
    assert loaded.classes == ("cat", "dog", "cow")
    assert_same(theirs, loaded.model)


@pytest.mark.parametrize("prefix", ["", "network."])
def test_official_names_hold_the_same_model(theirs: torch.nn.Module, prefix: str, tmp_path: Path) -> None:
    state: dict[str, Tensor] = {}
    qkv: dict[str, dict[str, Tensor]] = {}
    for their_name, value in theirs.state_dict().items():
        name = their_name
        if name.startswith("criterion."):
            continue
        for one, other in OFFICIAL.items():
            name = name.replace(one, other)
        which = next((one for one in ("q_proj", "k_proj", "v_proj") if one in name), None)
        if which is not None:
            qkv.setdefault(name.replace(f"attention.{which}", "attn.qkv"), {})[which] = value
        else:
            state[name] = value[None] if name.endswith("pos_embed") else value
    for name, parts in qkv.items():
        state[name] = torch.cat([parts[which] for which in ("q_proj", "k_proj", "v_proj")])
    state["encoder.pixel_mean"] = torch.zeros(1, 3, 1, 1)
    save_file({prefix + name: value.clone() for name, value in state.items()}, tmp_path / "model.safetensors")
    assert_same(theirs, load(tmp_path, num_heads=2).model)


def attended(x: Tensor, state: dict[str, Tensor], block: str, heads: int, eps: float) -> Tensor:
    """Run a block of timm's kind, as Segmenter's encoder and decoder have it."""

    def linear(values: Tensor, name: str) -> Tensor:
        return F.linear(values, state[f"{block}.{name}.weight"], state[f"{block}.{name}.bias"])

    def norm(values: Tensor, name: str) -> Tensor:
        return F.layer_norm(
            values, values.shape[-1:], state[f"{block}.{name}.weight"], state[f"{block}.{name}.bias"], eps
        )

    B, T, D = x.shape
    q, k, v = linear(norm(x, "norm1"), "attn.qkv").view(B, T, 3, heads, D // heads).permute(2, 0, 3, 1, 4)
    weights = (q @ k.transpose(-2, -1) * (D // heads) ** -0.5).softmax(dim=-1)
    x = x + linear((weights @ v).transpose(1, 2).reshape(B, T, D), "attn.proj")
    return x + linear(F.gelu(linear(norm(x, "norm2"), "mlp.fc1")), "mlp.fc2")


def segmented(state: dict[str, Tensor], images: Tensor) -> Tensor:
    """Compute Segmenter's scores as its authors do (segm/model/vit.py and decoder.py)."""
    x = F.conv2d(images, state["encoder.patch_embed.proj.weight"], state["encoder.patch_embed.proj.bias"], 8)
    grid = x.shape[2:]
    x = x.flatten(2).transpose(1, 2)
    x = torch.cat([state["encoder.cls_token"].expand(len(x), -1, -1), x], dim=1)
    table = state["encoder.pos_embed"]
    patches = table[:, 1:].view(1, 4, 4, -1).permute(0, 3, 1, 2)
    patches = F.interpolate(patches, size=grid, mode="bilinear").permute(0, 2, 3, 1).flatten(1, 2)
    x = x + torch.cat([table[:, :1], patches], dim=1)
    for number in range(2):
        x = attended(x, state, f"encoder.blocks.{number}", heads=2, eps=1e-5)
    x = F.layer_norm(x, x.shape[-1:], state["encoder.norm.weight"], state["encoder.norm.bias"], 1e-5)[:, 1:]
    x = F.linear(x, state["decoder.proj_dec.weight"], state["decoder.proj_dec.bias"])
    x = torch.cat([x, state["decoder.cls_emb"].expand(len(x), -1, -1)], dim=1)
    for number in range(2):
        x = attended(x, state, f"decoder.blocks.{number}", heads=1, eps=1e-5)
    x = F.layer_norm(
        x, x.shape[-1:], state["decoder.decoder_norm.weight"], state["decoder.decoder_norm.bias"]
    )
    patches, classes = x[:, :-5] @ state["decoder.proj_patch"], x[:, -5:] @ state["decoder.proj_classes"]
    patches = patches / patches.norm(dim=-1, keepdim=True)
    classes = classes / classes.norm(dim=-1, keepdim=True)
    masks = F.layer_norm(
        patches @ classes.transpose(1, 2),
        (5,),
        state["decoder.mask_norm.weight"],
        state["decoder.mask_norm.bias"],
    )
    return masks.transpose(1, 2).reshape(len(x), 5, *grid)


def test_files_of_segmenter_answer_as_its_code_does(tmp_path: Path) -> None:
    torch.manual_seed(0)
    D, E = 16, 32
    shapes: dict[str, tuple[int, ...]] = {
        "encoder.cls_token": (1, 1, D), "encoder.pos_embed": (1, 17, D),
        "encoder.patch_embed.proj.weight": (D, 3, 8, 8), "encoder.patch_embed.proj.bias": (D,),
        "encoder.norm.weight": (D,), "encoder.norm.bias": (D,),
        "encoder.head.weight": (10, D), "encoder.head.bias": (10,),
        "decoder.cls_emb": (1, 5, E), "decoder.proj_dec.weight": (E, D), "decoder.proj_dec.bias": (E,),
        "decoder.proj_patch": (E, E), "decoder.proj_classes": (E, E),
        "decoder.decoder_norm.weight": (E,), "decoder.decoder_norm.bias": (E,),
        "decoder.mask_norm.weight": (5,), "decoder.mask_norm.bias": (5,),
    }  # fmt: skip
    for side, width in (("encoder", D), ("decoder", E)):
        for number in range(2):
            for name, rows, columns in (
                ("norm1", width, 0), ("norm2", width, 0), ("attn.qkv", 3 * width, width),
                ("attn.proj", width, width), ("mlp.fc1", 2 * width, width), ("mlp.fc2", width, 2 * width),
            ):  # fmt: skip
                block = f"{side}.blocks.{number}.{name}"
                shapes[f"{block}.weight"] = (rows, columns) if columns else (rows,)
                shapes[f"{block}.bias"] = (rows,)
    state = {name: 0.3 * torch.randn(shape) for name, shape in shapes.items()}
    save_file(state, tmp_path / "model.safetensors")
    model = load(tmp_path, num_heads=2).model.eval()
    for size in ((32, 32), (40, 64)):  # the second interpolates the positions
        images = torch.randn(2, 3, *size)
        with torch.no_grad():
            torch.testing.assert_close(model(images), segmented(state, images), rtol=1e-4, atol=1e-4)
