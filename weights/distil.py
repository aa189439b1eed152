"""Train the models of the box: distil DINOv2 ViT-S/14 into ViTs with patches of 16 pixels, on packed public images.

    python weights/distil.py PACKS --teacher DINOV2 --tests tests.npz --out box --students s=teacher,ti=box:ti
    python weights/distil.py PACKS --teacher DINOV2 --out trial --students ti --way masked --minutes 2

Everything is on one GPU: images as uint8, crops and colours as batched operations, teacher and students. All see the
same crops, a student with patches of 16 pixels, the teacher of 14, so that their grids agree. `ways.py` lists the
losses and the ways to compare; every field is an option. Each student starts fresh, from weights of its shape
(`ti=box:ti`) or from the teacher's own weights (`s=teacher`).

The learning rate depends on the elapsed time, not on steps: it reaches zero when the minutes are over. `--tests` are
features of test photographs from `copies.py`: training photographs too similar to one of them are removed first.
Photographs of `imagenet-val` and `pets-all` in PACKS are measured on and never trained on.
"""

import argparse
import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import torch
from batches import IMAGENET_MEAN, IMAGENET_STD, Images, Views, read_sets, views
from copies import without_copies
from progress import Clock, Log, Tally
from sources import SOURCES, class_names
from starting import student_vit
from teaching import Student, Teacher, compile_blocks, embedded, fit_maps, lessons
from torch import Tensor, nn
from ways import WAYS, Way, stages_of

import vitrine
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.evaluation.fewshot import fewshot_accuracy
from vitrine.training.averages import Averages
from vitrine.training.muon import Muon

WARM_UP = 300
# Patches of all views of a batch: 1,024 views at 14 x 14. Another grid has as many patches in more or fewer views.
PATCHES_PER_BATCH = 1024 * 14 * 14
PEAK = {"ti": 2e-3, "s": 1e-3}
LOCAL_GRID = 6
BATCH_OF_MAPS = 2048
PETS_BREEDS = 37
# So many photographs have five of every breed in each half; a trial with fewer has no score.
PETS_LEAST = 40 * PETS_BREEDS


@dataclasses.dataclass(frozen=True, kw_only=True)
class Learner:
    """One student with its optimizer and its averaged weights."""

    name: str
    student: Student
    optimizer: Muon
    averages: Averages | None
    rate: float


