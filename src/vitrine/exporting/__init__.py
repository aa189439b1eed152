"""A trained model to other formats, each with proof that it computes the same."""

from vitrine.exporting.inference_model import InferenceModel
from vitrine.exporting.runner import OnnxRunner, open_runner

__all__ = ["InferenceModel", "OnnxRunner", "open_runner"]
