"""What torch's tracers make of the models; docs/guides/exporting.md says the same."""

import warnings

import pytest
import torch
from unit.models.small import small_model

KINDS = ("class token", "average pooling", "relative positions", "distillation token", "hybrid", "BiT")


@pytest.mark.parametrize("kind", KINDS)
def test_a_traced_model_computes_the_same_for_another_batch_size(kind: str) -> None:
    model = small_model(kind).eval()
    config = model.config
    if model.head is not None:
        torch.nn.init.normal_(model.head.weight)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter(
            "ignore"
        )  # of shapes that the trace takes for constants; torch deprecates it, too
        traced = torch.jit.trace(model, torch.zeros(2, config.channels, *config.image_size))
        images = torch.randn(3, config.channels, *config.image_size)
        torch.testing.assert_close(traced(images), model(images), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["class token", "BiT for small pictures"])
def test_an_exported_model_is_an_fx_graph(kind: str) -> None:
    model = small_model(kind).eval()
    images = torch.randn(2, model.config.channels, *model.config.image_size)
    graph = torch.export.export(model, (images,)).module()
    assert isinstance(graph, torch.fx.GraphModule)
    torch.testing.assert_close(graph(images), model(images))


def test_script_and_symbolic_trace_refuse_as_the_guide_says() -> None:
    model = small_model("class token").eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Whichever it meets first: keyword-only arguments, or a dataclass's __init__, which has no source.
        with pytest.raises((torch.jit.frontend.NotSupportedError, OSError), match=r"keyword-only|get source"):
            torch.jit.script(model)
    with pytest.raises((torch.fx.proxy.TraceError, RuntimeError), match=r"symbolic|control flow"):
        torch.fx.symbolic_trace(model)
