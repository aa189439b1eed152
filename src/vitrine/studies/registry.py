"""All studies by name. A new one is a file with a `Study` and one call of `register_study`."""

from vitrine.errors import ConfigError, TryVerb
from vitrine.spelling import nearest
from vitrine.studies.experiments import (
    attention_distance,
    compute,
    cost,
    data_size,
    descendants,
    few_shot_vs_data,
    head,
    optimizer,
    position_patterns,
    positions,
    resolution,
    self_supervision,
    shape,
    transfer,
)
from vitrine.studies.record import Study

ALL = "all"
STUDIES: dict[str, Study] = {}


def register_study(study: Study) -> Study:
    """Make a study available by its name, in `vitrine.study` and in lists; a name in use is refused."""
    if study.name in STUDIES or study.name in (ALL, "list", "page"):
        raise ConfigError(f"the name {study.name!r} is in use; choose another name for the study")
    if "," in study.name or not study.name.strip():
        raise ConfigError(f"a study's name is a word without commas, got {study.name!r}")
    STUDIES[study.name] = study
    return study


def find_studies(names: str) -> tuple[Study, ...]:
    """Return the studies named in a comma-separated list, or `all`; a misspelt name is refused."""
    if names == ALL:
        return tuple(STUDIES.values())
    chosen = []
    for name in dict.fromkeys(part.strip() for part in names.split(",")):
        if name not in STUDIES:
            close = nearest(name, STUDIES, 3)
            raise ConfigError(
                f"no study is called {name!r}; nearest: {', '.join(close)}",
                suggestions=close,
                option="name",
                advice=[TryVerb("study", ("list",), "to see all of them")],
            )
        chosen.append(STUDIES[name])
    return tuple(chosen)


# In the paper's order, then the papers that followed.
for _module in (
    transfer,
    data_size,
    few_shot_vs_data,
    compute,
    self_supervision,
    optimizer,
    shape,
    head,
    positions,
    position_patterns,
    attention_distance,
    cost,
    resolution,
    descendants,
):
    register_study(_module.STUDY)
