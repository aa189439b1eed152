"""Teacher, student, and the lessons: what the student is told about a batch.

Shapes: B views, N patches, D width of the teacher.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from pictures import Images, whole
from progress import Log
from torch import Tensor, nn

import vitrine
from vitrine.models import ViT, ViTConfig

NUM_CLASSES = 200
WEIGHTS = {"class": 1.0, "patches": 1.0, "relations": 0.5, "head": 0.5, "label": 0.25}
# Pictures at a time where nothing is trained.
CHUNK = 512 if torch.cuda.is_available() else 16


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
        self.device = device
        compile_blocks(model)
        width = model.config.width
        self.shift, self.scale = torch.zeros(2, width, device=device), torch.ones(2, width, device=device)
        self.head = nn.Linear(width, NUM_CLASSES).to(device)

    @torch.no_grad()
    def encode(self, pixels: Tensor) -> Tensor:
        """Return all tokens (B, 1 + N, D), normalised."""
        patches, grid = self.model.embed_patches(pixels.to(next(self.model.parameters()).dtype))
        return self.model.encode(self.model.assemble(patches, grid), grid)

    @torch.no_grad()
    def lesson(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Return standardised class tokens (B, D) and patch tokens (B, N, D)."""
        tokens = self.encode(pixels).float()
        return (tokens[:, 0] - self.shift[0]) / self.scale[0], (tokens[:, 1:] - self.shift[1]) / self.scale[1]

    def tokens(self, pixels: Tensor) -> Tensor:
        """Return standardised class tokens (B, D)."""
        return self.lesson(pixels)[0]

    def classify(self, tokens: Tensor) -> Tensor:
        """Map standardised class tokens to logits (B, 200)."""
        return self.head(tokens)

    def fit(self, sets: dict[str, Images], log: Log) -> None:
        """Measure mean and spread of the tokens, then fit the head on Tiny-ImageNet's labels."""
        sample = [
            images.pixels[torch.randperm(len(images.pixels), device=self.device)[:CHUNK]]
            for images in sets.values()
        ]
        torch.compiler.set_stance("force_eager")
        found = [self.encode(whole(pixels, 14 * 14)).float() for pixels in sample]
        classes = torch.cat([tokens[:, 0] for tokens in found])
        patches = torch.cat([tokens[:, 1:].flatten(0, 1) for tokens in found])
        self.shift = torch.stack([classes.mean(0), patches.mean(0)])
        self.scale = torch.stack([classes.std(0), patches.std(0)])
        tiny = sets["tiny"]
        views = [
            embedded(self.tokens, tiny, grid=grid, patch=14, flip=flip)
            for grid, flip in ((9, False), (14, True))
        ]
        features, labels = torch.cat(views), tiny.labels.repeat(len(views))
        optimizer = torch.optim.AdamW(self.head.parameters(), lr=1e-2, weight_decay=1e-2)
        steps = 1500 if self.device.type == "cuda" else 20
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = 1e-2 * (1 - step / steps)
            chosen = torch.randint(len(features), (4096,), device=self.device)
            loss = F.cross_entropy(self.head(features[chosen]), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        self.head.requires_grad_(False)
        log(event="teacher's head", loss=loss.item())


class Student(nn.Module):
    """The model in the box, and the linear maps to the teacher's tokens that are thrown away at the end."""

    def __init__(self, device: torch.device, *, drop: float) -> None:
        super().__init__()
        self.vit = ViT(
            ViTConfig(
                width=192,
                depth=12,
                num_heads=3,
                mlp_width=768,
                patch_size=(16, 16),
                image_size=(224, 224),
                num_classes=NUM_CLASSES,
                stochastic_depth=drop,
            )
        )
        nn.init.trunc_normal_(self.vit.head.weight, std=0.01)
        self.to_class, self.to_patches = nn.Linear(192, 384), nn.Linear(192, 384)
        self.to(device)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the class tokens, their image in the teacher's space, the patches' and the logits."""
        patches, grid = self.vit.embed_patches(pixels)
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


def lessons(found: tuple[Tensor, ...], taught: tuple[Tensor, ...], labels: Tensor) -> dict[str, Tensor]:
    """Return the losses, each the mean over the batch.

    `found`: the student's class tokens, their image in the teacher's space, its patches', its logits; `taught`: the
    teacher's class tokens, patches and logits; labels (B,), -1 where there is none.
    """
    own, mapped, patches, logits = (tensor.float() for tensor in found)
    its_classes, its_patches, its_logits = taught
    known = labels >= 0
    per_label = F.cross_entropy(logits, labels.clamp(min=0), reduction="none", label_smoothing=0.1)
    return {
        "class": 1 - F.cosine_similarity(mapped, its_classes).mean(),
        "patches": 1 - F.cosine_similarity(patches, its_patches, dim=-1).mean(),
        "relations": relations(own, its_classes),
        "head": F.kl_div(logits.log_softmax(1), its_logits.softmax(1), reduction="batchmean"),
        "label": (per_label * known).sum() / known.sum().clamp(min=1),
    }


def relations(own: Tensor, its: Tensor, *, temperature: float = 0.1, part: int = 1024) -> Tensor:
    """How differently two sets of tokens lie to each other: KL between the softmax of their cosines, row by row."""
    own, its = own[:part], its[:part]
    mine = F.normalize((own - own.mean(0)) / (own.std(0) + 1e-4), dim=1)
    others = F.normalize(its, dim=1)
    self_to_self = torch.eye(len(own), dtype=torch.bool, device=own.device)
    mine, others = ((x @ x.T / temperature).masked_fill(self_to_self, -1e4) for x in (mine, others))
    return F.kl_div(mine.log_softmax(1), others.softmax(1), reduction="batchmean")


@torch.no_grad()
def embedded(
    tokens_of: Callable[[Tensor], Tensor], images: Images, *, grid: int, patch: int, flip: bool = False
) -> Tensor:
    """Return the class tokens (N, D) of whole pictures."""
    parts = []
    torch.compiler.set_stance("force_eager")  # one pass over the pictures is over before a compiler is done
    for start in range(0, len(images.pixels), CHUNK):
        pixels = images.pixels[start : start + CHUNK]
        views = whole(pixels, grid * patch)
        parts.append(tokens_of(views.flip(3) if flip else views).float())
    torch.compiler.set_stance("default")
    return torch.cat(parts)


def compile_blocks(vit: ViT) -> None:
    """Compile the encoder's blocks in place: they share one piece of code, so that it takes seconds, not minutes."""
    if torch.cuda.is_available():
        for block in vit.blocks:
            block.compile(dynamic=False)
