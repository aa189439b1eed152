"""The licence of weights: what the files beside them say, or under which the layout's models were published."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NOT_CHOSEN = "not-chosen"
"""The licence in our own cards until somebody chooses one."""
MOST_OF_CARD = 2**16
PUBLISHED = {
    "DINOv3": "dinov3-license (https://ai.meta.com/resources/models-and-libraries/dinov3-license/)",
    "Hugging Face DINOv3": "dinov3-license (https://ai.meta.com/resources/models-and-libraries/dinov3-license/)",
    "DINOv2": "apache-2.0",
    "Hugging Face DINOv2": "apache-2.0",
    "Hugging Face CLIP": "mit",
    "OpenCLIP": "mit",
    "EVA": "mit",
    "EVA-CLIP": "mit",
    "BEiT": "apache-2.0 (transformers, timm), mit (the authors)",
    "Hugging Face BEiT": "apache-2.0",
    "Hugging Face SigLIP": "apache-2.0",
    "Hugging Face SigLIP 2 NaFlex": "apache-2.0",
    "timm NaFlex": "apache-2.0",
}
"""Licences of the published weights by the name of their layout."""


BUNDLED = "apache-2.0 (the bundled model)"


def licence_to_carry(stated: str | None, *, layout: str, is_bundled: bool = False) -> str | None:
    """Return the licence that weights trained further started from, in the words of a card; None if unknown."""
    if stated:
        return stated
    if is_bundled:
        return BUNDLED
    return f"{PUBLISHED[layout]}, as published" if layout in PUBLISHED else None


def licence_beside(folder: Path | None, settings: Mapping[str, Any]) -> str | None:
    """Return the licence that config.json (timm's) or the card beside weights states."""
    stated = (settings.get("pretrained_cfg") or {}).get("license") or settings.get("license")
    if isinstance(stated, str) and stated:
        return stated
    card = folder / "README.md" if folder else None
    if card is None or not card.is_file():
        return None
    try:
        with card.open(encoding="utf-8", errors="replace") as file:
            said = front_matter(file.read(MOST_OF_CARD))
    except OSError:
        return None
    name = said.get("license_name") if said.get("license") in (None, "other") else said.get("license")
    if not name or name == NOT_CHOSEN:
        return None
    link = said.get("license_link")
    return f"{name} ({link})" if link else name


def front_matter(text: str) -> dict[str, str]:
    """Read the plain values at the top of a card, between two lines of dashes."""
    header = re.match(r"---\s*\n(.*?)\n---", text, re.DOTALL)
    lines = header[1].splitlines() if header else []
    pairs = (re.fullmatch(r"(license\w*):\s*[\"']?([^\"']+?)[\"']?\s*", line) for line in lines)
    return {pair[1]: pair[2] for pair in pairs if pair}


def licence_note(stated: str | None, *, layout: str) -> str:
    """Return one sentence on the licence that applies to weights of a layout; nothing if none is known."""
    if stated:
        return f"licence of the weights, as stated beside them: {stated}"
    if layout in PUBLISHED:
        return f"no licence beside the weights; the published {layout} weights have: {PUBLISHED[layout]}"
    return ""
