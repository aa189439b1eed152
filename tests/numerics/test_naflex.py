"""NaFlex models: what transformers (SigLIP 2) and timm (naflexvit) compute for pictures of mixed shapes.

Models are small and random, and their numerics are the published ones. Tolerance: 1e-5 on outputs of order one in
fp32, the rounding of another order of sums.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numerics.test_backbones_of_today import TOLERANCE, largest, stirred
from oracles import import_timm, import_torchvision
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from vitrine.checkpoints import convert, load
from vitrine.data.preparing.native import native_size

import_torchvision()
SHAPES = ((40, 90), (100, 33), (64, 64), (200, 31), (7, 9))
"""Heights and widths of pictures; some are enlarged, one has the grid of the model."""
MOST = 20
PATCH = 8


def photos() -> list[Image.Image]:
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 256, (*shape, 3), dtype=np.uint8)) for shape in SHAPES]


def siglip2() -> tuple[nn.Module, Any]:
    import transformers

    config = transformers.Siglip2VisionConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96, patch_size=PATCH,
        num_patches=16,
    )  # fmt: skip
    processor = transformers.Siglip2ImageProcessor(patch_size=PATCH, max_num_patches=MOST)
    return stirred(transformers.Siglip2VisionModel(config)), processor


def test_siglip2_naflex_computes_what_transformers_computes_for_pictures_of_mixed_shapes(
    tmp_path: Path,
) -> None:
    theirs, processor = siglip2()
    theirs.save_pretrained(tmp_path / "saved")  # type: ignore[operator]
    processor.save_pretrained(tmp_path / "saved")
    loaded = load(tmp_path / "saved")
    prepared = processor(images=photos(), return_tensors="pt")
    ours = torch.stack([loaded.preprocess(photo) for photo in photos()])
    assert ours[:, 0, :2].tolist() == prepared["spatial_shapes"].tolist()
    for row, (picture, is_there) in enumerate(
        zip(prepared["pixel_values"], prepared["pixel_attention_mask"].bool(), strict=True)
    ):
        channels_first = picture[is_there].view(-1, PATCH, PATCH, 3).permute(0, 3, 1, 2).flatten(1)
        # Both resize by torch's kernel for uint8, so that pixels are equal; normalising rounds differently.
        torch.testing.assert_close(ours[row, 1 : 1 + is_there.sum()], channels_first, rtol=0, atol=1e-6)
    with torch.inference_mode():
        expected = theirs(**prepared).pooler_output
        assert largest(loaded.model(ours), expected) < TOLERANCE
        assert largest(loaded.model(ours[2:3]), expected[2:3]) < TOLERANCE  # alone, without a pack


def test_siglip2_naflex_converted_back_is_the_same_file_with_its_processor(tmp_path: Path) -> None:
    import transformers

    theirs, processor = siglip2()
    theirs.save_pretrained(tmp_path / "saved")  # type: ignore[operator]
    processor.save_pretrained(tmp_path / "saved")
    made = convert(tmp_path / "saved", tmp_path / "again", to="hf")
    assert made.num_identical == len(made.tensors)
    assert [check.agrees for check in made.parity] == [True, True]
    written = load_file(tmp_path / "again" / "model.safetensors")
    bare = {name.removeprefix("vision_model."): tensor for name, tensor in written.items()}
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(bare[name.removeprefix("vision_model.")], tensor), name
    again = transformers.AutoImageProcessor.from_pretrained(tmp_path / "again")
    assert (again.patch_size, again.max_num_patches) == (PATCH, MOST)
    assert load(tmp_path / "again").preprocess == load(tmp_path / "saved").preprocess


def test_a_whole_siglip2_naflex_model_names_pictures_of_any_shape_by_words(tmp_path: Path) -> None:
    import transformers

    text = {"hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 48}
    vision = siglip2()[0].config.to_dict()  # type: ignore[operator, union-attr]
    config = transformers.Siglip2Config(vision_config=vision, text_config={**text, "vocab_size": 50})
    theirs = stirred(transformers.Siglip2Model(config))
    theirs.save_pretrained(tmp_path / "whole")  # type: ignore[operator]
    loaded = load(tmp_path / "whole", max_patches=MOST)
    processor = transformers.Siglip2ImageProcessor(patch_size=PATCH, max_num_patches=MOST)
    ours = torch.stack([loaded.preprocess(photo) for photo in photos()])
    with torch.inference_mode():
        expected = theirs.get_image_features(**processor(images=photos(), return_tensors="pt"))  # type: ignore[operator]
        expected = getattr(expected, "pooler_output", expected)
        assert largest(loaded.model(ours), expected) < TOLERANCE


SMALL = {"depth": 2, "embed_dim": 64, "num_heads": 4, "patch_size": PATCH, "pos_embed_grid_size": (4, 4)}
TIMM: dict[str, tuple[str, dict[str, Any]]] = {
    "gap": ("naflexvit_base_patch16_gap", {}),
    "par_gap": ("naflexvit_base_patch16_par_gap", {}),
    "parfac_gap": ("naflexvit_base_patch16_parfac_gap", {}),
    "factorised": ("naflexvit_base_patch16_gap", {"pos_embed": "factorized"}),
    "map": ("naflexvit_base_patch16_map", {}),
    "map with prefix": ("naflexvit_base_patch16_map", {"pool_include_prefix": True}),
    "class token": ("naflexvit_base_patch16_gap", {"class_token": True, "global_pool": "token", "fc_norm": False}),
    "so150m2": ("naflexvit_so150m2_patch16_reg1_gap", {}),
    "SigLIP": ("naflexvit_base_patch16_siglip", {}),
}  # fmt: skip


def naflexvit(kind: str) -> nn.Module:
    name, options = TIMM[kind]
    classes = 0 if "siglip" in name else 5
    return stirred(import_timm().create_model(name, num_classes=classes, **{**SMALL, **options}))


def with_card(theirs: nn.Module, folder: Path, kind: str) -> None:
    """Save as timm does, with the arguments in its config.json."""
    from timm.models import save_for_hf

    name, options = TIMM[kind]
    arguments = {**SMALL, **options}
    theirs.pretrained_cfg["architecture"] = name  # type: ignore[index, operator]
    save_for_hf(theirs, folder, model_config=None, model_args=arguments, safe_serialization=True)


def as_timm_takes(ours: Tensor) -> dict[str, Tensor]:
    """Turn our packed pictures into the batch of timm's collator: channels last, coordinates, validity."""
    grids = ours[:, 0, :2].long().tolist()
    longest = max(rows * columns for rows, columns in grids)
    patches = torch.zeros(len(ours), longest, PATCH * PATCH * 3)
    places, valid = torch.zeros(len(ours), longest, 2, dtype=torch.long), torch.zeros(len(ours), longest)
    for number, (rows, columns) in enumerate(grids):
        count = rows * columns
        own = ours[number, 1 : 1 + count].view(count, 3, PATCH, PATCH)
        patches[number, :count] = own.permute(0, 2, 3, 1).flatten(1)
        places[number, :count] = torch.cartesian_prod(torch.arange(rows), torch.arange(columns))
        valid[number, :count] = 1
    return {"patches": patches, "patch_coord": places, "patch_valid": valid.bool()}


