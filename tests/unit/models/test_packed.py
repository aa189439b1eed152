"""Pictures of any shape in one sequence: each gets the logits that the model gives it alone."""

import importlib.util

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrine.data.preparing.native import native_size
from vitrine.data.preparing.preprocess import Preprocess, planes, resize
from vitrine.errors import ConfigError
from vitrine.models import ViT, create_model
from vitrine.models.dropout import image_keys, number_random_layers, randomness_of
from vitrine.models.packed import packed_attention
from vitrine.models.segments import LEAST_HEAD_WIDTH, Path, Segments, path_on

SHAPES = ((60, 100), (300, 80), (64, 64), (20, 200), (60, 100))
NATIVE = Preprocess(size=(32, 32), patch=(8, 8), max_patches=16)
FAMILIES: list[dict[str, object]] = [
    {},
    {"pooling": "average", "norm_after_pooling": True, "position_resampling": "bicubic_offset"},
    {"pooling": "attention", "positions": "learned_2d", "norm": "rms_norm"},
    {"positions": "none", "rotary": "dinov3", "num_registers": 2, "mlp": "swiglu", "qk_norm": True},
    {"positions": "none", "rotary": "eva", "rotary_grid": (4, 4), "embedding_norm": True},
    {"positions": "sincos_2d", "has_distillation_token": True, "num_branches": 2, "layer_scale": 0.1},
]


def small_vit(**options: object) -> ViT:
    torch.manual_seed(0)
    model = create_model(
        "ViT-Ti/16", image_size=32, patch_size=8, width=64, depth=2, num_heads=2, mlp_width=128, num_classes=7,
        **options,  # type: ignore[arg-type]
    )  # fmt: skip
    assert isinstance(model, ViT) and model.head is not None
    torch.nn.init.normal_(model.head.weight, std=0.1)
    return model.eval()


def photos() -> list[NDArray[np.uint8]]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (height, width, 3), dtype=np.uint8) for height, width in SHAPES]


def as_patches(pictures: list[NDArray[np.uint8]]) -> Tensor:
    return torch.stack([NATIVE.normalise(NATIVE.pixels(picture)) for picture in pictures])


def alone(picture: NDArray[np.uint8]) -> Tensor:
    size = native_size(*picture.shape[:2], patch=(8, 8), max_patches=16)
    return Preprocess(size=size).normalise(resize(planes(picture, 3), size, "bilinear"))[None]


@pytest.mark.parametrize(
    "options", FAMILIES, ids=lambda options: "-".join(map(str, options.values())) or "plain"
)
@torch.no_grad()
def test_packed_logits_and_features_equal_those_of_each_picture_alone(options: dict[str, object]) -> None:
    vit, pictures = small_vit(**options), photos()
    packed = as_patches(pictures)
    for function in (vit, vit.embed):
        single = torch.cat([function(alone(picture)) for picture in pictures])
        # The same products in batches of another size: within fp32's rounding.
        torch.testing.assert_close(function(packed), single, rtol=1e-5, atol=1e-5)


def test_gradients_of_a_pack_are_the_sum_of_those_of_its_pictures() -> None:
    vit, pictures = small_vit().double(), photos()  # sums of many terms: in fp64 their order does not matter
    vit(as_patches(pictures).double()).square().sum().backward()
    packed = [parameter.grad.clone() for parameter in vit.parameters() if parameter.grad is not None]
    vit.zero_grad()
    for picture in pictures:
        vit(alone(picture).double()).square().sum().backward()
    single = [parameter.grad for parameter in vit.parameters() if parameter.grad is not None]
    assert len(packed) == len(single) > 20
    for ours, theirs in zip(packed, single, strict=True):
        # Positions are resampled in fp32.
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6 * float(theirs.abs().max()))


def test_attention_picture_by_picture_equals_the_masked_matrix() -> None:
    torch.manual_seed(0)
    lengths = [3, 1, 7, 3]
    q, k, v = torch.randn(3, 1, 2, 14, 8).unbind()
    segments = Segments(lengths, device=torch.device("cpu"))
    outside = segments.picture[:, None] != segments.picture[None, :]
    logits = (q @ k.transpose(-2, -1) * 8**-0.5).masked_fill(outside, -torch.inf)
    torch.testing.assert_close(segments.attend(q, k, v), logits.softmax(dim=-1) @ v, rtol=1e-5, atol=1e-6)
    assert segments.first(v.transpose(1, 2).flatten(2), 1).shape == (4, 1, 16)
    assert segments.starts.tolist() == [0, 3, 4, 11]


