"""All figures of one inspection, drawn, written and put on one page."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrine.errors import MissingExtraError
from vitrine.inspection import figures
from vitrine.inspection.drawing import drawing, save_figure
from vitrine.inspection.looks import Looks
from vitrine.models import Model, ViT
from vitrine.runtime.progress import track

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Plate:
    """One figure in the album: its file's name, heading, words, and how it is drawn."""

    name: str
    heading: str
    words: str
    draw: Callable[[], "Figure"]


def draw_all(plates: list[Plate], folder: Path) -> list[tuple[Plate, str]]:
    """Draw and write every figure; return each with its drawing for the page."""
    drawn = []
    for plate in track(plates, "Drawing figures"):
        with drawing(plate.name):
            drawn.append((plate, save_figure(plate.draw(), folder, plate.name)))
    return drawn


def plates_of(looks: Looks, *, model: Model, names: list[str], layer: int | None, of_class: list[str],
              image_size: tuple[int, int]) -> list[Plate]:  # fmt: skip
    """List the figures that there is something to draw for, in the order of the page."""
    plates = []
    if looks.filters is not None:
        found = looks.filters
        plates.append(Plate(name="filters", heading="Filters", words=_filter_words(model),
                            draw=lambda: figures.draw_filters(found)))  # fmt: skip
    plates += _position_plates(looks, model)
    if looks.distance is not None:
        plates.append(Plate(
            name="attention_distance",
            heading="Attention distance",
            words="How far from a patch, in pixels, a head gathers what it mixes into it: distances between patches "
            "weighted by attention, averaged over patches and images. Class token, registers and their like are "
            "dropped and the rows normalised again.",
            draw=lambda: figures.draw_distance(
                looks.distance, num_images=looks.num_images, image_size=image_size),  # type: ignore[arg-type]
        ))  # fmt: skip
    if looks.rollout is not None:
        plates.append(Plate(
            name="rollout",
            heading="Attention rollout",
            words="How much of the output comes from each patch through all layers: heads averaged, the identity "
            f"added for the residual branch, rows normalised, layers multiplied. Seen from {output_of(model)}.",
            draw=lambda: figures.draw_rollout(looks.pictures, looks.rollout, names),  # type: ignore[arg-type]
        ))  # fmt: skip
    for number, name in enumerate(names):
        plates += _plates_of_image(looks, number, name=name, model=model, layer=layer, of_class=of_class)
    if looks.similarity is not None:
        plates.append(Plate(
            name="layer_similarity",
            heading="Similarity of layers",
            words="Linear CKA of what any two layers put out, over patch tokens of all images (in BiT over images): "
            "1 is the same up to rotation and scale. Blocks of one colour are layers that do much the same.",
            draw=lambda: figures.draw_layers(looks.similarity, names=_layer_names(looks, model)),  # type: ignore[arg-type]
        ))  # fmt: skip
    return plates


def output_of(model: Model) -> str:
    """Say whose row stands for the output."""
    if isinstance(model, ViT) and not model.config.reads_class_token:
        return "all patches, averaged, as the model has no class token"
    return "the class token"


def render_page(drawn: list[tuple[Plate, str]], **values: Any) -> str:
    """Make the page of all figures."""
    try:
        import jinja2
        from markupsafe import Markup
    except ImportError as error:
        raise MissingExtraError("jinja2", extra="report", purpose="a page of all figures") from error
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [jinja2.PackageLoader("vitrine.inspection"), jinja2.PackageLoader("vitrine.data")]
        ),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # The drawings are ours and matplotlib escapes the names in them; everything else is escaped here.
    plates = [
        {"name": plate.name, "heading": plate.heading, "words": plate.words, "drawing": Markup(svg)}
        for plate, svg in drawn
    ]
    return environment.get_template("inspect.html.j2").render(plates=plates, **values)


