"""A task small enough for every test of the loop: generated pictures, a ViT of a few thousand weights."""

from pathlib import Path

import torch
from torch import Tensor, nn
from unit.models.small import VIT

from vitrine.data.loading.loader import Batch, Loader
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.data.sources.generated import GeneratedSource
from vitrine.models import Model, create_model
from vitrine.objectives.classification import classification_loss, num_correct
from vitrine.runtime.processes import Processes
from vitrine.training.config import TrainingConfig
from vitrine.training.task import Task

# Exact comparisons need fp32 on every machine: `auto` is bf16 on processors that have its instructions.
CONFIG = TrainingConfig(
    total_steps=20, batch_size=16, lr=1e-3, warmup_steps=4, weight_decay=0.1, log_every=1, checkpoint_every=5,
    precision="fp32",
)  # fmt: skip


def small_model(**options: object) -> Model:
    torch.manual_seed(0)
    return create_model(**{**VIT, "num_classes": 10, **options})  # type: ignore[arg-type]


def small_task(
    config: TrainingConfig = CONFIG, *, processes: Processes | None = None, length: int = 64
) -> Task:
    processes = processes or Processes()
    source = GeneratedSource(count=length, size=32, label="shape", seed=1)
    preprocess = Preprocess(size=(32, 32))
    loader = Loader(
        source, preprocess, batch_size=config.batch_size, seed=config.seed, num_workers=0,
        rank=processes.rank, world_size=processes.world_size, device=processes.device,
    )  # fmt: skip

    def prepare(batch: Batch) -> tuple[Tensor, Tensor]:
        return preprocess.normalise(batch.images), batch.labels

    def loss_of(module: nn.Module, parts: tuple[Tensor, ...]) -> tuple[Tensor, dict[str, Tensor]]:
        logits = module(parts[0])
        return classification_loss(logits, parts[1]), {"accuracy": num_correct(logits, parts[1])}

    def evaluate(model: nn.Module) -> dict[str, float]:
        return {"accuracy": float(sum(p.double().sum() for p in model.parameters()))}

    return Task(
        batches=lambda start, stop: loader.training_batches(start_step=start, stop_step=stop),
        prepare=prepare,
        loss_of=loss_of,
        evaluate=evaluate,
        names_of=lambda step: [f"picture-{step}"],
    )


class Memory:
    """A sink that remembers."""

    def __init__(self) -> None:
        self.records: list[dict[str, float]] = []

    def write(self, record: dict[str, float]) -> None:
        self.records.append(record)

    def close(self) -> None:
        pass

    @property
    def losses(self) -> list[float]:
        return [record["loss"] for record in self.records if "loss" in record]


class Said:
    """A listener that keeps the remarks."""

    def __init__(self) -> None:
        self.remarks: list[str] = []

    def start(self, what: str, total: int | None, done: int = 0) -> None:
        pass

    def advance(self, steps: int, note: str = "") -> None:
        pass

    def finish(self) -> None:
        pass

    def notice(self, text: str, advice: object = ()) -> None:
        self.remarks.append(text)


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_equal(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert torch.equal(value, right[name]), name


def fresh_folder(tmp_path: Path, name: str = "run") -> Path:
    return tmp_path / name / "checkpoints"