@torch.no_grad()
def test_a_picture_that_could_not_be_read_does_not_disturb_the_others() -> None:
    vit, pictures = small_vit(pooling="average"), as_patches(photos())
    expected = vit(pictures)
    pictures[1] = 0
    torch.testing.assert_close(vit(pictures)[[0, 2, 3, 4]], expected[[0, 2, 3, 4]], rtol=1e-5, atol=1e-5)
    assert vit(pictures).isfinite().all()


LENGTHS = ([257, 200, 100, 300], [50, 60, 70], [256, 128, 384], [10, 900, 33], [1, 1, 1, 130], [5])


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_the_blocks_that_lengths_give_are_those_of_the_whole_mask(lengths: list[int]) -> None:
    from torch.nn.attention.flex_attention import create_block_mask

    picture = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    expected = create_block_mask(
        lambda batch, head, query, key: picture[query] == picture[key],
        B=None, H=None, Q_LEN=len(picture), KV_LEN=len(picture), device="cpu",
    )  # fmt: skip
    mask = Segments(lengths, device=torch.device("cpu")).mask
    assert torch.equal(mask.to_dense(), expected.to_dense())
    assert mask.seq_lengths == expected.seq_lengths
    for name in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
        assert torch.equal(getattr(mask, name), getattr(expected, name)), name
    for name in ("kv", "full_kv", "q", "full_q"):  # beyond the counts, the lists may differ
        ours, theirs = getattr(mask, f"{name}_indices")[0, 0], getattr(expected, f"{name}_indices")[0, 0]
        for count, own, other in zip(getattr(mask, f"{name}_num_blocks")[0, 0], ours, theirs, strict=True):
            assert torch.equal(own[:count], other[:count]), name


