"""Every look at a model equals a written-out reference in float64, and the analytic cases come out.

All models and references are float64, so 1e-6 (asked for) leaves nine digits for the order of sums.
"""

import numpy as np
import pytest
import torch

from vitrine.errors import ConfigError, DataError
from vitrine.inspection import (
    attention_distance,
    attention_from,
    class_attention,
    filter_components,
    layer_similarity,
    position_similarity,
    roll_out,
    rollout,
    token_colours,
    token_norms,
    upsample,
)
from vitrine.inspection.streaming import ATTENTION_BYTES, num_at_once, pieces
from vitrine.models import create_model

CLOSE = {"rtol": 0, "atol": 1e-6}


def tiny(**options):
    torch.manual_seed(0)
    chosen = {"patch_size": (8, 4), "width": 16, "depth": 3, "num_heads": 2, "mlp_width": 24} | options
    model = create_model("ViT-B/16", image_size=(24, 16), num_classes=chosen.pop("num_classes", 5), **chosen)
    with torch.no_grad():
        for (
            parameter
        ) in model.parameters():  # a fresh head is zero and fresh attention is flat: nothing to compare
            parameter.add_(0.5 * torch.randn(parameter.shape))
    return model.double().eval()


def pictures(count=3, channels=3):
    torch.manual_seed(1)
    return torch.randn(count, channels, 24, 16, dtype=torch.float64)


