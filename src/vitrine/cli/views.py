"""How each verb's result is shown to a person. A verb without a view of its own shows `str(result)`."""

import importlib
import importlib.util
import sys
from typing import Any

from vitrine.cli.fitting import fitted
from vitrine.cli.typed import as_typed


def show(verb: str, result: Any) -> None:
    """Print `result` as the verb's own module `view_<verb>` says, or plainly where there is none."""
    name = f"vitrine.cli.view_{verb.replace('-', '_')}"
    if importlib.util.find_spec(name):
        importlib.import_module(name).show(result)
    elif result is not None:
        print(fitted(as_typed(str(result)), sys.stdout))