def main() -> None:
    """Read the packs, fit the teacher's head, train, evaluate, save."""
    options, way = parsed()
    torch.manual_seed(options.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    options.out.mkdir(parents=True, exist_ok=True)
    log, device = Log(options.out / "log.jsonl"), torch.device(options.device)
    log(event="way", **dataclasses.asdict(way))
    sets = read_sets(options.packs, device)
    log(event="sets", **{name: len(images.pixels) for name, images in sets.items()})
    teacher = Teacher(options.teacher, device)
    tests = {name: sets.pop(name) for name in list(sets) if SOURCES[name].share == 0}
    if options.tests is not None:
        without_copies(sets, teacher, options.tests, log)
        sets = {name: images for name, images in sets.items() if len(images.pixels)}
    if not sets:
        raise SystemExit(f"{options.packs} holds no photographs to train on")
    teacher.fit(sets, log)
    for name, images in tests.items():
        log(event="teacher", set=name, **measure(teacher.tokens, teacher.head, images, side=196))
    learners = [make_learner(word, teacher, way, options) for word in options.students.split(",")]
    generator = torch.Generator(device).manual_seed(options.seed)
    for learner, word in zip(learners, options.students.split(","), strict=True):
        if "=" in word:  # it starts from weights that know something
            batch = options.batch or BATCH_OF_MAPS
            fit_maps(
                learner.student, teacher, drawn(sets, way, grid=14, batch=batch, generator=generator), grid=14
            )
        report(learner, tests, log, event="start")
    train(learners, teacher, sets, way=way, options=options, log=log)
    for learner in learners:
        report(learner, tests, log, event="last")
        if learner.averages is not None:
            learner.student.load_state_dict(learner.averages.weights)
            report(learner, tests, log, event="average")
        save(learner, options.out)


def parsed() -> tuple[argparse.Namespace, Way]:
    """Return the command line's options, and the way with its changed fields."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("packs", type=Path)
    parser.add_argument("--teacher", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tests", type=Path, help="features of test photographs, from copies.py")
    parser.add_argument(
        "--students", default="s=teacher,ti=box:ti", help="NAME or NAME=START, with commas between"
    )
    parser.add_argument("--minutes", type=float, default=11)
    parser.add_argument("--lr", type=float, default=1.0, help="factor of the usual peak learning rates")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, help="views per step [default: as many as 1,024 of 224 pixels]")
    parser.add_argument("--way", choices=WAYS, default="plain")
    for field in dataclasses.fields(Way):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default))
    options = parser.parse_args()
    changed = {
        field.name: value
        for field in dataclasses.fields(Way)
        if (value := getattr(options, field.name)) is not None
    }
    return options, dataclasses.replace(WAYS[options.way], **changed)


def make_learner(word: str, teacher: Teacher, way: Way, options: argparse.Namespace) -> Learner:
    """Build a student from `NAME` or `NAME=START`."""
    name, _, start = word.partition("=")
    vit = student_vit(name, start or None, teacher=options.teacher, drop=way.drop)
    student = Student(vit, width=teacher.width, projector=way.projector).to(teacher.device)
    compile_blocks(student.vit)
    return Learner(
        name=name,
        student=student,
        optimizer=make_optimizer(student),
        averages=Averages(student, decay=way.average) if way.average else None,
        # Weights that already know something move less.
        rate=options.lr * PEAK[name] * (0.3 if start else 1.0),
    )


def make_optimizer(student: Student) -> Muon:
    """Muon for the encoder's matrices, AdamW for everything else."""
    matrices = [p for name, p in student.vit.blocks.named_parameters() if p.ndim == 2]
    chosen = {id(p) for p in matrices}
    others = [p for p in student.parameters() if id(p) not in chosen]
    groups = [
        {"params": matrices, "is_matrix": True, "weight_decay": 0.05},
        {"params": [p for p in others if p.ndim >= 2], "is_matrix": False, "weight_decay": 0.05},
        {"params": [p for p in others if p.ndim < 2], "is_matrix": False, "weight_decay": 0.0},
    ]
    return Muon(groups, betas=(0.9, 0.99), momentum=0.95)


def train(
    learners: list[Learner],
    teacher: Teacher,
    sets: dict[str, Images],
    *,
    way: Way,
    options: argparse.Namespace,
    log: Log,
) -> None:
    """Train for `options.minutes`; all students see the same views and the same answers of the teacher."""
    device, clock = teacher.device, Clock(options.minutes)
    compare = torch.compile(lessons, dynamic=False) if device.type == "cuda" else lessons
    generator = torch.Generator(device).manual_seed(options.seed)
    tally = Tally(log)
    for grid, until in stages_of(way.stages):
        batch = options.batch or PATCHES_PER_BATCH // grid**2
        clock.stop()
        while clock.share < until:
            batch_views = drawn(sets, way, grid=grid, batch=batch, generator=generator)
            classes, patches = teacher.lesson(batch_views.teacher, grid=grid)
            taught = classes, patches, teacher.head(classes)
            factor = min(1.0, (tally.step + 1) / WARM_UP) * (1 - clock.share) * math.sqrt(batch / 1024)
            for learner in learners:
                losses = step(learner, batch_views, taught, way=way, factor=factor, step_number=tally.step,
                              compare=compare, generator=generator)  # fmt: skip
                tally.losses({f"{learner.name} {name}": loss for name, loss in losses.items()})
            tally.count_step(batch)
            if clock.pause:
                tally.check()  # waits for the device
                clock.go()
            if tally.tell(clock.seconds, grid=grid):
                for learner in learners:
                    torch.save(weights_of(learner), options.out / f"{learner.name}.pt")


def drawn(sets: dict[str, Images], way: Way, *, grid: int, batch: int, generator: torch.Generator) -> Views:
    """Draw the views of a batch at one grid."""
    return views(
        sets, grid=grid, teacher_grid=round(grid * way.teacher_scale), batch=batch, num_local=way.local,
        local_grid=LOCAL_GRID, generator=generator,
    )  # fmt: skip


def step(
    learner: Learner,
    batch: Views,
    taught: tuple[Tensor, ...],
    *,
    way: Way,
    factor: float,
    step_number: int,
    compare: Callable[..., dict[str, Tensor]],
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """Train one student on one batch; return its losses."""
    for group in learner.optimizer.param_groups:
        group["lr"] = learner.rate * factor
    mask = None
    if way.masked:
        mask = torch.rand(taught[1].shape[:2], device=generator.device, generator=generator) < way.masked
    with torch.autocast(generator.device.type, torch.bfloat16):
        answer = learner.student(batch.student, mask)
        local = learner.student(batch.local)[1] if way.local else None
    losses = compare(answer, taught, (batch.labels, batch.classes, batch.probabilities), local)
    torch.stack([getattr(way, name) * loss for name, loss in losses.items()]).sum().backward()
    nn.utils.clip_grad_norm_(learner.student.parameters(), 1.0)
    learner.optimizer.step()
    learner.optimizer.zero_grad()
    if learner.averages is not None:
        learner.averages.update(step=step_number)
    return losses


def weights_of(learner: Learner) -> dict[str, Tensor]:
    """Return the averaged weights, the last ones without averages."""
    return learner.student.state_dict() if learner.averages is None else learner.averages.weights


def report(learner: Learner, tests: dict[str, Images], log: Log, *, event: str) -> None:
    """Log a student's accuracy on every test set."""
    student = learner.student.eval()
    for name, images in tests.items():
        log(event=event, student=learner.name, set=name,
            **measure(student.class_tokens, student.vit.head, images, side=224))  # fmt: skip
    student.train()


@torch.no_grad()
def measure(
    tokens_of: Callable[[Tensor], Tensor], classify: Callable[[Tensor], Tensor], images: Images, *, side: int
) -> dict[str, float]:
    """Return top-1 and top-5 of the head on ImageNet's photographs, or 5-shot accuracy on half of Pets."""
    tokens = embedded(tokens_of, images, side=side)
    if int(images.labels.max()) >= PETS_BREEDS:
        ranked = classify(tokens).topk(5).indices == images.labels[:, None]
        return {"top_1": float(ranked[:, 0].float().mean()), "top_5": float(ranked.any(1).float().mean())}
    if len(tokens) < PETS_LEAST:
        return {"photographs": len(tokens)}
    half = torch.arange(len(tokens), device=tokens.device) % 2 == 0
    parts = [
        x.cpu().numpy() for x in (tokens[half], images.labels[half], tokens[~half], images.labels[~half])
    ]
    return {"five_shot": fewshot_accuracy(*parts, shots=[5], seeds=5).score(5).mean}


def save(learner: Learner, out: Path) -> None:
    """Save a student in half precision, as it is shipped, as a model that `vitrine.load` reads."""
    vitrine.save(
        learner.student.vit.half().cpu(),
        out / learner.name,
        preprocess=Preprocess(size=(224, 224), mean=IMAGENET_MEAN, std=IMAGENET_STD),
        classes=class_names(),
        overwrite=True,
    )


if __name__ == "__main__":
    main()
