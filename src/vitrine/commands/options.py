"""Options that several verbs share: kind and help text, once."""

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from annotated_doc import Doc

Out: TypeAlias = Annotated[Path | None, Doc("Where to write; by default a new dated folder under ./runs.")]
Epochs: TypeAlias = Annotated[float | None, Doc("Passes over the data.")]
Steps: TypeAlias = Annotated[int | None, Doc("Steps, instead of epochs.")]
BatchSize: TypeAlias = Annotated[int | None, Doc("Images a step, over all devices.")]
PeakRate: TypeAlias = Annotated[float | None, Doc("Peak learning rate.")]
Settings: TypeAlias = Annotated[list[str] | None, Doc("Any setting of the recipe, such as training.lr=3e-4.")]
Device: TypeAlias = Annotated[str, Doc("auto, cpu or cuda.")]
ModelSize: TypeAlias = Annotated[int | None, Doc("Image height and width; by default the model's own.")]
BatchAtATime: TypeAlias = Annotated[
    int | None, Doc("Images at a time on each device; by default 64, on a CPU 8 of 224 px.")
]
Readers: TypeAlias = Annotated[int, Doc("Threads that read images.")]
ModelPrecision: TypeAlias = Annotated[Literal["fp32", "bf16"], Doc("What the model computes in.")]
Precision: TypeAlias = Annotated[
    Literal["auto", "bf16", "fp32", "fp8"] | None, Doc("What to compute in; fp8 on recent CUDA devices.")
]
Workers: TypeAlias = Annotated[int, Doc("How many read images: threads, or processes beside a GPU.")]
LogEvery: TypeAlias = Annotated[int | None, Doc("Steps between two records.")]
CheckpointEvery: TypeAlias = Annotated[
    int | None, Doc("Steps between two checkpoints; by default 1000, or a quarter of a shorter run.")
]
EvaluateEvery: TypeAlias = Annotated[
    int | None, Doc("Steps between two evaluations; by default about ten a run.")
]
HoldOut: TypeAlias = Annotated[
    float | None,
    Doc("Share of train to validate on where there is no val; by default a tenth, 0 for none."),
]
Exclude: TypeAlias = Annotated[Path | None, Doc("A list of images to leave out, as vitrine dedup writes it.")]
Shard: TypeAlias = Annotated[bool, Doc("Share weights and optimizer among the processes (FSDP2).")]
Strict: TypeAlias = Annotated[bool, Doc("Refuse to train where a file cannot be read.")]
AllowEmptyClass: TypeAlias = Annotated[bool, Doc("Go on where a class has no images.")]
Overwrite: TypeAlias = Annotated[bool, Doc("Write into a folder that holds a run.")]
TensorBoard: TypeAlias = Annotated[bool, Doc("Write for TensorBoard too.")]
WeightsAndBiases: TypeAlias = Annotated[str | None, Doc("Send records to this W&B project too.")]
