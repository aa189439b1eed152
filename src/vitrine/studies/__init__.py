"""The paper's experiments, one file each: what it claims, the runs, the rule that judges them, the figure."""

from vitrine.errors import ConfigError
from vitrine.spelling import nearest
from vitrine.studies import (
    compute,
    cost,
    data_size,
    few_shot_vs_data,
    head,
    optimizer,
    positions,
    resolution,
    self_supervision,
    shape,
    transfer,
)
from vitrine.studies.record import Run, Setup, Study

# In the paper's order.
STUDIES: dict[str, Study] = {
    module.STUDY.name: module.STUDY
    for module in (
        transfer,
        data_size,
        few_shot_vs_data,
        compute,
        self_supervision,
        optimizer,
        shape,
        head,
        positions,
        cost,
        resolution,
    )
}

__all__ = ["STUDIES", "Run", "Setup", "Study", "find_studies"]


def find_studies(names: str) -> tuple[Study, ...]:
    """Return the studies called by names with commas between, or `all`; a misspelt one is refused."""
    if names == "all":
        return tuple(STUDIES.values())
    found = []
    for name in dict.fromkeys(part.strip() for part in names.split(",")):
        if name not in STUDIES:
            raise ConfigError(
                f"no study is called {name!r}; nearest: {', '.join(nearest(name, STUDIES, 3))} "
                "(see: vitrine study list)"
            )
        found.append(STUDIES[name])
    return tuple(found)
