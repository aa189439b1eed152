"""Names, parameter counts and costs."""

import re

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from vitrine.checkpoints.library_settings import timm_model
from vitrine.errors import ConfigError
from vitrine.models import ViT, build, configure, create_model
from vitrine.models.cost import cost_of, training_exaflops
from vitrine.models.variants import VARIANTS, resolve

# At 224 px, 1000 classes, no representation layer. All but those marked with a star are asserted in the tests of
# the reference code bases or were counted in timm; the starred ones are counted by the formula of each layer.
PINNED = {
    "ViT-b/32": 22_878_952,  # the widths of ViT-S; the number of heads changes no parameter
    "DeiT-III-S/16": 22_059_496,
    "DeiT-III-M/16": 38_849_512,
    "DeiT-III-B/16": 86_585_320,
    "DeiT-III-L/16": 304_374_760,
    "DeiT-III-H/14": 632_126_440,
    "ViT-Ti/16": 5_717_416,
    "ViT-S/32": 22_878_952,
    "ViT-S/16": 22_050_664,
    "ViT-B/32": 88_224_232,
    "ViT-B/16": 86_567_656,
    "ViT-B/8": 86_576_872,
    "ViT-L/32": 306_535_400,
    "ViT-L/16": 304_326_632,
    "ViT-H/14": 632_045_800,
    # * ViT-B with average pooling, 86,566,120 and 88,222,696, and its twelve blocks of 7,087,872 a second time.
    "Axial-ViT-B/16": 171_620_584,
    "Axial-ViT-B/32": 173_277_160,
    "R+ViT-Ti/16": 6_337_704,
    "R26+ViT-S/32": 36_431_912,
    "R50+ViT-B/32": 110_945_832,  # *
    "R50+ViT-B/16": 98_659_112,
    "R50+ViT-L/32": 328_994_856,
    "R50+ViT-L/16": 316_483_624,  # *
    "BiT-R50x1": 25_549_352,
    "BiT-R50x2": 97_988_712,  # *
    "BiT-R50x3": 217_319_080,
    "BiT-R101x1": 44_541_480,
    "BiT-R101x3": 387_934_888,
    "BiT-R152x1": 60_185_128,  # *
    "BiT-R152x2": 236_335_208,
    "BiT-R152x4": 936_533_224,
    "BiT-R200x3": 568_633_000,  # *
}

# Table 6 of the paper: pre-training exaFLOPs on JFT (303 M images), by model and epochs.
TABLE_6 = {
    ("ViT-B/32", 7): 55, ("ViT-B/16", 7): 224, ("ViT-L/32", 7): 196, ("ViT-L/16", 7): 783,
    ("ViT-L/16", 14): 1567, ("ViT-H/14", 14): 4262, ("BiT-R50x1", 7): 50, ("BiT-R50x2", 7): 199,
    ("BiT-R101x1", 7): 96, ("BiT-R152x1", 7): 141, ("BiT-R152x2", 7): 563, ("BiT-R152x2", 14): 1126,
    ("BiT-R200x3", 14): 3306, ("R50+ViT-B/32", 7): 106, ("R50+ViT-B/16", 7): 274, ("R50+ViT-L/32", 7): 246,
    # The table's 859 for R50+ViT-L/16 at 7 epochs contradicts its own 1668 at 14; the latter is kept.
    ("R50+ViT-L/16", 14): 1668,
}  # fmt: skip


def test_every_variant_has_a_pinned_parameter_count() -> None:
    assert set(VARIANTS) == set(PINNED)


@pytest.mark.parametrize("name", VARIANTS)
def test_parameter_counts_are_exact(name: str) -> None:
    with torch.device("meta"):
        model = create_model(name)
    assert sum(p.numel() for p in model.parameters()) == PINNED[name] == cost_of(model.config).params


@pytest.mark.parametrize(
    ("name", "options", "count"),
    [
        ("ViT-S/16", {"pooling": "average"}, 22_049_896),
        ("ViT-B/16", {"pooling": "average"}, 86_566_120),
        ("ViT-B/16", {"image_size": 384}, 86_859_496),
        ("ViT-L/16", {"image_size": 512}, 305_174_504),
    ],
)
def test_parameter_counts_of_other_heads_and_sizes_are_exact(
    name: str, options: dict[str, object], count: int
) -> None:
    assert cost_of(configure(name, **options)).params == count  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "config",
    [
        configure("ViT-S/16"),
        configure("ViT-Ti/16", positions="relative", position_placement="every_layer"),
        configure("ViT-Ti/16", pooling="attention", num_registers=4, layer_scale=1e-5),
        configure("ViT-Ti/16", image_size=(96, 160), representation_width=64, has_distillation_token=False),
        configure("R26+ViT-S/32"),
        configure("R50+ViT-B/16"),
        configure("BiT-R50x1"),
        configure("BiT-R101x3", image_size=(160, 96)),
    ],
    ids=lambda config: f"{type(config).__name__}",
)
def test_counted_multiply_adds_equal_those_that_run(config: object) -> None:
    with torch.device("meta"):
        model = build(config)  # type: ignore[arg-type]
        images = torch.empty(1, model.config.channels, *model.config.image_size)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        # The cost is the paper's: of every token in every block.
        if isinstance(model, ViT):
            patches, grid = model.embed_patches(images)
            model.classify(model.encode(model.assemble(patches, grid), grid))
        else:
            model(images)
    assert cost_of(model.config).macs == counter.get_total_flops() // 2


