"""Published backbones have the parameters that their authors count."""

import pytest

from vitrine.checkpoints.record import variant_of
from vitrine.errors import ConfigError
from vitrine.models import configure, create_model
from vitrine.models.backbones import ALIASES, VARIANTS
from vitrine.models.cost import cost_of

# The official DINOv3 code counts 21,601,152 and so on, each with a mask token that only pre-training uses; so does
# DINOv2-g with 1,136,480,768. CLIP's and SigLIP's are image towers with projection or attention pooling.
# timm's BEiT and EVA-CLIP have no bias of the keys, ours has zeros.
COUNTS = {
    "DINOv2-S/14": 22_056_576 - 384,
    "DINOv2-g/14": 1_136_480_768 - 1536,
    "DINOv3-S/16": 21_601_152 - 384,
    "DINOv3-S+/16": 28_697_472 - 384,
    "DINOv3-B/16": 85_669_632 - 768,
    "DINOv3-L/16": 303_154_176 - 1024,
    "DINOv3-H+/16": 840_633_600 - 1280,
    "DINOv3-7B/16": 6_716_035_072 - 4096,
    "EVA02-CLIP-B/16": 86_263_040 + 12 * 768,
    "EVA02-CLIP-L/14": 304_105_152 + 24 * 1024,
    "EVA02-CLIP-L/14-336": 304_432_832 + 24 * 1024,
    "CLIP-B/32": 87_849_216,
    "CLIP-L/14": 303_966_208,
    "SigLIP-B/16": 92_884_224,
    "SigLIP-So400m/14": 427_680_704,
    "BEiT-B/16": 85_761_984 + 12 * 768,
    "BEiT-L/16": 303_405_568 + 24 * 1024,
    "SigLIP2-B/16-naflex": 92_930_304,
    "SigLIP2-So400m/16-naflex": 427_888_064,
}


@pytest.mark.parametrize("name", COUNTS)
def test_a_backbone_has_the_parameters_of_the_official_one(name: str) -> None:
    assert cost_of(configure(name, num_classes=None)).params == COUNTS[name]


def test_every_name_and_alias_is_found_and_found_again_from_its_shape() -> None:
    for name in [*VARIANTS, *ALIASES]:
        config = configure(name, num_classes=None)
        expected = ALIASES.get(name, name)
        # At 336 pixels CLIP's tower is the same but for its size.
        assert variant_of(config) == expected.removesuffix("-336")


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"rotary": "dinov3", "rotary_grid": (2, 2)}, "rotary_grid"),
        ({"rotary": "eva", "rotary_jitter": 2.0}, "rotary_jitter"),
        ({"rotary_base": 50.0}, "rotary_base"),
        ({"rotary": "dinov3", "rotary_jitter": 0.5}, "rotary_jitter"),
        ({"rotary": "dinov3", "num_heads": 64}, "rotary"),
        ({"rotary": "dinov3", "positions": "relative"}, "rotary"),
        ({"mlp_norm": True}, "mlp_norm"),
        ({"projection_bias": True, "representation_width": 8}, "projection_bias"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(options: dict, option: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(ConfigError) as error:
        create_model("ViT-S/16", depth=1, **options)
    assert error.value.option == option
