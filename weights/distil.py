"""Train the bundled model: distil DINOv2 ViT-S/14 into a ViT-Ti/16 on packed public images, on one GPU.

    python weights/distil.py PACKS --teacher DINOV2 --out box --minutes 11

Everything is on the GPU: images as uint8, crops and colours as batched operations, teacher and student. Both see
the same crop, the student with patches of 16 pixels, the teacher of 14, so that their grids agree. The loss has
four parts:

- the class token and every patch token, through one linear map each, match the teacher's standardized tokens in
  direction (cosine);
- distances between the student's class tokens in a batch match the teacher's (few-shot evaluation reads these
  distances);
- the head's 200 classes of Tiny-ImageNet match a linear head that was fitted to the teacher, on every image;
- on images of Tiny-ImageNet the head also learns the label.

The learning rate depends on the elapsed time, not on steps: it reaches zero when the minutes are over.
`packs.py` creates PACKS; images that the teacher considers near-duplicates of a test image are removed first.
"""

import argparse
import dataclasses
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from pictures import IMAGENET_MEAN, IMAGENET_STD, Images, read_pack, views
from progress import Clock, Log, Tally
from teaching import WEIGHTS, Student, Teacher, compile_blocks, embedded, lessons
from torch import Tensor, nn

import vitrine
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.evaluation.fewshot import fewshot_accuracy
from vitrine.training.muon import Muon
from vitrine.training.state import Averages

# A training picture whose teacher token has this cosine to a test picture's is taken for a copy of it.
COPY_COSINE = 0.93
WARM_UP = 300


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
    """A part of the time at one image size of the student; student and teacher have the same grid."""

    until: float
    grid: int
    batch: int


STAGES = (Stage(until=0.45, grid=9, batch=2048), Stage(until=1.0, grid=14, batch=1024))


def main() -> None:
    """Read the packs, fit the teacher's head, train, evaluate, save."""
    options = parsed()
    torch.manual_seed(options.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    log = Log(out / "log.jsonl")
    device = torch.device(options.device)
    sets = {path.stem: read_pack(path, device) for path in sorted(Path(options.packs).glob("*.npz"))}
    log(event="sets", **{name: len(images.pixels) for name, images in sets.items()})
    teacher = Teacher(options.teacher, device)
    tests = {name: sets.pop(name) for name in ("tinyval", "pets") if name in sets}
    without_copies(sets, tests, teacher, log)
    teacher.fit(sets, log)
    for name, images in tests.items():
        log(event="teacher", set=name, **measure(teacher.tokens, teacher.classify, images, grid=14, patch=14))
    student = Student(device, drop=0.0)
    if options.start:
        student.load_state_dict(torch.load(options.start, map_location=device, weights_only=True))
    averages = train(student, teacher, sets, options=options, log=log)
    torch.save(student.state_dict(), out / "last.pt")
    for kind in ("last", "average"):
        if kind == "average":
            student.load_state_dict(averages.weights)
        student.eval()
        for name, images in tests.items():
            found = measure(student.class_tokens, student.vit.head, images, grid=14, patch=16)
            log(event="student", weights=kind, set=name, **found)
    torch.save(student.state_dict(), out / "average.pt")
    vitrine.save(
        student.vit.float().cpu(),
        out / "model",
        preprocess=Preprocess(size=(224, 224), mean=IMAGENET_MEAN, std=IMAGENET_STD),
        overwrite=True,
    )


def parsed() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("packs")
    parser.add_argument("--teacher", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--minutes", type=float, default=11)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--start", help="weights of an earlier run (its average.pt) to go on from")
    parser.add_argument("--small", action="store_true", help="batches of 32, for a trial without a GPU")
    return parser.parse_args()


def train(
    student: Student, teacher: Teacher, sets: dict[str, Images], *, options: argparse.Namespace, log: Log
) -> Averages:
    """Train for `options.minutes`; update the student's weights in place and return their averages."""
    device, clock = teacher.device, Clock(options.minutes)
    optimizer, averages = make_optimizer(student), Averages(student, decay=0.9995)
    compile_blocks(student.vit)
    compare = torch.compile(lessons, dynamic=False) if device.type == "cuda" else lessons
    generator = torch.Generator(device).manual_seed(options.seed)
    tally = Tally(log)
    for stage in STAGES:
        batch = 32 if options.small else stage.batch
        clock.stop()
        while clock.share < stage.until:
            rate = options.lr * min(1.0, (tally.step + 1) / WARM_UP) * (1 - clock.share)
            for group in optimizer.param_groups:
                group["lr"] = rate * (batch / 1024) ** 0.5
            mine, its, labels = views(sets, stage.grid, batch, generator)
            classes, patches = teacher.lesson(its)
            with torch.autocast(device.type, torch.bfloat16):
                found = student(mine)
            losses = compare(found, (classes, patches, teacher.head(classes)), labels)
            torch.stack([WEIGHTS[name] * loss for name, loss in losses.items()]).sum().backward()
            nn.utils.clip_grad_norm_(student.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            averages.update(step=tally.step)
            tally.add(losses, batch)
            if clock.pause:
                tally.check()  # waits for the device
                clock.go()
            if tally.tell(clock.seconds, grid=stage.grid, lr=rate):
                torch.save(averages.weights, log.path.parent / "average.pt")
    return averages


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


def without_copies(sets: dict[str, Images], tests: dict[str, Images], teacher: Teacher, log: Log) -> None:
    """Remove training images that the teacher considers near-duplicates of a test image."""
    if not tests:
        return
    known = F.normalize(
        torch.cat([embedded(teacher.tokens, images, grid=9, patch=14) for images in tests.values()]), dim=1
    )
    for name, images in sets.items():
        tokens = F.normalize(embedded(teacher.tokens, images, grid=9, patch=14), dim=1)
        nearest = torch.cat([(part @ known.T).amax(1) for part in tokens.split(4096)])
        images.keep(nearest < COPY_COSINE)
        log(event="copies", set=name, left_out=int((nearest >= COPY_COSINE).sum()), kept=len(images.pixels))


@torch.no_grad()
def measure(
    tokens_of: Callable[[Tensor], Tensor],
    classify: Callable[[Tensor], Tensor],
    images: Images,
    *,
    grid: int,
    patch: int,
) -> dict[str, float]:
    """Return top-1 accuracy of the head on Tiny-ImageNet, or 5-shot accuracy on half of Pets."""
    tokens = embedded(tokens_of, images, grid=grid, patch=patch)
    if int(images.labels.max()) >= 37:
        return {"top_1": float((classify(tokens).argmax(1) == images.labels).float().mean())}
    half = torch.arange(len(tokens), device=tokens.device) % 2 == 0
    parts = [
        x.cpu().numpy() for x in (tokens[half], images.labels[half], tokens[~half], images.labels[~half])
    ]
    return {"five_shot": fewshot_accuracy(*parts, shots=[5], seeds=5).score(5).mean}


if __name__ == "__main__":
    main()
