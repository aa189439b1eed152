"""Run a model over the test set of an evaluation: the plan, the output folder and the outputs of all processes."""

from dataclasses import dataclass
from pathlib import Path

from vitrine.checkpoints import Loaded
from vitrine.data.sources.source import Source
from vitrine.evaluation.outputs import Outputs, Precision, Wish, at_a_time_alone, chosen_precision, run_model
from vitrine.evaluation.streaming import chosen_workers
from vitrine.evaluation.test_views import TestViews, beside_one_view, of_one_and_several
from vitrine.jobs.evaluation_files import CONFUSION, METRICS, PAGE, PREDICTIONS
from vitrine.models.packed import packed_attention
from vitrine.runtime.output_folder import new_output_folder, removed_if_empty
from vitrine.runtime.processes import joined_processes, on_first_process
from vitrine.runtime.progress import present
from vitrine.spelling import printable

FILES = (PREDICTIONS, METRICS, CONFUSION, PAGE)


@dataclass(frozen=True, kw_only=True)
class EvaluatePlan:
    """The plan of an evaluation."""

    model: str
    data: str
    split: str
    num_images: int
    num_classes: int
    max_patches: int | None
    """The maximum number of patches per image, for models that keep the aspect ratio; None for others."""
    packed_attention: str | None
    """How attention inside images of any shape is computed; None for images of one size."""
    size: tuple[int, int]
    """Height and width in pixels."""
    device: str
    precision: Precision
    folder: Path


def outputs_on(
    matched: Source,
    loaded: Loaded,
    *,
    model: str,
    data: str,
    split: str,
    out: Path | None,
    views: TestViews | None,
    batch_size: int | None,
    workers: int | None,
    device: str,
    precision: Wish,
    is_overwriting: bool,
) -> tuple[Outputs, Outputs | None, Path, bool]:
    """Run the model on all images, and on several views of each, if asked for.

    Returns both outputs, the output folder, and whether this is the first process.
    """
    roots = [matched.root] if matched.root is not None else []
    with joined_processes(device) as processes:
        chosen = chosen_precision(precision, processes.device)
        num_workers, kind = chosen_workers(workers, device=processes.device, num_pictures=len(matched))
        # Before the work, so that an invalid name is refused at once and no process waits for another.
        folder = on_first_process(
            lambda: new_output_folder(
                out, verb="evaluate", files=FILES, never_in=roots, is_overwriting=is_overwriting
            ),
            processes,
        )
        present(
            EvaluatePlan(
                model=model,
                data=printable(data),
                split=split,
                num_images=len(matched),
                num_classes=len(matched.classes),
                max_patches=loaded.preprocess.max_patches,
                packed_attention=packed_attention(
                    loaded.preprocess.max_patches, loaded.model.config, processes.device
                ),
                size=loaded.preprocess.size,
                device=str(processes.device),
                precision=chosen,
                folder=folder,
            )
        )
        with removed_if_empty(folder):
            network = loaded.model.to(processes.device)
            outputs = run_model(
                network, matched, preprocess=loaded.preprocess, function=beside_one_view(network, views),
                batch_size=batch_size or at_a_time_alone(processes.device, loaded.preprocess.size),
                num_workers=num_workers, worker_kind=kind, device=processes.device, precision=chosen,
            )  # fmt: skip
    one, several = of_one_and_several(outputs, views)
    return one, several, folder, processes.is_first
