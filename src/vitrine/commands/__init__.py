"""One function a verb: the only place that wires rooms together.

`vitrine finetune` and `vitrine.finetune()` are the same function: the command line is derived from its
signature. So a verb's module must import in milliseconds: rooms are imported inside the functions.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Verb:
    """Where a verb's function lives and what its name is for library users."""

    name: str
    function: str

    @property
    def module(self) -> str:
        """The module that holds the function, by its full name."""
        return f"vitrine.commands.{self.name.replace('-', '_')}"


# In the order in which a newcomer meets them.
VERBS = (
    Verb("demo", "demo"),
    Verb("check", "check"),
    Verb("finetune", "finetune"),
    Verb("pretrain", "pretrain"),
    Verb("resume", "resume"),
    Verb("report", "report"),
    Verb("evaluate", "evaluate"),
    Verb("predict", "predict"),
    Verb("embed", "embed"),
    Verb("fewshot", "fewshot"),
    Verb("vtab", "vtab"),
    Verb("inspect", "inspect"),
    Verb("export", "export"),
    Verb("serve", "serve"),
    Verb("bench", "bench"),
    Verb("study", "study"),
    Verb("models", "list_models"),  # `vitrine.models` is the room
    Verb("recipes", "list_recipes"),  # so is `vitrine.recipes`
    Verb("plan", "plan"),
    Verb("convert", "convert"),
    Verb("dedup", "dedup"),
    Verb("shard", "shard"),
)