@pytest.mark.parametrize(("name", "epochs"), TABLE_6)
def test_the_papers_table_6_is_reproduced(name: str, epochs: int) -> None:
    ours = training_exaflops(cost_of(configure(name)).macs, images=303e6, epochs=epochs)
    # 2 % for ViTs and hybrids, 5 % for ResNets; the paper prints whole numbers, so half a unit is rounding.
    tolerance = 0.05 if name.startswith("BiT") else 0.02
    assert abs(ours - TABLE_6[name, epochs]) <= tolerance * TABLE_6[name, epochs] + 0.5


@pytest.mark.parametrize(
    ("spelling", "name", "size"),
    [
        ("ViT-B/16", "ViT-B/16", 224),
        ("vit-b/16", "ViT-B/16", 224),
        ("B/16", "ViT-B/16", 224),
        ("vit_base_patch16_224", "ViT-B/16", 224),
        ("vit_base_patch16_384", "ViT-B/16", 384),
        ("vit_base_patch16_224.augreg_in21k", "ViT-B/16", 224),
        ("vit_huge_patch14_224", "ViT-H/14", 224),
        ("vit_b_16", "ViT-B/16", 224),
        ("vit_l_32", "ViT-L/32", 224),
        ("vit_h_14", "ViT-H/14", 224),
        ("vit_base_r50_s16_384", "R50+ViT-B/16", 384),
        ("vit_small_r26_s32_224", "R26+ViT-S/32", 224),
        ("resnetv2_50x1_bit", "BiT-R50x1", 224),
        ("resnetv2_152x4_bit.goog_in21k", "BiT-R152x4", 224),
        ("BiT-M-R101x3", "BiT-R101x3", 224),
        ("R50x1", "BiT-R50x1", 224),
    ],
)
def test_other_spellings_name_the_same_model(spelling: str, name: str, size: int) -> None:
    assert configure(spelling) == configure(name, image_size=size)


def test_any_patch_size_can_be_named() -> None:
    config = configure("ViT-S/8x4", image_size=(64, 32))
    assert (config.patch_size, config.grid_size) == ((8, 4), (8, 8))  # type: ignore[union-attr]


@pytest.mark.parametrize("misspelt", ["ViT-B16", "vit_bse_patch16_224", "BiT-R51x1", "R50+ViT-X/16", ""])
def test_an_unknown_name_gets_the_three_nearest(misspelt: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(repr(misspelt))) as caught:
        resolve(misspelt)
    named = caught.value.suggestions
    assert len(named) == 3 and set(named) <= set(VARIANTS)


def test_the_nearest_name_is_the_one_meant() -> None:
    with pytest.raises(ConfigError, match="'ViT-B16'") as caught:
        create_model("ViT-B16")
    assert caught.value.suggestions[0] == "ViT-B/16"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"image_size": 230}, "16, got 230;.*224 and 240"),
        ({"image_size": 0}, "16, got 0; .* 16"),
        ({"image_size": (-5, 40)}, "fit: 16x32 and 16x48"),
        ({"image_size": (224, 230)}, "224x230; .* 224 and 224x240"),
        ({"width": 770}, "width .*num_heads, .*770 and 12;.*11"),
        ({"num_classes": 0}, "num_classes .*got 0; None"),
        ({"num_heads": 0}, "num_heads .*got 0"),
        ({"channels": 0}, "channels .*got 0"),
        ({"pooling": "averag"}, "pooling .*'averag'; .*: average"),
        ({"dropout": 1.0}, "dropout .*below 1, got 1.0"),
        ({"drop_out": 0.1}, "ViT .*'drop_out'; .*'dropout'"),
        ({"positions": "sincos_2d", "width": 30, "num_heads": 3}, "multiple of 4, got 30"),
        ({"has_class_token": False}, "pooling='class_token' needs a class token"),
    ],
)  # fmt: skip
def test_nonsense_is_refused_in_one_sentence(options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configure("ViT-B/16", **options)  # type: ignore[arg-type]
    assert re.search(words, str(caught.value))
    assert "\n" not in str(caught.value)


def test_vit_b_with_a_small_letter_is_the_papers_vit_of_half_the_width() -> None:
    half, whole = configure("ViT-b/32"), configure("ViT-B/32")
    assert (half.width, half.mlp_width, half.depth) == (whole.width // 2, whole.mlp_width // 2, whole.depth)  # type: ignore[union-attr]
    assert (
        configure("vit-b/32") == configure("vit_b_32") == whole
    )  # a name in lower case means what it meant before


@pytest.mark.parametrize("stride", [1, 2])
def test_a_pyramid_for_small_images_starts_finer_and_is_counted_so(stride: int) -> None:
    shape = {"widths": (8, 16, 24, 32), "num_heads": (1, 1, 1, 1), "depths": (1, 1, 1, 1), "num_classes": 5}
    with torch.device("meta"):
        model = create_model("PVT-v2-B0", image_size=(32, 40), first_stride=stride, **shape)
        images = torch.empty(1, 3, 32, 40)
    assert model.features(images)["stage_1"].shape[2:] == (32 // stride, 40 // stride)
    cost = cost_of(model.config)
    assert cost.params == sum(parameter.numel() for parameter in model.parameters())
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(images)
    assert counter.get_total_flops() == 2 * cost.macs
    assert timm_model(model.config)[0] is None  # timm has no such model
