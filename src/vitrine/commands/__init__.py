"""One function per verb: its signature, cheap checks, and one call of its work in `vitrine.jobs`.

`vitrine finetune` and `vitrine.finetune()` are the same function: the command line is derived from its
signature. A verb's module imports in milliseconds: its work is imported inside the function, when it is called.
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

# What people type for another verb; not listed in the help.
OTHER_NAMES = {"train": "finetune"}