@pytest.mark.parametrize("kind", TIMM)
def test_timms_naflex_models_compute_the_same_here_for_pictures_of_mixed_shapes(
    tmp_path: Path, kind: str
) -> None:
    theirs = naflexvit(kind)
    with_card(theirs, tmp_path / "timm", kind)
    loaded = load(tmp_path / "timm", max_patches=MOST)
    ours = torch.stack([loaded.preprocess(photo) for photo in photos()])
    assert load(tmp_path / "timm").preprocess.max_patches == (384 // PATCH) ** 2
    with torch.inference_mode():
        expected = theirs(as_timm_takes(ours))
        assert largest(loaded.model(ours), expected) < TOLERANCE
        square = torch.randn(2, 3, 32, 48)
        assert largest(loaded.model(square), theirs(square)) < TOLERANCE


@pytest.mark.parametrize("kind", TIMM)
def test_timms_naflex_models_convert_back_to_the_same_file(tmp_path: Path, kind: str) -> None:
    theirs = naflexvit(kind)
    with_card(theirs, tmp_path / "timm", kind)
    made = convert(tmp_path / "timm", tmp_path / "again", to="naflex")
    assert made.num_identical == len(made.tensors)
    assert [check.agrees for check in made.parity if check.against.startswith("timm")] == [True]
    written = load_file(tmp_path / "again" / "model.safetensors")
    assert written.keys() == theirs.state_dict().keys()
    assert all(torch.equal(written[name], tensor) for name, tensor in theirs.state_dict().items())
    again, before = load(tmp_path / "again"), load(tmp_path / "timm")
    assert again.model.config == before.model.config and again.preprocess == before.preprocess


def test_a_bare_file_of_timm_is_read_with_an_assumption_about_its_positions(tmp_path: Path) -> None:
    for kind, resampling in (("SigLIP", "bilinear_antialias"), ("gap", "bicubic_antialias")):
        theirs = naflexvit(kind)
        save_file(theirs.state_dict(), tmp_path / "bare.safetensors")
        loaded = load(tmp_path / "bare.safetensors", options={"num_heads": 4}, max_patches=MOST)
        assert any("how positions are resampled" in note for note in loaded.notes)
        assert loaded.model.config.position_resampling == resampling  # type: ignore[union-attr]
        ours = torch.stack([loaded.preprocess(photo) for photo in photos()])
        with torch.inference_mode():
            assert largest(loaded.model(ours), theirs(as_timm_takes(ours))) < TOLERANCE


def test_the_size_within_a_budget_is_that_of_timm_and_transformers() -> None:
    from timm.data.naflex_transforms import get_image_size_for_seq
    from transformers.models.siglip2.image_processing_siglip2 import get_image_size_for_max_num_patches

    rng = np.random.default_rng(0)
    for height, width, most, patch in zip(
        rng.integers(1, 4000, 200), rng.integers(1, 4000, 200), rng.integers(4, 1024, 200), rng.integers(4, 33, 200),
        strict=True,
    ):  # fmt: skip
        sides, budget = (int(height), int(width)), int(most)
        ours = native_size(*sides, patch=(int(patch), int(patch)), max_patches=budget)
        assert ours == get_image_size_for_max_num_patches(*sides, int(patch), budget)
        assert ours == get_image_size_for_seq(sides, int(patch), budget)[1]
