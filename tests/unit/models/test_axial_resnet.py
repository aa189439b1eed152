"""AxialResNet (appendix D.6): attention along columns, then rows, in place of a ResNet's 3x3 convolutions."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from vitrine.errors import ConfigError
from vitrine.models import AxialResNet, build, configure, create_model
from vitrine.models.axial_resnet import AxialUnit
from vitrine.models.axial_resnet_config import AxialResNetConfig
from vitrine.models.choices import MapNorm
from vitrine.models.cost import cost_of
from vitrine.models.line_attention import LineAttention
from vitrine.models.line_positions import stretched
from vitrine.models.resnet_stem import BottleneckUnit
from vitrine.models.stem_configs import ResNetStemConfig

# Axial-DeepLab's published code builds networks with these many parameters at 224 px and 1000 classes.
PUBLISHED = {
    "Axial-ResNet-26-S": 5_944_936,
    "Axial-ResNet-S": 11_586_216,
    "Axial-ResNet-M": 25_179_400,
    "Axial-ResNet-L": 43_973_480,
}
SMALL = {"image_size": 64, "num_classes": 3, "units": (1, 2, 1), "width": 32}
NORMS: tuple[MapNorm, ...] = ("group_norm", "batch_norm")


def stirred(module: nn.Module) -> nn.Module:
    """Fill a module in float64, so that neither a zero nor rounding hides an error; use running statistics."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, values in (*module.named_parameters(), *module.named_buffers()):
            if values.is_floating_point():
                drawn = torch.randn(values.shape, generator=generator, dtype=torch.float64)
                values.data = drawn.abs() + 0.5 if name.endswith("running_var") else 0.5 * drawn
    return module.eval()


def attention(norm: MapNorm, *, is_column: bool, length: int = 3) -> LineAttention:
    module = LineAttention(32, num_heads=4, length=length, is_column=is_column, norm=norm, norm_eps=1e-4)
    stirred(module)
    return module


