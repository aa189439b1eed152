"""Text towers from the files of transformers, and zero-shot classifiers made with them.

A zero-shot classifier is the image tower with a head whose rows are texts: its input and its rows have unit length,
and the rows are multiplied by the model's own scale. It is a ViT like any other: it predicts, serves, exports and is
saved.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from vitrine.checkpoints import hub
from vitrine.checkpoints.layouts.clip import ACTIVATIONS
from vitrine.checkpoints.loading import Loaded, load
from vitrine.checkpoints.locating import HUB_SCHEME, find
from vitrine.checkpoints.reading import open_tensors
from vitrine.checkpoints.sidecars import read_json
from vitrine.checkpoints.tensors import TensorFile
from vitrine.errors import CheckpointError, ConfigError, MissingExtraError
from vitrine.models import ViT, ViTConfig, build
from vitrine.models.text_tower import TextConfig, TextTower

TOKENIZER, TOKENIZER_SETTINGS = "tokenizer.json", "tokenizer_config.json"
# SigLIP pads texts with the end token of its own vocabulary, SigLIP 2 with the padding token 0 of Gemma's.
SIGLIP_VOCABULARY, SIGLIP_PADDING = 32_000, 1
PROMPTS = ("a photo of {}.",)
"""The sentence that a class name is put into, where the class is not a sentence itself."""
MOST_CLASSES = 10_000
AT_ONCE = 64
LAYERS = {
    "norm_1": "layer_norm1", "norm_2": "layer_norm2", "attention.to_out": "self_attn.out_proj",
    "mlp.expand": "mlp.fc1", "mlp.contract": "mlp.fc2",
}  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Texts:
    """A text tower with its tokenizer, and how its vectors are compared with those of images."""

    tower: TextTower
    tokenizer: Any
    scale: float
    bias: float

    @torch.inference_mode()
    def embed(self, texts: Sequence[str]) -> Tensor:
        """Return a vector of unit length per text, (B, E)."""
        parts = [
            self.tower(numbers_of(self.tokenizer, texts[first : first + AT_ONCE], self.tower.config))
            for first in range(0, len(texts), AT_ONCE)
        ]
        return normalize(torch.cat(parts), dim=-1)


def zero_shot(
    model: str | Path,
    classes: Sequence[str],
    *,
    prompts: Sequence[str] = PROMPTS,
    revision: str | None = None,
) -> Loaded:
    """Return a classifier for classes that are described in words, from a model with a text tower (CLIP, SigLIP).

    Every class is put into every prompt at its `{}`; the vectors of its sentences are averaged.
    """
    names = [name.strip() for name in classes]
    if len(names) < 2 or not all(names) or len(set(names)) < len(names) or len(names) > MOST_CLASSES:
        raise ConfigError(
            f"must be at least two different classes in words, got {names!r:.80}", option="classes"
        )
    if not prompts or not all("{}" in prompt for prompt in prompts):
        raise ConfigError(
            f"must contain {{}} where the class goes, got {list(prompts)!r:.80}", option="prompts"
        )
    loaded = load(model, revision=revision)
    texts = load_texts(model, revision=revision)
    rows = torch.stack(
        [
            normalize(texts.embed([prompt.format(name) for prompt in prompts]).mean(dim=0), dim=0)
            for name in names
        ]
    )
    config = loaded.model.config
    if not isinstance(config, ViTConfig):
        raise CheckpointError(f"{model} is not a ViT with a text tower")
    classifier = build(dataclasses.replace(config, num_classes=len(names), unit_length=True))
    assert isinstance(classifier, ViT) and classifier.head is not None
    classifier.load_state_dict(loaded.model.state_dict(), strict=False)
    with torch.no_grad():
        classifier.head.weight.copy_(texts.scale * rows)
        classifier.head.bias.fill_(texts.bias)
    record = dataclasses.replace(loaded.record, config=classifier.config, classes=tuple(names))
    return dataclasses.replace(
        loaded, model=classifier.eval(), classes=tuple(names), record=record, folder=None
    )


def load_texts(model: str | Path, *, revision: str | None = None) -> Texts:
    """Load the text tower and the tokenizer of a CLIP or SigLIP in the layout of transformers."""
    place = find(model, revision=revision)
    if isinstance(place, str):
        raise CheckpointError(f"{model} has fresh weights and no text tower; give a CLIP or SigLIP model")
    file, folder = open_tensors(place.weights), place.folder
    if "text_model.final_layer_norm.weight" not in file.index:
        raise CheckpointError(
            f"{model} has no text tower in the layout of transformers; give a whole CLIP or SigLIP model"
        )
    if folder is not None and not (folder / TOKENIZER).exists() and not Path(model).exists():
        hub.fetch(str(model).removeprefix(HUB_SCHEME), revision=revision, also=(TOKENIZER,))
    if folder is None or not (folder / TOKENIZER).exists():
        raise CheckpointError(
            f"{model} has no {TOKENIZER} beside its weights; save it with "
            "AutoTokenizer.from_pretrained(...).save_pretrained(...) of transformers"
        )
    tokenizer = open_tokenizer(folder / TOKENIZER)
    config = text_config(file, read_json(folder / "config.json"), padding=padding_of(tokenizer, folder))
    bias = float(file.read("logit_bias").float()) if "logit_bias" in file.index else 0.0
    return Texts(
        tower=filled(TextTower(config), file),
        tokenizer=tokenizer,
        scale=float(file.read("logit_scale").float().exp()),
        bias=bias,
    )


def padding_of(tokenizer: Any, folder: Path) -> int | None:
    """Return the number of the token that processors pad texts with, if tokenizer_config.json names it."""
    named = read_json(folder / TOKENIZER_SETTINGS).get("pad_token")
    name = named.get("content") if isinstance(named, dict) else named
    number: int | None = None if name is None else tokenizer.token_to_id(name)
    return number


def text_config(file: TensorFile, settings: dict[str, Any], *, padding: int | None) -> TextConfig:
    """Read the config of a text tower from shapes and config.json; `padding` as the tokenizer states it."""
    said = settings.get("text_config") or {}
    is_clip = "text_projection.weight" in file.index
    vocabulary, width = file.index["text_model.embeddings.token_embedding.weight"].shape
    depth = sum(
        name.endswith(".layer_norm1.weight") and name.startswith("text_model.") for name in file.index
    )
    projection = "text_projection.weight" if is_clip else "text_model.head.weight"
    activation = said.get("hidden_act", "quick_gelu" if is_clip else "gelu_pytorch_tanh")
    end = said.get("eos_token_id", vocabulary - 1)
    if padding is None:
        padding = said.get("pad_token_id", SIGLIP_PADDING if vocabulary == SIGLIP_VOCABULARY else 0)
    return TextConfig(
        vocabulary=vocabulary,
        context=file.index["text_model.embeddings.position_embedding.weight"].shape[0],
        width=width,
        depth=depth,
        # transformers leaves out what equals its own default.
        num_heads=said.get("num_attention_heads", 8 if is_clip else 12),
        mlp_width=file.index["text_model.encoder.layers.0.mlp.fc1.weight"].shape[0],
        embedding=file.index[projection].shape[0],
        norm_eps=said.get("layer_norm_eps", 1e-5 if is_clip else 1e-6),
        is_causal=is_clip,
        reads="end" if is_clip else "last",
        # Old CLIP files record 2, but the end token is the one with the largest number.
        end_token=vocabulary - 1 if end == 2 else end,
        padding=(vocabulary - 1 if end == 2 else end) if is_clip else padding,
        lowercases=not is_clip,
        has_projection_bias=not is_clip,
        **ACTIVATIONS[activation],
    )


@torch.no_grad()
def filled(tower: TextTower, file: TensorFile) -> TextTower:
    """Fill a text tower from a file, in fp32."""

    def read(name: str) -> Tensor:
        return file.read(name).float()

    inner = "text_model."
    state = {
        "tokens.weight": read(f"{inner}embeddings.token_embedding.weight"),
        "positions": read(f"{inner}embeddings.position_embedding.weight"),
    }
    head = f"{inner}head" if tower.config.has_projection_bias else "text_projection"
    for kind in ("weight", "bias"):
        state[f"norm.{kind}"] = read(f"{inner}final_layer_norm.{kind}")
        if kind == "weight" or tower.config.has_projection_bias:
            state[f"projection.{kind}"] = read(f"{head}.{kind}")
        for i in range(tower.config.depth):
            theirs = f"{inner}encoder.layers.{i}."
            parts = [read(f"{theirs}self_attn.{which}_proj.{kind}") for which in "qkv"]
            state[f"blocks.{i}.attention.to_qkv.{kind}"] = torch.cat(parts)
            for ours, name in LAYERS.items():
                state[f"blocks.{i}.{ours}.{kind}"] = read(f"{theirs}{name}.{kind}")
    tower.load_state_dict(state)
    return tower.eval()


def open_tokenizer(file: Path) -> Any:
    """Open a tokenizer.json."""
    try:
        import tokenizers  # noqa: PLC0415 (an extra)
    except ImportError:
        raise MissingExtraError("tokenizers", extra="text", purpose="classes in words") from None
    return tokenizers.Tokenizer.from_file(str(file))


def numbers_of(tokenizer: Any, texts: Sequence[str], config: TextConfig) -> Tensor:
    """Return the token numbers of texts, each cut or padded to the context: (B, T)."""
    tokenizer.no_padding()
    tokenizer.enable_truncation(config.context)
    cased = [text.lower() if config.lowercases else text for text in texts]
    rows = [encoded.ids for encoded in tokenizer.encode_batch(cased)]
    return torch.tensor([row + [config.padding] * (config.context - len(row)) for row in rows])
