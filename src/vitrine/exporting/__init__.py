"""A trained model to other formats, each with proof that it computes the same."""

from vitrine.exporting.deployed import Deployed
from vitrine.exporting.runner import OnnxRunner, open_runner

__all__ = ["Deployed", "OnnxRunner", "open_runner"]
