"""The licence of weights, as a card or a config beside them states it."""

from pathlib import Path

import pytest

import vitrine
from vitrine.checkpoints.licences import (
    PUBLISHED,
    front_matter,
    licence_beside,
    licence_note,
    licence_to_carry,
)


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        ("---\nlicense: apache-2.0\ntags: [vision]\n---\n# Model", "apache-2.0"),
        (
            "---\nlicense: other\nlicense_name: dinov3\nlicense_link: https://x.y/z\n---\n",
            "dinov3 (https://x.y/z)",
        ),
        ("---\nlicense_name: 'mine'\n---\n", "mine"),
        ("---\nlicense: other\n---\n", None),
        ("# A card without a header\nlicense: mit\n", None),
    ],
)
def test_a_card_states_the_licence_in_its_header(tmp_path: Path, card: str, expected: str | None) -> None:
    (tmp_path / "README.md").write_text(card)
    assert licence_beside(tmp_path, {}) == expected


def test_settings_come_before_the_card(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n")
    assert licence_beside(tmp_path, {"license": "apache-2.0"}) == "apache-2.0"
    assert licence_beside(tmp_path, {"pretrained_cfg": {"license": "cc-by-4.0"}}) == "cc-by-4.0"
    assert licence_beside(tmp_path, {"license": ""}) == "mit"


def test_without_a_card_nothing_is_stated(tmp_path: Path) -> None:
    assert licence_beside(None, {}) is None
    assert licence_beside(tmp_path, {}) is None
    (tmp_path / "README.md").mkdir()
    assert licence_beside(tmp_path, {}) is None
    assert front_matter("") == {}


def test_the_note_tells_what_is_stated_or_else_what_the_published_weights_have() -> None:
    assert "mit" in str(licence_note("mit", layout="DINOv3"))
    layout, licence = next(iter(PUBLISHED.items()))
    note = str(licence_note(None, layout=layout))
    assert licence in note and "no licence beside the weights" in note
    assert not licence_note(None, layout="a layout that nobody published")


def test_a_fine_tuned_model_carries_the_licence_that_it_started_from(tmp_path: Path) -> None:
    assert licence_to_carry("mit", layout="DINOv3", is_bundled=True) == "mit"
    assert licence_to_carry(None, layout="Vitrine", is_bundled=True) == "apache-2.0 (the bundled model)"
    assert licence_to_carry(None, layout="OpenCLIP") == "mit, as published"
    assert licence_to_carry(None, layout="timm") is None
    model = vitrine.create_model(
        "ViT", width=16, depth=1, num_heads=1, mlp_width=16, image_size=16, patch_size=8
    )
    vitrine.save(model, tmp_path / "first", licence="mit")
    vitrine.save(vitrine.load(tmp_path / "first"), tmp_path / "second")
    assert vitrine.load(tmp_path / "second").record.licence == "mit"
    assert "it started from (licence: mit)" in (tmp_path / "second" / "README.md").read_text()
    vitrine.save(model, tmp_path / "third")
    assert "(Vitrine, of unknown licence)" in (tmp_path / "third" / "README.md").read_text()
