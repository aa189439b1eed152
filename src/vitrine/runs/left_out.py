"""Logits of training images by classifiers that were fitted without them, kept beside the run for its page.

Shapes: N images, K classes.
"""

import json

import numpy as np
from safetensors import SafetensorError, safe_open

from vitrine.checkpoints.tensors import Spec
from vitrine.checkpoints.writing import write_safetensors
from vitrine.data.sources.opening import open_splits
from vitrine.data.sources.source import Source, Subset
from vitrine.errors import CheckpointError, DataError
from vitrine.evaluation.outputs import Outputs
from vitrine.runtime.progress import quiet
from vitrine.runtime.run_folder import RunFolder
from vitrine.spelling import counted

LOGITS, NAMES = "logits", "names"


def write_left_out(folder: RunFolder, outputs: Outputs, source: Source) -> None:
    """Write the logits (N, K) of all images of a source with their names."""
    rows = outputs.rows.float().contiguous()
    names = [source.name(row) for row in range(len(source))]
    write_safetensors(
        folder.left_out_file,
        [(LOGITS, rows)],
        specs={LOGITS: Spec(tuple(rows.shape), rows.dtype)},
        metadata={NAMES: json.dumps(names)},
    )


def read_left_out(folder: RunFolder) -> tuple[Source, Outputs] | None:
    """Open the images that were left out in turn, with their logits; None for a run without such images."""
    file = folder.left_out_file
    if not file.is_file():
        return None
    try:
        with safe_open(file, framework="pt") as opened:
            names, rows = json.loads((opened.metadata() or {})[NAMES]), opened.get_tensor(LOGITS)
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(f"{file} is damaged ({error}); remove it to go without") from None
    source = training_images(folder)
    places = {source.name(row): row for row in range(len(source))}
    missing = [name for name in names if name not in places]
    if missing or len(names) != len(rows) or rows.shape[1:] != (len(source.classes),):
        raise DataError(
            f"the data has changed since the run: {counted(len(missing), 'image')} of {len(names):,} cannot be found"
        )
    chosen = np.array([places[name] for name in names], dtype=np.int64)
    return Subset(source, chosen), Outputs(rows=rows, failures={})


def training_images(folder: RunFolder) -> Source:
    """Open all images of a run that holds out none, with the classes that it has learned."""
    address, classes = folder.read_record().data, folder.read_classes()
    source = open_splits(address, val_fraction=0, allow_empty_class=True)["train"]
    if list(source.classes) != classes:
        with quiet():  # the run skipped classes without images
            source = open_splits(address, val_fraction=0, allow_empty_class=False)["train"]
    return source