def _filter_words(model: Model) -> str:
    if isinstance(model, ViT) and model.config.stem is None:
        return "Principal components of the patch projection's kernel, with their share of its variance. Grey is zero."
    kind = "The hybrid's patch projection reads a feature map, no pixels, so these are" if isinstance(model, ViT) else \
        "A ResNet has no patches; these are"  # fmt: skip
    return f"{kind} the principal components of the first convolution's kernel. Grey is zero."


def _position_plates(looks: Looks, model: Model) -> list[Plate]:
    if looks.positions is None or not isinstance(model, ViT):
        return []
    is_relative = model.config.positions == "relative"
    words = (
        "Tile (row, column) shows how much the key of the offset to each patch is like the key of offset 0."
        if is_relative
        else "Tile (row, column) shows the cosine of that patch's position embedding with all the others'."
    )
    kind = {"learned_1d": "learned, one a patch", "learned_2d": "learned, rows and columns", "relative": "relative",
            "sincos_2d": "sines and cosines"}[model.config.positions]  # fmt: skip
    if looks.positions.ndim == 3:
        tiles = looks.positions
        return [Plate(name="positions", heading="Positions", words=words,
                      draw=lambda: figures.draw_positions(tiles, title=f"Similarity of positions ({kind})"))]  # fmt: skip
    return [
        Plate(
            name=f"positions_layer_{layer + 1:02d}",
            heading=f"Positions of layer {layer + 1}",
            words=words,
            draw=lambda tiles=tiles, layer=layer: figures.draw_positions(  # type: ignore[misc]
                tiles, title=f"Similarity of positions of layer {layer + 1} ({kind})"
            ),
        )
        for layer, tiles in enumerate(looks.positions)
    ]


def _plates_of_image(
    looks: Looks, number: int, *, name: str, model: Model, layer: int | None, of_class: list[str]
) -> list[Plate]:
    plates = []
    assert looks.pictures is not None
    picture = looks.pictures[number]
    overlays: dict[str, Any] = {}
    depth = model.config.depth if isinstance(model, ViT) else 0
    shown_layer = depth if layer is None else layer % max(depth, 1) + 1
    if looks.heads is not None:
        overlays[f"{'class token' if 'class' in output_of(model)[:9] else 'all patches'}, layer {shown_layer}"] = (
            looks.heads[number, shown_layer - 1].mean(axis=0)
        )
    if looks.patch_heads is not None and looks.patch is not None:
        overlays[f"from patch {looks.patch[0]},{looks.patch[1]}, layer {shown_layer}"] = looks.patch_heads[
            number
        ].mean(axis=0)
    if looks.class_maps is not None:
        overlays[f"for {of_class[number]}"] = looks.class_maps[number]
    if looks.colours is not None and looks.norms is not None:
        colours, norms = looks.colours[number], looks.norms
        plates.append(Plate(
            name=f"tokens_{number + 1:02d}",
            heading=f"Tokens of {name}",
            words="Attention averaged over heads, from the output and from the patch in the red frame; three "
            "principal components of the tokens as colours, the same in all images; lengths of the tokens, with "
            "those far beyond the rest in a red ring.",
            draw=lambda: figures.draw_tokens(picture, name=name, overlays=overlays, colours=colours, norms=norms,
                                             number=number, patch=looks.patch),
        ))  # fmt: skip
    if looks.heads is not None:
        heads = looks.heads[number]
        plates.append(Plate(
            name=f"heads_{number + 1:02d}",
            heading=f"Heads on {name}",
            words="A map for every head of every layer, each by its own largest weight.",
            draw=lambda: figures.draw_heads(picture, heads, name=name, query=output_of(model).split(",")[0]),
        ))  # fmt: skip
    return plates


def _layer_names(looks: Looks, model: Model) -> list[str]:
    assert looks.similarity is not None
    if not isinstance(model, ViT):
        return ["root", *(f"stage {number}" for number in range(1, len(looks.similarity)))]
    return ["0", *(str(number) for number in range(1, len(looks.similarity)))]
