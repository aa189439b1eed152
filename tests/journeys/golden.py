"""Golden transcripts: every word of a typical call, kept in `transcripts/` as one file per verb."""

import os
import re
from pathlib import Path

FOLDER = Path(__file__).with_name("transcripts")
PROGRESS = re.compile(r"^[A-Z][\w ]*: [\d,]+(/[\d,]+)?, ")
# Advice that depends on the processor, its speed or, after two steps, on the last bits of its sums.
OF_THIS_MACHINE = ("This CPU supports", "Faster than", "Training accuracy")


def assert_transcript(words: tuple[str, ...], text: str, work: Path) -> None:
    """Compare what a call printed with the transcript of its verb; `VITRINE_WRITE_TRANSCRIPTS=1` writes it anew."""
    text = f"$ vitrine {' '.join(words)}\n" + normalised(text, work)
    file = FOLDER / f"{words[0]}.txt"
    if os.environ.get("VITRINE_WRITE_TRANSCRIPTS"):
        file.write_text(text)
    assert text == file.read_text()


def normalised(text: str, work: Path) -> str:
    """Replace what differs between two calls: numbers, durations, bars, the width of columns, the folder."""
    lines = text.replace(f"{work}/", "").replace(str(work), ".").splitlines()
    kept = [line for line in lines if not PROGRESS.match(line) and not line.startswith(OF_THIS_MACHINE)]
    text = "\n".join(kept).replace("█", "")
    text = re.sub(r"\d+(,\d{3})*(\.\d+)*(e[-+]?\d+)?", "0", text.replace("+cpu", ""))
    text = re.sub(r"\b[bf][fp]0\b", "fp0", text)  # `auto` is bf16 where the processor has it
    text = re.sub(r"\b0 (s|min|h|days|years|hours)\b", "0 s", text)
    text = re.sub(r"0 (class(?=es)|\w+(?=s\b))e?s\b", r"0 \1", text)  # one image or several
    return re.sub(r"(?<=\S) +", " ", text).replace(" \n", "\n").strip() + "\n"
