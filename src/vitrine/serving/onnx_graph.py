"""An exported ONNX graph in the model's place: input `pixels` (B, C, height, width), normalised; outputs by name."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrine.errors import CheckpointError, MissingExtraError
from vitrine.serving.predictor import Wanted

INPUT = "pixels"
OUTPUTS: dict[Wanted, str] = {"logits": "logits", "features": "embedding"}


class OnnxGraph:
    """One onnxruntime session on the CPU; it may be run from several threads at once."""

    def __init__(self, path: Path, *, threads: int) -> None:
        try:
            import onnxruntime
        except ImportError:
            raise MissingExtraError("onnxruntime", extra="export", purpose="--onnx") from None
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # A thread that spins between two batches takes its core from those that decode.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._session: Any = onnxruntime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime's exceptions share no base of their own
            raise CheckpointError(
                f"{path} cannot be opened by onnxruntime: {str(error).splitlines()[0]}"
            ) from None
        inputs = [value.name for value in self._session.get_inputs()]
        self.outputs = {value.name for value in self._session.get_outputs()}
        if inputs != [INPUT] or OUTPUTS["logits"] not in self.outputs:
            raise CheckpointError(
                f"{path} has the inputs {inputs} and outputs {sorted(self.outputs)}; {INPUT} and "
                f"{OUTPUTS['logits']} are needed, as vitrine export --to onnx writes them"
            )

    def has(self, wanted: Wanted) -> bool:
        """Whether the graph gives logits, or features."""
        return OUTPUTS[wanted] in self.outputs

    def __call__(self, images: Tensor, *, wanted: Wanted) -> Tensor:
        """Map normalised images (B, C, height, width) to logits (B, K) or features (B, R)."""
        [values] = self._session.run([OUTPUTS[wanted]], {INPUT: images.numpy()})
        return torch.from_numpy(values)
