"""Models of masks and boxes for export: the outputs of a file, and the reference that they are compared with.

Shapes: B images, K classes, N boxes or Q queries per image.
"""

from torch import Tensor, nn

from vitrine.errors import ConfigError, TryOption
from vitrine.exporting.inference_model import InferenceModel
from vitrine.models import Model
from vitrine.models.dense.model import DenseModel

# Targets whose files can hold any outputs; others are layouts or programs for classifiers.
DENSE_KINDS = ("onnx", "torch-export")
# Names of a file's outputs by the kind of answers.
OUTPUTS: dict[str, tuple[str, ...]] = {
    "masks": ("scores",),
    "boxes": ("boxes", "scores"),
    "instances": ("masks", "scores"),
}


class DenseInferenceModel(nn.Module):
    """Map normalised pixels (B, C, height, width) of one window or one padded picture to the model's raw output.

    Masks are `scores` (B, K, rows, columns); boxes are `boxes` (B, N, 4) in pixels, left, top, right, bottom, and
    `scores` (B, N, K), their probabilities; masks of objects are `masks` (B, Q, rows, columns), logits, and `scores`.
    """

    def __init__(self, model: DenseModel) -> None:
        super().__init__()
        self.model = model
        self.eval().requires_grad_(False)

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the outputs of `forward`, in order."""
        return OUTPUTS[self.model.config.answers]

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """Return scores of pixels, or boxes or masks and their scores."""
        answers: Tensor | tuple[Tensor, Tensor] = self.model(pixels)
        if isinstance(answers, tuple):
            return answers
        return (answers[..., :4], answers[..., 4:]) if len(self.output_names) > 1 else (answers,)


def exported_form(model: Model) -> InferenceModel | DenseInferenceModel:
    """Return the form of a model that is written to a file."""
    return DenseInferenceModel(model) if isinstance(model, DenseModel) else InferenceModel(model)


def require_dense_target(model: Model, *, to: str, data: str | None) -> None:
    """Refuse targets and measures for masks and boxes that only work for classifiers."""
    if not isinstance(model, DenseModel):
        return
    answers = model.config.answers
    if to not in DENSE_KINDS:
        raise ConfigError(
            f"{to} holds classifiers and features; a model of {answers} can be exported to "
            f"{' or '.join(DENSE_KINDS)}",
            option="to",
            advice=[TryOption("to", "to write a graph for onnxruntime", "onnx")],
        )
    if data is not None:
        raise ConfigError(
            f"measures top-1 accuracy, which a model of {answers} does not have; the proof compares all outputs",
            option="data",
        )
