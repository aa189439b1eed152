"""Teacher, student, and the lessons: what the student is told about a batch.

Shapes: B views, N patches, D width of the teacher, K classes of the second teacher.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from batches import TEACHER_PATCH, Images, Views, whole
from progress import Log
from starting import NUM_CLASSES
from torch import Tensor, nn

import vitrine
from vitrine.models import ViT

# Pictures at a time where nothing is trained.
CHUNK = 512 if torch.cuda.is_available() else 16
HIDDEN = 2048
# Rows and strength of the ridge regression that starts a student's maps.
MOST_ROWS, RIDGE = 65_536, 1e-3
# Pixels of a side below which the second teacher cannot see what is shown.
LEAST_SIDE = 100


class Teacher:
    """The frozen teacher: tokens standardised over the training pictures, and a linear head on its class token."""

    def __init__(self, place: str, device: torch.device) -> None:
        model = vitrine.load(place).model
        assert isinstance(model, ViT)
        self.model = (
            model.to(device, torch.bfloat16 if device.type == "cuda" else torch.float32)
            .eval()
            .requires_grad_(False)
        )
        self.device, self.width = device, model.config.width
        compile_blocks(model)
        self.shift, self.scale = (
            torch.zeros(2, self.width, device=device),
            torch.ones(2, self.width, device=device),
        )
        self.head = nn.Linear(self.width, NUM_CLASSES).to(device)

    @torch.no_grad()
    def encode(self, pixels: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Return all tokens (B, 1 + N, D), normalised, and the grid of the patches."""
        patches, grid = self.model.embed_patches(pixels.to(next(self.model.parameters()).dtype))
        return self.model.encode(self.model.assemble(patches, grid), grid), grid

    @torch.no_grad()
    def lesson(self, pixels: Tensor, *, grid: int | None = None) -> tuple[Tensor, Tensor]:
        """Return standardised class tokens (B, D) and patch tokens (B, N, D), averaged to another grid if given."""
        tokens, own = self.encode(pixels)
        tokens = tokens.float()
        patches = (tokens[:, 1:] - self.shift[1]) / self.scale[1]
        if grid is not None and own != (grid, grid):
            square = patches.transpose(1, 2).unflatten(2, own)
            patches = F.interpolate(square, size=(grid, grid), mode="area").flatten(2).transpose(1, 2)
        return (tokens[:, 0] - self.shift[0]) / self.scale[0], patches

    def tokens(self, pixels: Tensor) -> Tensor:
        """Return standardised class tokens (B, D)."""
        return self.lesson(pixels)[0]

    def fit(self, sets: dict[str, Images], log: Log, *, seed: int = 0) -> None:
        """Measure mean and spread of the tokens, then fit the head on labels and on the second teacher's answers."""
        torch.compiler.set_stance("force_eager")
        generator = torch.Generator(self.device).manual_seed(seed)
        tokens = [
            self.encode(
                whole(
                    images.pixels[
                        torch.randperm(len(images.pixels), device=self.device, generator=generator)[:CHUNK]
                    ],
                    14 * TEACHER_PATCH,
                )
            )[0].float()
            for images in sets.values()
        ]
        classes = torch.cat([one[:, 0] for one in tokens])
        patches = torch.cat([one[:, 1:].flatten(0, 1) for one in tokens])
        self.shift = torch.stack([classes.mean(0), patches.mean(0)])
        self.scale = torch.stack([classes.std(0), patches.std(0)]).clamp(min=1e-4)
        features, labels, targets = [], [], []
        for images in sets.values():
            features.append(embedded(self.tokens, images, side=9 * TEACHER_PATCH))
            labels.append(images.labels)
            targets.append(dense_targets(images))
        self._fit_head(torch.cat(features), torch.cat(labels), torch.cat(targets), log, generator=generator)

    def _fit_head(
        self, features: Tensor, labels: Tensor, targets: Tensor, log: Log, *, generator: torch.Generator
    ) -> None:
        usable = torch.nonzero((labels >= 0) | (targets.sum(1) > 0))[:, 0]
        if not len(usable):
            raise SystemExit("no image has a label or an answer of the second teacher; run classes.py first")
        optimizer = torch.optim.AdamW(self.head.parameters(), lr=1e-2, weight_decay=1e-2)
        steps = 1500 if self.device.type == "cuda" else 40
        loss = torch.zeros(())
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = 1e-2 * (1 - step / steps)
            draw = torch.randint(len(usable), (4096,), device=self.device, generator=generator)
            chosen = usable[draw]
            logits, known = self.head(features[chosen]), labels[chosen] >= 0
            target = torch.where(
                known[:, None],
                F.one_hot(labels[chosen].clamp(min=0), NUM_CLASSES).float(),
                targets[chosen].float(),
            )
            loss = F.cross_entropy(logits, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        self.head.requires_grad_(False)
        log(event="teacher's head", loss=loss.item(), images=len(usable))


def dense_targets(images: Images) -> Tensor:
    """Return the second teacher's probabilities of all classes (N, 1000) in half precision; rows of 0 without any."""
    dense = torch.zeros(len(images.labels), NUM_CLASSES, dtype=torch.float16, device=images.labels.device)
    if images.pixels.shape[-1] < LEAST_SIDE:
        return dense
    known = images.classes >= 0
    dense.scatter_(1, images.classes.clamp(min=0), (images.probabilities * known).half())
    return dense


class Student(nn.Module):
    """A model of the box, and the maps to the teacher's tokens that are thrown away at the end."""

    def __init__(self, vit: ViT, *, width: int, projector: int) -> None:
        super().__init__()
        self.vit = vit
        own = vit.config.width
        self.to_class, self.to_patches = (
            projection(own, width, layers=projector),
            projection(own, width, layers=projector),
        )
        self.hidden = nn.Parameter(torch.zeros(own))
        nn.init.trunc_normal_(self.hidden, std=0.02)

    def forward(self, pixels: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the class tokens, their image in the teacher's space, the patches' and the logits."""
        patches, grid = self.vit.embed_patches(pixels)
        if mask is not None:
            patches = torch.where(mask[..., None], self.hidden.to(patches.dtype), patches)
        tokens = self.vit.encode(self.vit.assemble(patches, grid), grid)
        return (
            tokens[:, 0],
            self.to_class(tokens[:, 0]),
            self.to_patches(tokens[:, 1:]),
            self.vit.head(tokens[:, 0]),
        )

    def class_tokens(self, pixels: Tensor) -> Tensor:
        """Return class tokens (B, D)."""
        with torch.autocast(pixels.device.type, torch.bfloat16):
            return self(pixels)[0]


@torch.no_grad()
def fit_maps(student: Student, teacher: Teacher, batch: Views, *, grid: int) -> None:
    """Solve the student's maps and head for one batch, so that weights that know something keep it at the start.

    Random maps would send noise through them for hundreds of steps. Deeper projectors stay random.
    """
    student.eval()
    with torch.autocast(batch.student.device.type, torch.bfloat16):
        tokens, _, _, _ = student(batch.student)
        patches, shape = student.vit.embed_patches(batch.student)
        own_patches = student.vit.encode(student.vit.assemble(patches, shape), shape)[:, 1:]
    classes, its_patches = teacher.lesson(batch.teacher, grid=grid)
    pairs = [
        (student.to_class, tokens, classes),
        (student.to_patches, own_patches.flatten(0, 1)[:MOST_ROWS], its_patches.flatten(0, 1)[:MOST_ROWS]),
    ]
    if student.vit.head is not None:
        pairs.append((student.vit.head, tokens, teacher.head(classes)))
    for layer, inputs, outputs in pairs:
        linear = layer[0] if isinstance(layer, nn.Sequential) else layer
        if isinstance(layer, nn.Linear) or len(layer) == 1:
            solve(linear, inputs.float(), outputs.float())
    student.train()


def solve(linear: nn.Linear, inputs: Tensor, outputs: Tensor) -> None:
    """Set a linear layer to the ridge regression of outputs (N, K) on inputs (N, D)."""
    centre, target = inputs.mean(0), outputs.mean(0)
    x, y = inputs - centre, outputs - target
    gram = x.T @ x
    strength = RIDGE * gram.diagonal().mean()
    weight = torch.linalg.solve(gram + strength * torch.eye(len(gram), device=gram.device), x.T @ y).T
    linear.weight.copy_(weight)
    linear.bias.copy_(target - weight @ centre)


def projection(own: int, width: int, *, layers: int) -> nn.Sequential:
    """Return a linear map, or layers with GELU between them."""
    parts: list[nn.Module] = []
    for _ in range(layers - 1):
        parts += [nn.Linear(own, HIDDEN), nn.GELU()]
        own = HIDDEN
    return nn.Sequential(*parts, nn.Linear(own, width))


def lessons(
    answer: tuple[Tensor, ...], taught: tuple[Tensor, ...], targets: tuple[Tensor, ...], local: Tensor | None
) -> dict[str, Tensor]:
    """Return the losses, each the mean over the batch.

    `answer`: the student's class tokens, their image in the teacher's space, its patches', its logits; `taught`: the
    teacher's class tokens, patches and logits; `targets`: labels (B,), classes (B, K) and their probabilities (B, K)
    of the second teacher, -1 where there is none; `local`: the image of the class tokens of small crops.
    """
    own, mapped, patches, logits = (tensor.float() for tensor in answer)
    its_classes, its_patches, its_logits = taught
    labels, classes, probabilities = targets
    known = labels >= 0
    per_label = F.cross_entropy(logits, labels.clamp(min=0), reduction="none", label_smoothing=0.1)
    losses = {
        "token": 1 - F.cosine_similarity(mapped, its_classes).mean(),
        "patches": 1 - F.cosine_similarity(patches, its_patches, dim=-1).mean(),
        "relations": relations(own, its_classes),
        "head": F.kl_div(logits.log_softmax(1), its_logits.softmax(1), reduction="batchmean"),
        "second": most_likely(logits, classes, probabilities),
        "label": (per_label * known).sum() / known.sum().clamp(min=1),
    }
    if local is not None:
        large = its_classes.repeat(len(local) // len(its_classes), 1)
        losses["token"] = losses["token"] + (1 - F.cosine_similarity(local.float(), large).mean())
    return losses


def most_likely(logits: Tensor, classes: Tensor, probabilities: Tensor) -> Tensor:
    """Cross-entropy to a teacher of which only the most likely classes are known, over the images that have any.

    All other classes count as one with the rest of the probability.
    """
    known = classes >= 0
    has_any = known.any(1)
    log_own = logits.log_softmax(1)
    chosen = log_own.gather(1, classes.clamp(min=0)).masked_fill(~known, float("-inf"))
    of_known = torch.where(known, chosen, torch.zeros_like(chosen))
    left = (1 - (probabilities * known).sum(1)).clamp(min=0)
    # log(1 - p) of the probability on known classes; at most 1 - 1e-6, where its slope would be infinite.
    own_left = torch.log1p(-chosen.exp().sum(1).clamp(max=1 - 1e-6))
    per_image = -(probabilities * known * of_known).sum(1) - left * own_left
    return (per_image * has_any).sum() / has_any.sum().clamp(min=1)


def relations(own: Tensor, its: Tensor, *, temperature: float = 0.1, part: int = 1024) -> Tensor:
    """How differently two sets of tokens lie to each other: KL between the softmax of their cosines, row by row."""
    own, its = own[:part], its[:part]
    mine = F.normalize((own - own.mean(0)) / (own.std(0) + 1e-4), dim=1)
    others = F.normalize(its, dim=1)
    self_to_self = torch.eye(len(own), dtype=torch.bool, device=own.device)
    mine, others = ((x @ x.T / temperature).masked_fill(self_to_self, -1e4) for x in (mine, others))
    return F.kl_div(mine.log_softmax(1), others.softmax(1), reduction="batchmean")


@torch.no_grad()
def embedded(tokens_of: Callable[[Tensor], Tensor], images: Images, *, side: int) -> Tensor:
    """Return the class tokens (N, D) of whole pictures."""
    torch.compiler.set_stance("force_eager")  # one pass over the pictures is over before a compiler is done
    parts = [tokens_of(whole(pixels, side)).float() for pixels in images.pixels.split(CHUNK)]
    torch.compiler.set_stance("default")
    return torch.cat(parts)


def compile_blocks(vit: Any) -> None:
    """Compile the encoder's blocks in place: they share one piece of code, so that it takes seconds, not minutes."""
    if torch.cuda.is_available():
        for block in vit.blocks:
            block.compile(dynamic=False)
