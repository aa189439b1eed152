"""Old names, until every verb has moved: `commands.options` and `jobs.model_argument` hold them now."""

from typing import Any

from vitrine.commands.arguments import BOX as BOX  # noqa: PLC0414
from vitrine.commands.arguments import as_model, as_path, as_texts
from vitrine.commands.options import Data as Data  # noqa: PLC0414
from vitrine.commands.options import ModelOrBox as ModelOrBox  # noqa: PLC0414
from vitrine.commands.options import Pictures as Pictures  # noqa: PLC0414


def model_and_data(verb: str, model: Any, data: Any) -> tuple[str, str]:
    """Pass on."""
    from vitrine.jobs import model_argument

    model, data = None if model is None else as_model(model), None if data is None else str(data)
    return model_argument.model_and_data(verb, model, data)


def model_and_pictures(words: Any) -> tuple[str, list[str]]:
    """Pass on."""
    from vitrine.jobs import model_argument

    return model_argument.model_and_pictures(as_texts(words))


def opened_pictures(verb: str, model: Any, pictures: Any, *, out: Any) -> Any:
    """Pass on."""
    from vitrine.jobs import model_argument

    model = None if model is None else as_model(model)
    return model_argument.opened_pictures(verb, model, as_texts(pictures), out=as_path(out))


def plan_line(predictor: Any, source: Any, model: str) -> str:
    """Describe what a verb is about to do with pictures."""
    size = "x".join(map(str, predictor.preprocess.size))
    return (
        f"Plan: {model} at {size} px on {predictor.device}, {len(source):,} picture{'s' * (len(source) != 1)}"
    )
