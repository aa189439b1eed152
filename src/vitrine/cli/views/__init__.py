"""How each verb's result, and each plan, is shown to a person. All words of the command line's results live here.

A verb's view is the module `vitrine.cli.views.<verb>` with one function:

    def lines(result: PredictResult) -> Iterator[Line]:
        yield f"{counted(result.num_pictures, 'picture')}"          # a sentence; wraps on a narrow terminal
        yield Wrote(result.out, "one row per picture")              # a path that can be copied
        yield Table(rows, header=("class", "images"), right=(1,))   # columns, laid out by rich
        yield Next("inspect", (result.model, result.first))         # a command that can be copied
        yield Next("predict", (result.model, "PICTURES"))           # a second one in a row reads "or: ..."
        yield NextStep(f"open {glued(result.page)} in a browser")   # a next step that is no command

The types of lines are in `vitrine.cli.lines`. Inside a sentence, `option("out", "x.csv")`, `command("check", data)`
and `glued(path)` of `vitrine.cli.command_line` write what must not be broken. No view quotes, escapes or measures:
shell quoting, escape sequences in names, wide characters and the way in which vitrine was called are handled where
lines are printed. A view reads fields; it computes nothing that another reader of the record would want.

Records sent with `vitrine.runtime.progress.present` before the work begins (a plan) are shown in the same way:
register the class in `PRESENTED` with the function that makes its lines. Errors and notices need no view: they
carry a sentence, `option` and `advice`.

`--json` prints the fields of the same record, without any view (`vitrine.cli.running`).
"""

import importlib
from collections.abc import Iterable
from typing import Any

from vitrine.cli.lines import Line

# Verbs whose result is another verb's.
SHARED = {"pretrain": "finetune", "resume": "finetune"}
# Class of a record, by its full name -> the function that makes its lines.
PRESENTED: dict[str, str] = {
    "vitrine.evaluation.vtab.protocol.VtabPlan": "vtab:plan_lines",
    "vitrine.jobs.export.ExportPlan": "export:plan_lines",
    "vitrine.jobs.inspect.InspectPlan": "inspect:plan_lines",
    "vitrine.jobs.check.CheckPlan": "check:plan_lines",
    "vitrine.jobs.fewshot.FewShotPlan": "fewshot:plan_lines",
    "vitrine.jobs.evaluation_outputs.EvaluatePlan": "evaluate:plan_lines",
    "vitrine.jobs.model_argument.PicturesPlan": "predict:plan_lines",
    "vitrine.jobs.serve.ServePlan": "serve:plan_lines",
    "vitrine.jobs.demo.DemoStep": "demo:step_lines",
    "vitrine.runs.records.ClosedFormScore": "finetune:closed_form_lines",
    "vitrine.runs.plan.RunPlan": "training_plan:plan_lines",
    "vitrine.studies.execution.StudyPlan": "study:plan_lines",
}


def result_lines(verb: str, result: Any) -> Iterable[Line]:
    """Return what the verb's view makes of its result."""
    name = SHARED.get(verb, verb).replace("-", "_")
    lines: Iterable[Line] = importlib.import_module(f"{__name__}.{name}").lines(result)
    return lines


def record_lines(record: object) -> Iterable[Line]:
    """Return what the view of a record's class makes of it."""
    kind = type(record)
    module, function = PRESENTED[f"{kind.__module__}.{kind.__qualname__}"].split(":")
    lines: Iterable[Line] = getattr(importlib.import_module(f"{__name__}.{module}"), function)(record)
    return lines
