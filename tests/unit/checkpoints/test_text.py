"""Classes in words need a text tower, its tokenizer and names that differ; what lacks one says so."""

from pathlib import Path

import pytest
from unit.checkpoints.made import small_vit

from vitrine.checkpoints import save
from vitrine.checkpoints.text import load_texts, zero_shot
from vitrine.errors import CheckpointError, ConfigError

CLIP = {"embedding_norm": True, "patch_bias": False, "num_classes": None, "activation": "quick_gelu"}


def test_a_model_without_a_text_tower_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="ViT-Ti/16 has fresh weights"):
        load_texts("ViT-Ti/16")
    folder = save(small_vit(**CLIP), tmp_path / "tower", to="hf")
    with pytest.raises(CheckpointError, match="tower has no text tower"):
        load_texts(folder)


@pytest.mark.parametrize("classes", [["cat"], ["cat", " cat "], ["cat", ""]], ids=str)
def test_classes_that_are_not_two_different_ones_are_refused(classes: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        zero_shot("ViT-Ti/16", classes)
    assert refused.value.option == "classes"


def test_a_prompt_without_a_place_for_the_class_is_refused() -> None:
    with pytest.raises(ConfigError) as refused:
        zero_shot("ViT-Ti/16", ["cat", "dog"], prompts=["a photo"])
    assert refused.value.option == "prompts"