def written_out(module: LineAttention, line: Tensor) -> Tensor:
    """Compute equation 4 of Axial-DeepLab cell by cell for one line (L, C)."""
    L, C = line.shape
    H = module.num_heads
    K = C // H
    qkv = module.norm_qkv((line @ module.to_qkv.weight.T).T[None])[0].T.reshape(L, H, 2 * K)
    table = module.positions.table

    def r(offset: int) -> Tensor:
        return table[offset + L - 1]

    terms, mixed = torch.zeros(3 * H, L, L, dtype=line.dtype), torch.zeros(2, L, C, dtype=line.dtype)
    for h in range(H):
        q, k = qkv[:, h, : K // 2], qkv[:, h, K // 2 : K]
        for o in range(L):
            for p in range(L):
                terms[h, o, p] = q[o] @ k[p]
                terms[H + h, o, p] = q[o] @ r(o - p)[: K // 2]
                terms[2 * H + h, o, p] = k[p] @ r(p - o)[K // 2 : K]
    if module.norm_logits is not None:
        terms = module.norm_logits(terms[None])[0]
    for h in range(H):
        weights = (terms[h] + terms[H + h] + terms[2 * H + h]).softmax(dim=-1)
        for o in range(L):
            for p in range(L):
                mixed[0, o, h * K : (h + 1) * K] += weights[o, p] * qkv[p, h, K:]
                mixed[1, o, h * K : (h + 1) * K] += weights[o, p] * r(o - p)[K:]
    if module.norm_logits is None:
        return module.norm_out((mixed[0] + mixed[1]).T[None])[0].T
    both = module.norm_out(
        mixed.permute(2, 0, 1).reshape(1, 2 * C, L)
    )  # each channel's two terms side by side
    return both.view(C, 2, L).sum(dim=1).T


@pytest.mark.parametrize("norm", NORMS)
def test_attention_along_rows_and_columns_equals_the_written_out_formula(norm: MapNorm) -> None:
    maps = torch.randn(2, 32, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    columns, rows = attention(norm, is_column=True), attention(norm, is_column=False, length=5)
    along_columns, along_rows = columns(maps), rows(maps)
    for image in range(2):
        for column in range(5):
            expected = written_out(columns, maps[image, :, :, column].T).T
            torch.testing.assert_close(along_columns[image, :, :, column], expected, rtol=0, atol=1e-9)
        for row in range(3):
            expected = written_out(rows, maps[image, :, row].T).T
            torch.testing.assert_close(along_rows[image, :, row], expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("is_column", [True, False])
def test_a_cell_changes_its_own_line_and_no_other(norm: MapNorm, is_column: bool) -> None:
    module = attention(norm, is_column=is_column)
    maps = torch.randn(1, 32, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    other = maps.clone()
    other[0, :, 1, 2] += 1
    changed = (module(maps) != module(other)).any(dim=1)[0]
    expected = torch.zeros(3, 3, dtype=torch.bool)
    expected[(slice(None), 2) if is_column else (1, slice(None))] = True
    assert torch.equal(changed, expected)


@pytest.mark.parametrize("norm", NORMS)
def test_lines_attended_to_a_few_at_a_time_give_the_same_map(
    norm: MapNorm, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = attention(norm, is_column=True)
    maps = torch.randn(3, 32, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    whole = module(maps)
    monkeypatch.setattr("vitrine.models.line_attention.MOST_WEIGHTS_ON_CPU", 4 * 3 * 3 * 4)  # 4 of 15 lines
    with torch.inference_mode():
        torch.testing.assert_close(module(maps), whole, rtol=0, atol=1e-12)


def test_columns_are_the_rows_of_the_transposed_map() -> None:
    columns, rows = attention("group_norm", is_column=True), attention("group_norm", is_column=False)
    maps = torch.randn(1, 32, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    assert torch.equal(columns(maps), rows(maps.transpose(2, 3)).transpose(2, 3))
    turned = columns.weights(maps).view(1, 4, 3, 3, 3).transpose(2, 3).flatten(2, 3)
    assert torch.equal(turned, rows.weights(maps.transpose(2, 3)))


def test_without_positions_attention_is_blind_to_the_order_of_cells_and_with_them_it_is_not() -> None:
    module = attention("group_norm", is_column=False)
    maps = torch.randn(1, 32, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(5))

    def difference() -> float:
        return (module(maps.flip(3)).flip(3) - module(maps)).abs().max().item()

    assert difference() > 1e-3
    nn.init.zeros_(module.positions.table)
    assert difference() < 1e-12


@pytest.mark.parametrize("stride", [1, 2])
def test_a_unit_without_attention_is_the_bottleneck_of_a_hybrid_without_its_3x3_convolution(
    stride: int,
) -> None:
    stage, unit = (1, 0) if stride > 1 else (0, 1)
    config = AxialResNetConfig(image_size=(64, 96), units=(2, 1), width=32, norm_eps=1e-6)
    ours = AxialUnit(config, stage, unit)
    ours.column_attention, ours.row_attention = nn.Identity(), nn.Identity()  # type: ignore[assignment]
    stem = ResNetStemConfig(standardisation_std_eps=0.0, standardisation_variance_eps=1e-10)
    theirs = BottleneckUnit(stem, 128, 32 * stride, stride=stride)
    theirs.conv_2 = nn.AvgPool2d(2) if stride > 1 else nn.Identity()  # type: ignore[assignment]
    theirs.norm_2 = nn.Identity()  # type: ignore[assignment]
    theirs.double().load_state_dict(stirred(ours).state_dict())
    hidden = torch.randn(2, 128, 16, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
    # The projection of a hybrid reads the same cells: its kernel is 1x1.
    torch.testing.assert_close(ours(hidden), theirs(hidden), rtol=0, atol=1e-9)


def test_a_new_unit_is_its_shortcut() -> None:
    model = create_model("AxialResNet-50", **SMALL)  # type: ignore[arg-type]
    assert isinstance(model, AxialResNet)
    for (_, unit), size in zip(model.units(), (16, 16, 8, 8), strict=True):
        hidden = torch.randn(1, unit.conv_1.in_channels, size, size)
        torch.testing.assert_close(unit(hidden), F.relu(unit.shortcut(hidden)), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", PUBLISHED)
def test_networks_of_axial_deeplab_have_as_many_parameters_as_its_code_builds(name: str) -> None:
    with torch.device("meta"):
        model = create_model(name)
    assert sum(p.numel() for p in model.parameters()) == PUBLISHED[name] == cost_of(model.config).params


def test_the_smallest_needs_the_multiply_adds_of_the_paper() -> None:
    # Table 1 of Axial-DeepLab: Conv-Stem + Axial-Attention, 2.8 B. (Its 12.4 M parameters are not those of the code.)
    assert round(cost_of(configure("Axial-ResNet-S")).macs / 1e9, 1) == 2.8


def test_the_papers_network_has_fewer_parameters_than_its_resnet_and_as_much_compute() -> None:
    lines, plain = cost_of(configure("AxialResNet-50")), cost_of(configure("BiT-R50x1"))
    assert lines.params == 19_373_640 < plain.params
    assert 0.95 < lines.macs / plain.macs < 1.05


@pytest.mark.parametrize("name", ["AxialResNet-50", "Axial-ResNet-M"])
def test_counted_multiply_adds_are_those_that_a_forward_pass_makes(name: str) -> None:
    config = configure(name, image_size=(64, 96))
    with torch.device("meta"):
        model, images = build(config), torch.zeros(1, 3, 64, 96)
    with FlopCounterMode(display=False) as counter:
        model.eval()(images)
    assert counter.get_total_flops() == 2 * cost_of(config).macs


def test_attention_reads_the_cells_of_its_column_then_of_its_row() -> None:
    model = create_model("AxialResNet-50", **{**SMALL, "image_size": (64, 96)})  # type: ignore[arg-type]
    shapes = [tuple(weights.shape) for _, weights in model.attention(torch.randn(1, 3, 64, 96))]
    # Maps of 16 x 24 cells; the first unit of a later stage attends before it halves them.
    whole = [(1, 8, 16 * 24, 16), (1, 8, 16 * 24, 24)]
    halved = [(1, 8, 8 * 12, 8), (1, 8, 8 * 12, 12)]
    assert shapes == [*whole, *whole, *halved, *halved]


def test_offsets_are_resampled_with_offset_zero_in_its_place() -> None:
    table = torch.arange(-3.0, 4.0)[:, None]
    torch.testing.assert_close(stretched(table, 13)[6], torch.zeros(1))
    assert torch.equal(stretched(table, 1), torch.zeros(1, 1))
    assert torch.equal(stretched(torch.ones(1, 2), 5), torch.ones(5, 2))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"width": 48}, "multiple of 32 .*got 48"),
        ({"num_heads": 12}, "multiple of 24, twice num_heads, got 64"),
        ({"units": ()}, "number of stages .*got 0"),
        ({"norm": "layer_norm"}, "norm .*'layer_norm'"),
        ({"image_size": 230}, "32, got 230; .*224 and 256"),
        ({"attention_factor": 0}, "attention_factor .*got 0"),
    ],
)
def test_nonsense_is_refused_in_one_sentence(options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        configure("AxialResNet-50", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spelling", "name"), [("AxialResNet50", "AxialResNet-50"), ("axial50m", "Axial-ResNet-M")]
)
def test_other_spellings_name_the_same_model(spelling: str, name: str) -> None:
    assert configure(spelling) == configure(name)
