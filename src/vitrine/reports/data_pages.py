"""Reports as one HTML file each, with pictures inside: what a scan found, and pairs of copies."""

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from vitrine.data.auditing.duplicates import Duplicate, ImageRef
from vitrine.data.auditing.overlap import TRAIN, Overlap
from vitrine.data.auditing.scan import ScanReport, problem_of
from vitrine.data.decoding.decode import JPEG_MAGIC, decode
from vitrine.data.decoding.pixels import Pixels
from vitrine.data.sources.file_list import photos_passed_over
from vitrine.data.sources.source import Source
from vitrine.errors import DataError
from vitrine.runtime.page_templates import page_templates
from vitrine.runtime.progress import track
from vitrine.spelling import printable

# Most of each kind that a page shows: it stays a file that any browser opens at once. The CSV files hold all.
MOST_BAD = 60
MOST_PAIRS = 60
MOST_SAMPLES = 240
MOST_SAMPLES_A_CLASS = 6
PICTURE_SIDE = 112
# Problems that are neither a file's nor a pair's, so that no picture shows them.
ELSEWHERE = ("damaged shard", "empty class", "missing class", "single class", "tiny class")
_PAIR_KINDS = (
    ("leak", "Leaks between splits", "The same picture in two splits: the score on the second is too good."),
    ("conflict", "Copies with different labels", "The same picture under two names: one of them is wrong."),
    ("exact", "Equal files", "Byte for byte the same file, more than once in one split."),
    ("near", "Near duplicates", "Re-compressed, resized, brightened or slightly moved copies in one split."),
)


def render_scan(report: ScanReport, splits: Mapping[str, Source]) -> str:
    """Make the page of `vitrine check`."""
    bad = [
        _bad_file(splits[split], index)
        for split, indices in report.bad.items()
        for index in indices[:MOST_BAD]
    ][:MOST_BAD]
    groups = []
    for key, title, words in _PAIR_KINDS:
        pairs = [pair for pair in report.duplicates if _pair_kind(pair) == key]
        if pairs:
            shown = [_pair(pair, splits) for pair in track(pairs[:MOST_PAIRS], f"Drawing: {title}")]
            groups.append({"title": title, "words": words, "total": len(pairs), "pairs": shown})
    return _render(
        "scan.html.j2",
        report=report,
        address=printable(report.address),
        bad=bad,
        groups=groups,
        has_photos_passed_over=bool(photos_passed_over(report.passed_over)),
        table=_class_table(report),
        samples=_samples(report, splits),
        issues=[
            {"path": printable(issue.path), "problem": issue.problem, "detail": issue.detail}
            for issue in report.issues
            if issue.problem in ELSEWHERE
        ],
    )


def render_overlap(overlap: Overlap, train: Source, tests: Mapping[str, Source]) -> str:
    """Make the page of `vitrine dedup`: the least similar pairs first, as those are the ones to look at."""
    sources = {TRAIN: train, **tests}
    ordered = sorted(overlap.pairs, key=lambda found: found.pair.similarity)
    chosen = [*ordered[: 2 * MOST_PAIRS], *ordered[2 * MOST_PAIRS :][-MOST_PAIRS:]]
    return _render(
        "pairs.html.j2",
        overlap=overlap,
        address=printable(train.address),
        pairs=[
            _pair(found.pair, sources) | {"method": found.method}
            for found in track(chosen, "Drawing pairs of pictures")
        ],
    )


def picture(source: Source, index: int, *, side: int = PICTURE_SIDE) -> str | None:
    """Make a picture of at most `side` pixels as a data address; None where nothing can be decoded."""
    try:
        data = source.read(index).data
    except DataError:
        return None
    try:
        return as_address(decode(data, min_size=(side, side)), side)
    except DataError:
        pixels = _rest_of(data)
        return None if pixels is None else as_address(pixels, side)


