"""`vitrine embed`: pictures to features, for search, clustering, or any classifier of your own."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_doc import Doc

from vitrine.commands import options
from vitrine.commands.arguments import as_path
from vitrine.commands.model_or_box import ModelOrBox, Pictures
from vitrine.spelling import counted, with_first

FILE = "features.npy"


@dataclass(frozen=True, kw_only=True)
class EmbedResult:
    """How many features there are, and where."""

    model: str
    num_pictures: int
    width: int
    unreadable: dict[str, str]
    wrote: tuple[Path, ...]
    is_strict: bool = False

    @property
    def exit_code(self) -> int:
        """1 where a picture could not be read and that was asked to be enough."""
        return int(self.is_strict and bool(self.unreadable))

    def __str__(self) -> str:
        lines = [
            f"{counted(self.num_pictures - len(self.unreadable), 'picture')}, {self.width} features each"
        ]
        if self.unreadable:
            lines.append(f"Left out, as they cannot be read: {with_first(self.unreadable, 'picture')}")
        lines += [f"Wrote {path}" for path in self.wrote]
        file = self.wrote[0]
        reader = "pyarrow.parquet.read_table" if file.suffix == ".parquet" else "numpy.load"
        return "\n".join([*lines, f"Next: {reader}({str(file)!r})"])


def embed(
    model: ModelOrBox = None,
    pictures: Pictures = None,
    *,
    out: Annotated[
        Path | str | None,
        Doc(
            "A .npy file (paths go into a .csv beside it) or a .parquet file "
            "[default: features.npy in a new dated folder under ./runs]"
        ),
    ] = None,
    size: options.ModelSize = None,
    batch_size: options.BatchAtATime = None,
    workers: options.Readers = 2,
    device: options.Device = "auto",
    precision: options.ModelPrecision = "fp32",
    strict: Annotated[bool, Doc("Exit with 1 if any picture cannot be read")] = False,
    overwrite: Annotated[bool, Doc("Replace the output file if it exists")] = False,
) -> EmbedResult:
    """Compute one feature vector per picture (the input of the classification head)."""
    out = as_path(out)
    import torch

    from vitrine.commands.model_or_box import opened_pictures, plan_line
    from vitrine.errors import DataError
    from vitrine.runtime.output_folder import new_output_folder
    from vitrine.runtime.progress import announced, notice
    from vitrine.serving.output_files import FEATURE_KINDS, require_kind, write_features
    from vitrine.serving.predictor import Predictor
    from vitrine.spelling import printable

    name, source = opened_pictures("embed", model, pictures, out=out)
    if out is not None:
        require_kind(out, FEATURE_KINDS, is_overwriting=overwrite)
    predictor = Predictor.open(
        name, device=device, precision=precision, image_size=size, batch_size=batch_size, workers=workers
    )
    notice(plan_line(predictor, source, name))
    parts: list[torch.Tensor] = []
    failures: dict[int, str] = {}
    with announced("Embedding", total=len(source)) as advance:
        for rows in predictor.stream(source, wanted="features"):
            parts.append(rows.values)
            failures |= {rows.start + row: why for row, why in rows.failures.items()}
            advance(len(rows.values), "")
    if len(failures) == len(source):
        raise DataError(f"no picture can be read; the first: {failures[0]}")
    values = torch.cat(parts).numpy()  # (N, R)
    names = [source.name(index) for index in range(len(source))]
    file = out if out is not None else new_output_folder(None, verb="embed", files=(FILE,)) / FILE
    return EmbedResult(
        model=name,
        num_pictures=len(source),
        width=values.shape[1],
        unreadable={printable(names[index]): why for index, why in failures.items()},
        wrote=write_features(file, values, names=names, failures=failures),
        is_strict=strict,
    )
