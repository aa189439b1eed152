"""TNT's logits equal timm's with the same random weights."""

from typing import Any

import pytest
import torch
from oracles import import_timm

from vitrine.checkpoints.layouts.tnt import TNTLayout
from vitrine.models.tnt import TNT
from vitrine.models.tnt_config import TNTConfig

SMALL = {
    "image_size": (48, 48),
    "width": 48,
    "depth": 2,
    "num_heads": 3,
    "mlp_width": 192,
    "inner_width": 12,
    "inner_num_heads": 2,
    "inner_mlp_width": 48,
    "num_classes": 7,
}
# float32 rounds at 1e-7; a wrong epsilon moves these logits by 5e-5.
TOLERANCE = 5e-6


@pytest.mark.parametrize("options", [{}, {"pooling": "average"}, {"qkv_bias": True}])
def test_tnt_gives_timms_logits(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    ours = TNT(TNTConfig(**SMALL, **options)).eval()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    theirs = import_timm().models.tnt.TNT(
        img_size=48,
        embed_dim=48,
        inner_dim=12,
        depth=2,
        num_heads_inner=2,
        num_heads_outer=3,
        num_classes=7,
        qkv_bias=ours.config.qkv_bias,
        global_pool="avg" if ours.config.pooling == "average" else "token",
    )
    state = ours.state_dict()
    rules = TNTLayout(origin="timm").rules(ours.config)
    theirs.load_state_dict({rule.theirs: rule.view.apply(state[rule.ours[0]]) for rule in rules})
    images = torch.randn(3, 3, 48, 48)
    assert (theirs.eval()(images) - ours(images)).abs().max() < TOLERANCE