def _rest_of(data: bytes | Pixels) -> Pixels | None:
    """Decode what there is of a JPEG that was cut short, to show how much is left."""
    if not isinstance(data, bytes) or data[:3] != JPEG_MAGIC:
        return None
    try:
        import simplejpeg

        height, width, _, _ = simplejpeg.decode_jpeg_header(data)
        if height * width > 50_000_000:
            return None
        pixels: Pixels = simplejpeg.decode_jpeg(data, strict=False)
    except (ImportError, ValueError):
        return None
    return pixels


def as_address(pixels: Pixels, side: int) -> str:
    """Turn pixels (H, W, 1 or 3) into a picture of at most `side` pixels inside a page: a data address."""
    image = Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[:, :, 0])
    is_small = max(image.size) <= side
    if not is_small:
        image.thumbnail((side, side), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    # Icons and CIFAR images are shown pixel by pixel, so they are stored without loss.
    if is_small:
        image.save(buffer, "PNG", optimize=True)
    else:
        image.save(buffer, "JPEG", quality=82)
    kind = "png" if is_small else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _bad_file(source: Source, index: int) -> dict[str, Any]:
    name = printable(source.name(index))
    reason = ""
    try:
        decode(source.read(index).data, name=name)
    except DataError as error:
        reason = str(error)
    words = reason.removeprefix(name).strip() or "cannot be read"
    return {"path": name, "problem": problem_of(reason), "detail": words, "picture": picture(source, index)}


def _pair_kind(pair: Duplicate) -> str:
    if pair.is_leak:
        return "leak"
    if pair.has_conflict:
        return "conflict"
    return "exact" if pair.is_exact else "near"


def _pair(pair: Duplicate, sources: Mapping[str, Source]) -> dict[str, Any]:
    return {
        "similarity": "equal files" if pair.is_exact else f"{pair.similarity:.3f}",
        "sides": [_side(pair.first, sources), _side(pair.second, sources)],
    }


def _side(ref: ImageRef, sources: Mapping[str, Source]) -> dict[str, Any]:
    return {
        "path": printable(ref.path),
        "label": printable(ref.label),
        "split": ref.split,
        "picture": picture(sources[ref.split], ref.index),
    }


def _class_table(report: ScanReport) -> list[dict[str, Any]]:
    most = max((max(counts, default=0) for counts in report.counts.values()), default=0)
    return [
        {
            "name": printable(name),
            "counts": [counts[number] for counts in report.counts.values()],
            "shares": [100 * counts[number] / max(most, 1) for counts in report.counts.values()],
        }
        for number, name in enumerate(report.classes)
    ]


def _samples(report: ScanReport, splits: Mapping[str, Source]) -> list[dict[str, Any]]:
    """Pick a few images of each class, evenly through its list, from the first split that has any."""
    split, source = next(iter(splits.items()))
    bad = set(report.bad[split])
    if not source.is_labelled:
        good = [index for index in range(len(source)) if index not in bad]
        return [{"name": "", "pictures": _pictures(source, _spread(good, 4 * MOST_SAMPLES_A_CLASS))}]
    first = source.labels[:, 0] if source.is_multi_label else source.labels
    each = max(1, min(MOST_SAMPLES_A_CLASS, MOST_SAMPLES // max(len(source.classes), 1)))
    rows = []
    for number, name in track(list(enumerate(source.classes))[:MOST_SAMPLES], "Drawing samples"):
        good = [int(index) for index in np.flatnonzero(first == number) if int(index) not in bad]
        rows.append({"name": printable(name), "pictures": _pictures(source, _spread(good, each))})
    return rows


def _spread(indices: Sequence[int], count: int) -> list[int]:
    if len(indices) <= count:
        return list(indices)
    return [indices[round(place)] for place in np.linspace(0, len(indices) - 1, count)]


def _pictures(source: Source, indices: Iterable[int]) -> list[dict[str, Any]]:
    return [{"path": printable(source.name(index)), "picture": picture(source, index)} for index in indices]


def _render(template: str, **values: Any) -> str:
    environment = page_templates("vitrine.reports", purpose="a report with pictures")
    return environment.get_template(template).render(**values)
