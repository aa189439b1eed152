"""`vitrine check --model` and `vitrine suggest`: from folders to pages and tables."""

import csv

import numpy as np
import pytest
from pictures import save

import vitrine
from vitrine.errors import ConfigError

pytestmark = pytest.mark.usefixtures("elsewhere")


def tile(seed: int, colour: tuple[int, int, int]) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return (np.array(colour) + generator.normal(0, 20, (40, 40, 3))).clip(0, 255).astype(np.uint8)


@pytest.fixture
def tiles(tmp_path):
    """Red and blue tiles; one blue tile is filed as red."""
    for number in range(12):
        save(tmp_path / "tiles" / "red" / f"{number}.png", tile(number, (200, 40, 40)))
        save(tmp_path / "tiles" / "blue" / f"{number}.png", tile(100 + number, (40, 40, 200)))
    save(tmp_path / "tiles" / "red" / "misfiled.png", tile(300, (40, 40, 200)))
    return tmp_path / "tiles"


def test_check_with_a_model_lists_the_misfiled_picture_with_its_thumbnail_and_a_table(tiles, tmp_path):
    result = vitrine.check(tiles, model="box", out=tmp_path / "out", device="cpu")
    assert result.suspects is not None
    assert (result.suspects[0].path, result.suspects[0].suggested) == ("red/misfiled.png", "blue")
    with (tmp_path / "out" / "labels.csv").open(newline="") as file:
        assert next(csv.DictReader(file))["path"] == "red/misfiled.png"
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Labels that are likely wrong" in page and "red/misfiled.png" in page
    assert vitrine.check(tiles, out=tmp_path / "plain").suspects is None


def test_suggest_writes_a_page_and_a_table_to_fill_in(tiles, tmp_path, command_line):
    (tiles / "red" / "broken.jpg").write_bytes(b"no picture")
    code, out, _ = command_line("suggest")(
        "suggest", "box", tiles, "--count", "4", "--out", tmp_path / "next", "--device", "cpu"
    )
    assert code == 0
    assert "4 pictures to label of" in out and "26; 1 cannot be read" in out
    with (tmp_path / "next" / "suggestions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len({row["path"] for row in rows}) == 4
    assert {row["label"] for row in rows} == {""}
    assert (tmp_path / "next" / "suggestions.html").read_text().count("<img") == 4


def test_no_suggestions_or_a_negative_number_are_refused(tiles):
    with pytest.raises(ConfigError) as caught:
        vitrine.suggest("box", tiles, count=0)
    assert caught.value.option == "count"
