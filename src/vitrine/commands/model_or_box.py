"""Old names, until every verb has moved: `commands.options` and `jobs.model_argument` hold them now."""

from vitrine.commands.arguments import BOX as BOX  # noqa: PLC0414
from vitrine.commands.options import Data as Data  # noqa: PLC0414
from vitrine.commands.options import ModelOrBox as ModelOrBox  # noqa: PLC0414
from vitrine.commands.options import Pictures as Pictures  # noqa: PLC0414
