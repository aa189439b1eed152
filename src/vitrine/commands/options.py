"""Options that several verbs share: kind and help text, once."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from annotated_doc import Doc

ModelOrBox: TypeAlias = Annotated[
    str | Path | None,
    Doc("Run folder, weights file, hub id or variant name [default: the bundled model]"),
]
Data: TypeAlias = Annotated[
    str | Path | None,
    Doc("Folder with one folder per class, manifest, shards, or the name of a built-in data set"),
]
Pictures: TypeAlias = Annotated[
    str | Path | Iterable[Any] | None,
    Doc(
        "Files, folders, patterns, URLs of images, a .csv or .jsonl with a column path, a .txt of paths, or - for "
        "standard input; in Python also arrays, tensors, Pillow images, bytes and file objects"
    ),
]
Out: TypeAlias = Annotated[
    Path | str | None, Doc("Folder to write to [default: a new dated folder under ./runs]")
]
RunOut: TypeAlias = Annotated[
    Path | str | None,
    Doc("Folder or address (s3://bucket/runs/x) to write to [default: a new dated folder under ./runs]"),
]
Epochs: TypeAlias = Annotated[float | None, Doc("Passes over the training images")]
Steps: TypeAlias = Annotated[int | None, Doc("Training steps, instead of epochs")]
BatchSize: TypeAlias = Annotated[int | None, Doc("Images per step, over all devices")]
PeakRate: TypeAlias = Annotated[float | None, Doc("Peak learning rate")]
Settings: TypeAlias = Annotated[
    str | Sequence[str] | None, Doc("Any setting of the recipe, such as training.lr=3e-4; may be repeated")
]
Device: TypeAlias = Annotated[str, Doc("auto, cpu, cuda, cuda:N or mps")]
ModelSize: TypeAlias = Annotated[
    int | None, Doc("Image height and width in pixels [default: the model's own]")
]
Patch: TypeAlias = Annotated[
    int | None,
    Doc("Side of the patches in pixels; the patch embedding is resized [default: the model's own]"),
]
MaxPatches: TypeAlias = Annotated[
    int | None,
    Doc(
        "Keep the aspect ratio of pictures, with at most this many patches each [default: as the model does]"
    ),
]
BatchAtATime: TypeAlias = Annotated[int | None, Doc("Images per batch [default: 64; on CPU 8 at 224 px]")]
Readers: TypeAlias = Annotated[int, Doc("Threads that read images")]
Decoders: TypeAlias = Annotated[
    int | None,
    Doc("Processes (on a CPU threads) that decode images [default: one per core; one less beside a GPU]"),
]
BatchAlone: TypeAlias = Annotated[
    int | None, Doc("Images per batch [default: on a GPU 256, on CPU 8 at 224 px]")
]
PrecisionWish: TypeAlias = Annotated[
    Literal["auto", "fp32", "bf16"], Doc("Number format of the computation; auto is bf16 on a GPU, else fp32")
]
Part: TypeAlias = Annotated[
    str | None,
    Doc("This process's share of the parts, such as 3/16 [default: from torchrun's or SLURM's variables]"),
]
Engine: TypeAlias = Annotated[
    Literal["local", "ray"], Doc("What computes parts: this process, or a Ray cluster ($RAY_ADDRESS)")
]
PartSize: TypeAlias = Annotated[int | None, Doc("Pictures per part [default: 256 to 16384, by their number]")]
ModelPrecision: TypeAlias = Annotated[Literal["fp32", "bf16"], Doc("Number format of the computation")]
Precision: TypeAlias = Annotated[
    Literal["auto", "bf16", "fp32", "fp8"] | None,
    Doc("Number format; fp8 on recent CUDA devices [default: the recipe's]"),
]
Workers: TypeAlias = Annotated[int, Doc("Data-loading workers [threads; processes when training on a GPU]")]
LogEvery: TypeAlias = Annotated[int | None, Doc("Steps between two lines of the log")]
CheckpointEvery: TypeAlias = Annotated[
    int | None, Doc("Steps between two checkpoints [default: 1000, or a quarter of a shorter run]")
]
EvaluateEvery: TypeAlias = Annotated[
    int | None, Doc("Steps between two evaluations [default: about ten evaluations per run]")
]
HoldOut: TypeAlias = Annotated[
    float | None,
    Doc(
        "Fraction of the training images to hold out if there is no validation set; 0 for none [default: 0.1]"
    ),
]
Group: TypeAlias = Annotated[
    str | None,
    Doc(
        "Keep images of one group on one side of the split: a column of the manifest, a regular expression for file "
        "names, or burst (EXIF times)"
    ),
]
Exclude: TypeAlias = Annotated[Path | str | None, Doc("List of images to skip, as written by vitrine dedup")]
Shard: TypeAlias = Annotated[bool, Doc("Shard weights and optimizer state over the processes (FSDP2)")]
Strict: TypeAlias = Annotated[bool, Doc("Refuse to train if any file cannot be read")]
AllowEmptyClass: TypeAlias = Annotated[bool, Doc("Accept classes without images")]
Overwrite: TypeAlias = Annotated[bool, Doc("Replace the run in the output folder")]
TensorBoard: TypeAlias = Annotated[bool, Doc("Also log to TensorBoard")]
WeightsAndBiases: TypeAlias = Annotated[str | None, Doc("Also log to this W&B project")]
