"""Results are short in a terminal and a table in a notebook."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from vitrine.runtime.result import Result


@dataclass(frozen=True)
class Line:
    text: str


@dataclass(frozen=True, kw_only=True, repr=False)
class Outcome(Result):
    model: str
    accuracy: float
    wrote: tuple[Path, ...] = ()
    lines: tuple[Line, ...] = ()
    notes: dict[str, str] = field(default_factory=dict)
    missing: str | None = None
    weights: object = None


OUTCOME = Outcome(
    model="a <b>" + "x" * 500,
    accuracy=0.123456789,
    wrote=(Path("a.csv"),),
    lines=tuple(Line("long " * 50) for _ in range(400)),
    notes={"a": "b"},
    weights=np.zeros((3, 4), dtype=np.float32),
)


def test_a_repr_is_short_and_leaves_out_what_has_no_value() -> None:
    text = repr(OUTCOME)
    assert len(text) < 250
    fields = ("accuracy=0.123457", "wrote=('a.csv')", "lines=<400 Line>", "notes={'a': 'b'}")
    assert ", ".join(fields) in text
    assert "missing" not in text and "weights=<3x4 float32>" in text


def test_in_a_notebook_a_result_is_a_table_without_markup_of_others() -> None:
    page = OUTCOME._repr_html_()
    assert page.startswith("<table>") and "&lt;400 Line&gt;" in page and "a &lt;b&gt;" in page
    assert "<b>" not in page