def written_out_attention(model, images):
    """Attention (L, B, H, T, T) by the formula, from features that the model names."""
    features = model.features(images)
    found, before = [], features["embedded"]
    for layer, block in enumerate(model.blocks):
        x = before
        x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-6).sqrt()
        x = x * block.norm_1.weight + block.norm_1.bias
        qkv = x @ block.attention.to_qkv.weight.T + block.attention.to_qkv.bias
        B, T, D = x.shape
        q, k, _ = (part.view(B, T, 2, D // 2).transpose(1, 2) for part in qkv.split(D, dim=-1))
        logits = q @ k.mT / (D // 2) ** 0.5
        found.append(logits.exp() / logits.exp().sum(-1, keepdim=True))
        before = features[f"block_{layer:02d}"]
    return torch.stack(found).detach().numpy()


@pytest.mark.parametrize("channels", [1, 2, 3, 5])
def test_filter_components_are_the_eigenvectors_of_the_kernels_covariance(channels):
    model = tiny(channels=channels)
    found = filter_components(model, count=4)
    kernel = model.patch_projection.weight.detach().permute(0, 2, 3, 1).reshape(16, -1).numpy()
    values, vectors = np.linalg.eigh(np.cov(kernel.T, bias=True))
    np.testing.assert_allclose(found.explained, values[::-1][:4] / values.sum(), **CLOSE)
    ours, theirs = found.components.reshape(4, -1), vectors[:, ::-1][:, :4].T
    np.testing.assert_allclose(np.abs((ours * theirs).sum(axis=1)), np.ones(4), **CLOSE)
    assert found.pictures.shape == (4, 8, 4, 3)
    assert found.pictures.min() >= 0 and found.pictures.max() <= 1


def test_more_components_than_there_are_gives_those_there_are():
    assert len(filter_components(tiny(), count=28).explained) == 16
    with pytest.raises(ConfigError, match="at least 1"):
        filter_components(tiny(), count=0)


def test_filters_of_hybrids_and_bit_are_those_that_meet_the_pixels():
    stem = filter_components(create_model("R50+ViT-B/16", image_size=32, depth=1), count=3)
    root = filter_components(create_model("BiT-R50x1", image_size=32), count=3)
    assert stem.components.shape == root.components.shape == (3, 7, 7, 3)


def cosines(table):
    unit = table / np.linalg.norm(table, axis=1, keepdims=True)
    return (unit @ unit.T).reshape(12, 3, 4)


def test_similarity_of_learned_positions_is_the_cosine_of_their_vectors():
    model = tiny()
    found = position_similarity(model)
    np.testing.assert_allclose(found, cosines(model.positions[0].table[0, 1:].detach().numpy()), **CLOSE)


@pytest.mark.parametrize("kind", ["learned_2d", "sincos_2d"])
def test_similarity_of_other_absolute_positions_is_that_of_their_table(kind):
    model = tiny(positions=kind)
    table = model.positions[0]((3, 4))[0, 1:].detach().numpy()
    np.testing.assert_allclose(position_similarity(model), cosines(table), **CLOSE)
    assert position_similarity(model, grid=(2, 5)).shape == (10, 2, 5)


def test_positions_in_every_layer_have_tiles_for_every_layer():
    model = tiny(position_placement="every_layer")
    found = position_similarity(model)
    assert found.shape == (3, 12, 3, 4)
    np.testing.assert_allclose(found[2], cosines(model.positions[2].table[0, 1:].detach().numpy()), **CLOSE)


def test_similarity_of_relative_positions_is_that_of_an_offsets_key_with_offset_zeros():
    model = tiny(positions="relative")
    keys = model.positions[0].table.detach().numpy()  # offsets -12 to 12 of 13 tokens
    found = position_similarity(model).reshape(12, 12)
    for query in range(12):
        for key in range(12):
            a, b = keys[query - key + 12], keys[12]
            assert found[query, key] == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), abs=1e-6)


def test_a_model_without_positions_says_so():
    with pytest.raises(ConfigError, match="no position embeddings"):
        position_similarity(tiny(positions="none"))


def test_attention_distance_equals_the_written_out_mean():
    model, images = tiny(num_registers=2), pictures()
    weights = written_out_attention(model, images)
    expected = np.zeros((3, 2))
    for layer in range(3):
        for head in range(2):
            far = []
            for image in range(3):
                for q in range(12):
                    row = weights[layer, image, head, 3 + q, 3:]
                    row = row / row.sum()
                    far.append(
                        sum(row[k] * np.hypot(8 * (q // 4 - k // 4), 4 * (q % 4 - k % 4)) for k in range(12))
                    )
            expected[layer, head] = np.mean(far)
    np.testing.assert_allclose(attention_distance(model, images), expected, **CLOSE)
    batches = [images[:1], images[1:]]
    np.testing.assert_allclose(attention_distance(model, batches), expected, **CLOSE)


def test_uniform_attention_has_the_analytic_mean_distance():
    """On one row of n patches of s pixels, |i - j| has the mean (n^2 - 1) / (3 n)."""
    torch.manual_seed(0)
    model = create_model(
        "ViT-B/16",
        image_size=(8, 80),
        patch_size=8,
        width=16,
        depth=2,
        num_heads=2,
        mlp_width=16,
        num_classes=2,
    ).double()
    with torch.no_grad():
        for block in model.blocks:
            block.attention.to_qkv.weight.zero_()
    found = attention_distance(model, torch.randn(2, 3, 8, 80, dtype=torch.float64))
    np.testing.assert_allclose(found, np.full((2, 2), 8 * (10**2 - 1) / (3 * 10)), rtol=0, atol=1e-12)


@pytest.mark.parametrize("options", [{}, {"num_registers": 2}, {"pooling": "average"}])
def test_rollout_equals_the_written_out_product(options):
    model, images = tiny(**options), pictures()
    first = model.num_leading_tokens
    flow = np.eye(12 + first)[None]
    for weights in written_out_attention(model, images):
        layer = weights.mean(axis=1) + np.eye(12 + first)
        flow = (layer / layer.sum(axis=-1, keepdims=True)) @ flow
    rows = flow[:, first:, first:].mean(axis=1) if "pooling" in options else flow[:, 0, first:]
    np.testing.assert_allclose(rollout(model, images), rows.reshape(3, 3, 4), **CLOSE)


def test_the_rollout_of_identity_attention_is_the_identity():
    identity = torch.eye(7, dtype=torch.float64).expand(2, 7, 7)
    assert torch.equal(roll_out([identity] * 5), identity)


def test_rows_of_a_rollout_sum_to_one_whatever_is_discarded():
    attention = torch.rand(3, 2, 6, 6, dtype=torch.float64).softmax(dim=-1)
    torch.testing.assert_close(roll_out(attention).sum(dim=-1), torch.ones(2, 6, dtype=torch.float64))
    model, images = tiny(), pictures()
    assert not np.allclose(rollout(model, images, discard=0.9), rollout(model, images))
    np.testing.assert_allclose(rollout(model, images, discard=0.001), rollout(model, images), **CLOSE)
    with pytest.raises(ConfigError, match="discard"):
        rollout(model, images, discard=1.0)


def test_an_enlarged_map_keeps_its_mean_and_its_corners():
    small = np.arange(12.0).reshape(1, 3, 4)
    large = upsample(small, (24, 16))
    assert large.shape == (1, 24, 16)
    assert large[0, 0, 0] == 0 and large[0, -1, -1] == 11
    assert large.mean() == pytest.approx(small.mean())


def test_heads_show_the_class_tokens_row_and_any_patchs_row():
    model, images = tiny(num_registers=2), pictures()
    weights = written_out_attention(model, images).transpose(1, 0, 2, 3, 4)  # (B, L, H, T, T)
    maps = attention_from(model, images)
    np.testing.assert_allclose(maps, weights[..., 0, 3:].reshape(3, 3, 2, 3, 4), **CLOSE)
    one = attention_from(model, images, patch=(1, -1), layers=[-1])
    np.testing.assert_allclose(one, weights[:, 2:, :, 3 + 7, 3:].reshape(3, 1, 2, 3, 4), **CLOSE)
    with pytest.raises(ConfigError, match=r"0 to 2,.*0 to 3$"):
        attention_from(model, images, patch=(3, 0))


def test_token_colours_are_the_leading_components_of_the_normalised_tokens():
    model, images = tiny(), pictures()
    tokens = model.features(images)["patch_tokens"].detach().numpy().reshape(-1, 16)
    centred = tokens - tokens.mean(axis=0)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    found = token_colours(model, images).reshape(-1, 3)
    for number in range(3):
        expected = centred @ directions[number]
        low, high = np.percentile(expected, (1, 99))
        expected = np.clip((expected - low) / (high - low), 0, 1)
        mirrored = min(
            np.abs(expected - found[:, number]).max(), np.abs(1 - expected - found[:, number]).max()
        )
        assert mirrored < 1e-6
    assert token_colours(model, images, layer=1).shape == (3, 3, 4, 3)


def test_norms_are_those_of_the_last_block_and_a_planted_outlier_is_found():
    model, images = tiny(num_registers=2), pictures()
    lengths = model.features(images)["block_02"].norm(dim=-1).detach().numpy()
    found = token_norms(model, images)
    np.testing.assert_allclose(found.patches, lengths[:, 3:].reshape(3, 3, 4), **CLOSE)
    np.testing.assert_allclose(found.class_token, lengths[:, :1], **CLOSE)
    np.testing.assert_allclose(found.registers, lengths[:, 1:3], **CLOSE)
    with torch.no_grad():
        model.positions[0].table[0, 1 + 6] *= 1e4  # patch (1, 2)
    assert np.argwhere(token_norms(model, images[:1]).outliers).tolist() == [[0, 1, 2]]


@pytest.mark.parametrize(
    "options", [{}, {"layer_scale": 0.3}, {"pooling": "average"}, {"positions": "relative"}]
)
def test_gradient_weighted_attention_equals_autograd_through_the_whole_model(options):
    model, images = tiny(**options), pictures()
    patches, grid = model.embed_patches(images)
    tokens, weights = model.assemble(patches, grid), []
    for layer, block in enumerate(model.blocks):
        read, keys = model.block_input(tokens, grid, layer=layer)
        normed = block.norm_1(read)
        attention = block.attention.weights(normed, keys)
        attention.retain_grad()
        weights.append(attention)
        mixed = (attention @ block.attention.project(normed)[2]).transpose(1, 2).flatten(2)
        tokens = read + block.scale_1(block.attention.to_out(mixed))
        tokens = tokens + block.scale_2(block.mlp(block.norm_2(tokens)))
    model.classify(model.norm(tokens))[:, 3].sum().backward()
    first = model.num_leading_tokens
    relevance = torch.eye(12 + first, dtype=torch.float64)
    for attention in weights:
        relevance = relevance + (attention * attention.grad).clamp(min=0).mean(dim=1) @ relevance
    rows = relevance[:, first:, first:].mean(1) if "pooling" in options else relevance[:, 0, first:]
    found = class_attention(model, images, target=3)
    np.testing.assert_allclose(found, rows.reshape(3, 3, 4).detach().numpy(), **CLOSE)


def test_without_a_target_each_image_shows_its_own_prediction():
    model, images = tiny(), pictures()
    predicted = model(images).argmax(dim=1)
    each = [class_attention(model, images[i : i + 1], target=int(k)) for i, k in enumerate(predicted)]
    np.testing.assert_allclose(class_attention(model, images), np.concatenate(each), **CLOSE)


def test_a_class_needs_a_head_that_has_it():
    with pytest.raises(ConfigError, match="no head"):
        class_attention(tiny(num_classes=None), pictures())
    with pytest.raises(ConfigError, match="0 to 4, got 5"):
        class_attention(tiny(), pictures(), target=5)


def test_similarity_of_layers_equals_the_ratio_of_gram_matrices():
    model, images = tiny(), pictures()
    features = model.features(images)
    names = ["embedded", "block_00", "block_01", "block_02"]
    layers = [features[name][:, 1:].reshape(36, 16).detach().numpy() for name in names]
    middle = np.eye(36) - 1 / 36
    grams = [middle @ layer @ layer.T @ middle for layer in layers]
    expected = [[(a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()) for b in grams] for a in grams]
    np.testing.assert_allclose(layer_similarity(model, images, tokens_each=12), expected, **CLOSE)
    np.testing.assert_allclose(np.diag(layer_similarity(model, images)), np.ones(4), **CLOSE)


def test_bit_shows_what_it_has_and_says_what_it_has_not():
    model = create_model("BiT-R50x1", image_size=64, num_classes=3).eval()
    images = torch.randn(3, 3, 64, 64)
    assert layer_similarity(model, torch.randn(8, 3, 32, 32)).shape == (5, 5)
    with pytest.raises(DataError, match=r"at least 8 .*got 3"):
        layer_similarity(model, images)
    assert token_colours(model, images).shape == (3, 2, 2, 3)
    assert token_norms(model, images).registers.shape == (3, 0)
    for look in (attention_distance, rollout, attention_from, class_attention):
        with pytest.raises(ConfigError, match="no attention"):
            look(model, images)
    with pytest.raises(ConfigError, match="no position"):
        position_similarity(model)


def test_no_images_and_images_smaller_than_a_patch_are_refused_in_one_sentence():
    model = tiny()
    for look in (attention_distance, rollout, attention_from, token_colours, token_norms):
        with pytest.raises(DataError, match="no images given"):
            look(model, torch.empty(0, 3, 24, 16))
        with pytest.raises(ConfigError, match="multiple of the patch stride"):
            look(model, torch.zeros(1, 3, 4, 4, dtype=torch.float64))


def test_looking_leaves_the_model_as_it_was():
    model, images = tiny(dropout=0.5).train(), pictures()
    np.testing.assert_array_equal(rollout(model, images), rollout(model, images))
    class_attention(model, images)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(("side", "expected"), [(224, 16), (384, 4), (512, 1), (1024, 1)])
def test_images_go_through_in_pieces_whose_attention_fits_the_bound(side, expected):
    """Of a model with 12 heads of patches of 16 pixels, as in B/16."""
    model = create_model("ViT-B/16", width=24, depth=1, num_heads=12, mlp_width=8, num_classes=None)
    count = num_at_once(model, (side, side))
    assert count == expected
    tokens = (side // 16) ** 2 + 1
    assert count == 1 or count * 12 * tokens**2 * 4 <= ATTENTION_BYTES
    images = torch.zeros(5, 3, side, side)
    assert len(next(pieces(model, images))) == min(count, 5)
    assert sum(len(piece) for piece in pieces(model, images)) == 5