def attended(lengths: list[int], *, device: str, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Mix by FlexAttention and picture by picture; return both results and, on a GPU, both gradients of q."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, sum(lengths), 32, device=device, dtype=dtype).unbind()
    segments, results = Segments(lengths, device=torch.device(device)), []
    for mix in (segments.attend_at_once, segments.attend_one_by_one):
        own = q.clone().requires_grad_(device != "cpu")
        mixed = mix(own, k, v)
        results.append(mixed.detach().float())
        if device != "cpu":  # FlexAttention has no backward pass on CPUs
            mixed.float().square().sum().backward()
            results.append(own.grad.float())  # type: ignore[union-attr]
    return results


@pytest.mark.slow  # compiling takes a minute
def test_compiled_flex_attention_equals_picture_by_picture_and_is_compiled_once_for_any_lengths() -> None:
    graphs = torch._dynamo.utils.counters["stats"]  # type: ignore[attr-defined]
    before = graphs["unique_graphs"]
    for lengths in LENGTHS[:5]:
        at_once, one_by_one = attended(lengths, device="cpu")
        # Sums of up to 900 terms in another order, in fp32.
        torch.testing.assert_close(at_once, one_by_one, rtol=1e-5, atol=1e-5)
    assert graphs["unique_graphs"] - before == 1


def test_a_plan_says_how_attention_inside_pictures_is_computed() -> None:
    config = small_vit().config
    assert packed_attention(None, config, "cpu") is None
    assert packed_attention(16, config, "cpu") == str(Path(False))
    narrow = path_on("cuda:0", head_width=8)
    assert not narrow.is_flex and str(LEAST_HEAD_WIDTH) in str(narrow)


@pytest.mark.skipif(importlib.util.find_spec("triton") is not None, reason="Triton is installed")
def test_without_triton_pictures_are_computed_one_by_one_and_the_reason_is_given() -> None:
    assert (
        not path_on("cuda:0", head_width=64).is_flex and "Triton" in path_on("cuda:0", head_width=64).reason
    )


@pytest.mark.gpu
def test_flex_attention_on_a_gpu_equals_picture_by_picture_forward_and_backward() -> None:
    graphs = torch._dynamo.utils.counters["stats"]  # type: ignore[attr-defined]
    for dtype, tolerance in ((torch.float32, 2e-2), (torch.bfloat16, 5e-2)):  # TF32 and bf16 products
        before = graphs["unique_graphs"]
        for lengths in LENGTHS:
            results = attended(lengths, device="cuda", dtype=dtype)
            for at_once, one_by_one in zip(results[:2], results[2:], strict=True):
                scale = float(one_by_one.abs().max())
                torch.testing.assert_close(at_once, one_by_one, rtol=0, atol=tolerance * scale)
        # One graph for any lengths, one for sequences of at most one block.
        assert graphs["unique_graphs"] - before <= 2


@pytest.mark.gpu
def test_packed_models_on_a_gpu_classify_embed_and_train_as_on_a_cpu() -> None:
    assert path_on("cuda:0", head_width=32).is_flex
    for options in FAMILIES:
        vit, pictures = small_vit(**options), as_patches(photos())
        expected, embedded = vit(pictures), vit.embed(pictures)
        expected.square().sum().backward()
        gradient = vit.patch_projection.weight.grad.clone()  # type: ignore[union-attr]
        vit.zero_grad()
        vit.cuda()
        logits = vit(pictures.cuda())
        logits.square().sum().backward()
        computed = (logits, vit.embed(pictures.cuda()), vit.patch_projection.weight.grad)
        for ours, theirs in zip(computed, (expected, embedded, gradient), strict=True):
            # Products of fp32 matrices may run in TF32, of 10 bits.
            scale = float(theirs.abs().max())
            torch.testing.assert_close(ours.detach().cpu(), theirs.detach(), rtol=0, atol=1e-2 * scale)
        with torch.autocast("cuda", torch.bfloat16):
            vit(pictures.cuda()).float().square().sum().backward()


def test_dropout_and_stochastic_depth_of_a_picture_do_not_depend_on_the_others_in_its_pack() -> None:
    vit, pictures = small_vit(dropout=0.2, stochastic_depth=0.5).train(), as_patches(photos())
    number_random_layers(vit)
    keys = image_keys(0, first=0, count=len(pictures), device=torch.device("cpu"))
    with randomness_of(keys):
        whole = vit(pictures)
    with randomness_of(keys[1:3]):
        part = vit(pictures[1:3])
    torch.testing.assert_close(whole[1:3], part, rtol=1e-5, atol=1e-5)
    with randomness_of(keys + 1):
        assert not torch.allclose(whole, vit(pictures), atol=1e-3)


def test_random_rotary_positions_of_a_picture_are_those_that_it_gets_alone_and_in_any_pack() -> None:
    options = {"rotary_shift": 0.2, "rotary_jitter": 1.5, "rotary_rescale": 2.0, "num_registers": 2}
    vit = small_vit(positions="none", rotary="dinov3", **options).train()
    number_random_layers(vit)
    pictures, keys = (
        photos(),
        image_keys(3, first=0, count=len(photos()), device=torch.device("cpu")),
    )
    with randomness_of(keys):
        whole = vit(as_patches(pictures))
    with randomness_of(keys[1:3]):
        part = vit(as_patches(pictures[1:3]))
    torch.testing.assert_close(whole[1:3], part, rtol=1e-5, atol=1e-5)
    for number, picture in enumerate(pictures):
        with randomness_of(keys[number : number + 1]):
            torch.testing.assert_close(vit(alone(picture)), whole[number : number + 1], rtol=1e-5, atol=1e-5)
    vit.eval()
    assert not torch.allclose(vit(as_patches(pictures)), whole, atol=1e-3)


@pytest.mark.parametrize(
    "options", [{"positions": "relative"}, {"attention_dropout": 0.1}, {"activation_checkpointing": True}]
)
def test_a_model_that_cannot_be_packed_is_refused_by_the_reason(options: dict[str, object]) -> None:
    vit = small_vit(**options)
    with pytest.raises(ConfigError, match=f"{next(iter(options))}|{next(iter(options.values()))}"):
        vit(as_patches(photos()))


def test_patches_of_another_model_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"patches, 192\) .*\(2, 17, 768\)"):
        small_vit()(torch.zeros(2, 17, 768))
