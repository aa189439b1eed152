"""`vitrine demo`: the main job once, small, on this machine."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_doc import Doc


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """What the demonstration reached."""

    folder: Path
    accuracy: float
    chance: float
    images_per_second: float

    def __str__(self) -> str:
        return (
            f"A ViT trained from nothing names the colour right in {100 * self.accuracy:.1f} % of pictures that "
            f"it never saw (guessing: {100 * self.chance:.0f} %), at {self.images_per_second:,.0f} images/s.\n"
            f"Wrote {self.folder}/model (weights, preprocessing, classes), {self.folder}/metrics.jsonl\n"
            f"Next: your own photos, one folder a class:\n"
            f"  .venv/bin/vitrine check ./photos\n"
            f"  .venv/bin/vitrine finetune ./photos --model {self.folder}\n"
            f"  .venv/bin/vitrine models        what there is and what it costs\n"
            f"  .venv/bin/vitrine --help        everything else"
        )


def demo(
    *,
    out: Annotated[Path, Doc("Where to write; an earlier demonstration there is replaced.")] = Path(
        "vitrine-demo"
    ),
    steps: Annotated[int | None, Doc("Steps of 128 images.")] = None,
    images: Annotated[int, Doc("Pictures to generate.")] = 6000,
    device: Annotated[str, Doc("auto, cpu or cuda.")] = "auto",
) -> DemoResult:
    """Train a small ViT on generated pictures, in about a minute on two cores; needs no network."""
    from vitrine.commands.pretrain import pretrain

    result = pretrain(
        f"generated:shapes?count={images}&size=32&label=colour",
        recipe="demo",
        steps=steps,
        out=out,
        device=device,
        overwrite=True,
    )
    assert result.accuracy is not None
    from vitrine.data.generated import FACTORS

    return DemoResult(
        folder=result.folder,
        accuracy=result.accuracy,
        chance=1 / len(FACTORS["colour"]),
        images_per_second=result.images_per_second,
    )
