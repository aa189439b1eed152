"""What `vitrine study` says of studies: before they start, and when they are done."""

from dataclasses import dataclass
from pathlib import Path

from vitrine.spelling import duration


@dataclass(frozen=True, kw_only=True)
class StudyLine:
    """What is known of a study before or after it."""

    name: str
    where: str
    claim: str
    runs: int
    finished: int
    exaflops: float
    estimated_seconds: float
    verdict: str = ""
    findings: tuple[str, ...] = ()
    page: Path | None = None


@dataclass(frozen=True, kw_only=True)
class StudyResult:
    """Every study that was asked for."""

    scale: str
    lines: tuple[StudyLine, ...]
    failed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    document: Path | None = None

    @property
    def exit_code(self) -> int:
        """1 where a run failed."""
        return int(bool(self.failed))

    def __str__(self) -> str:
        shown: list[str] = [*self.notes]
        for line in self.lines:
            if not line.verdict:
                shown += [
                    f"{line.name} ({line.where})",
                    f"  {line.claim}",
                    f"  scale {self.scale}: {line.runs} runs, {line.exaflops:.3g} exaFLOPs, about "
                    f"{duration(line.estimated_seconds)}",
                ]
                continue
            shown.append(f"{line.name}: {line.verdict} ({line.finished} of {line.runs} runs)")
            shown += [f"  {finding}" for finding in line.findings]
        shown += [f"Failed: {reason}" for reason in self.failed]
        pages = [str(line.page) for line in self.lines if line.page]
        if self.document:
            shown.append(f"Wrote {self.document}")
        elif pages:
            shown.append(f"Wrote {', '.join(pages)} and results.jsonl beside")
            is_finished = all(line.finished == line.runs for line in self.lines)
            shown.append(
                "Next: the same command with one more of --seeds adds only that one"
                if is_finished
                else "Next: the same command goes on where it stopped"
            )
        else:
            shown.append("Next: vitrine study NAME DATA --scale small")
        return "\n".join(shown)
