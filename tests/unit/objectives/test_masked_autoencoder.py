"""The masked autoencoder: what the encoder sees, where tokens come back, what the loss reads."""

from unittest import mock

import pytest
import torch
from torch import Tensor
from unit.objectives.test_masked_patches import pixels, small_vit

from vitrine.errors import ConfigError
from vitrine.models import ViT, create_model
from vitrine.objectives.masked_autoencoder import (
    AutoencoderObjective,
    MaskedAutoencoder,
    num_visible,
    unshuffle,
)
from vitrine.objectives.patch_targets import normalised_patches, patch_pixels

SMALL = AutoencoderObjective(decoder_width=16, decoder_depth=1, decoder_heads=2)
ORDER = torch.tensor([[5, 2, 9, 14, *(n for n in range(16) if n not in (5, 2, 9, 14))]])


def small(config: AutoencoderObjective = SMALL, **options: object) -> MaskedAutoencoder:
    return MaskedAutoencoder(small_vit(**options), config)


def seen_by_the_encoder(module: MaskedAutoencoder, patches: Tensor, order: Tensor) -> Tensor:
    """Catch what goes into the first block."""
    caught: list[Tensor] = []
    handle = module.vit.blocks[0].register_forward_pre_hook(lambda block, given: caught.append(given[0]))
    module.encode_visible(patches, order, (4, 4))
    handle.remove()
    return caught[0]


def test_the_encoder_sees_the_class_token_and_the_visible_quarter_with_their_own_positions() -> None:
    module = small()
    vit = module.vit
    patches = torch.randn(1, 16, vit.config.width)
    seen = seen_by_the_encoder(module, patches, ORDER)
    table = vit.positions[0].table
    rows = [vit.class_token[0, 0] + table[0, 0]]
    rows += [patches[0, position] + table[0, 1 + position] for position in (5, 2, 9, 14)]
    assert torch.equal(seen[0], torch.stack(rows))


@pytest.mark.parametrize(
    "options", [{}, {"pooling": "average"}, {"num_registers": 3}, {"positions": "sincos_2d"}]
)
def test_hidden_patches_do_not_change_what_the_encoder_says(options: dict[str, object]) -> None:
    module = small(**options)
    images = pixels() / 127.5 - 1
    torch.manual_seed(0)
    _, order = module.reconstruct(images)
    changed = images.clone()
    for image, hidden in enumerate(order[:, 4:].tolist()):
        for position in hidden:
            top, left = 8 * (position // 4), 8 * (position % 4)
            changed[image, :, top : top + 8, left : left + 8] += 1
    found = []
    for given in (images, changed):
        torch.manual_seed(0)
        found.append(module.reconstruct(given)[0])
    assert torch.equal(found[0], found[1]) and not torch.equal(images, changed)


def test_unshuffling_puts_every_visible_token_back_and_fills_the_gaps() -> None:
    torch.manual_seed(1)
    order = torch.rand(3, 16).argsort(dim=1)
    visible, fill = torch.randn(3, 4, 8), torch.randn(1, 1, 8)
    found = unshuffle(visible, order, fill=fill)
    for image in range(3):
        for position in range(16):
            place = order[image].tolist().index(position)
            expected = visible[image, place] if place < 4 else fill[0, 0]
            assert torch.equal(found[image, position], expected)


def test_the_decoder_knows_the_position_of_every_patch() -> None:
    """With a decoder of no blocks, what it says of a gap depends on the gap's own position and nothing else."""
    module = small()
    module.decoder.blocks = torch.nn.ModuleList()
    tokens = torch.randn(1, 5, module.vit.config.width)
    found = module.decoder(tokens, ORDER, (4, 4))
    decoder = module.decoder
    for place, position in enumerate(ORDER[0].tolist()):
        token = decoder.narrow(tokens[0, 1 + place]) if place < 4 else decoder.mask_token[0, 0]
        said = decoder.to_pixels(decoder.norm(token + decoder.positions((4, 4))[0, 1 + position]))
        # One row and sixteen rows are multiplied in another order of sums.
        assert torch.allclose(found[0, position], said, atol=1e-5)


@pytest.mark.parametrize("normalises", [True, False])
def test_the_loss_is_the_mean_square_over_hidden_patches_alone(normalises: bool) -> None:
    module = small(
        AutoencoderObjective(decoder_width=16, decoder_depth=1, decoder_heads=2, normalises=normalises)
    )
    images, targets = pixels() / 127.5 - 1, patch_pixels(pixels(), (8, 8))
    torch.manual_seed(2)
    losses, sums = module(images, targets)
    torch.manual_seed(2)
    predictions, order = module.reconstruct(images)
    wanted = normalised_patches(targets) if normalises else targets
    for image in range(4):
        terms: list[float] = []
        for position in order[image, 4:].tolist():
            terms += (
                (predictions[image, position].double() - wanted[image, position].double()).square().tolist()
            )
        assert len(terms) == 12 * 192
        assert losses[image].item() == pytest.approx(sum(terms) / len(terms), rel=1e-5)
    assert sums == {}


def test_a_decoder_that_gives_the_targets_back_has_no_loss_wherever_patches_were_hidden() -> None:
    """Ties the order of predictions to that of the targets: raster order of the image on both sides."""
    module = small(AutoencoderObjective(decoder_width=16, decoder_depth=1, decoder_heads=2, normalises=False))
    targets = patch_pixels(pixels(), (8, 8))
    with mock.patch.object(module.decoder, "forward", lambda tokens, order, grid: targets):
        losses, _ = module(pixels() / 127.5 - 1, targets)
    assert losses.tolist() == [0.0] * 4


def test_gradients_reach_every_parameter() -> None:
    module = small()
    losses, _ = module(pixels() / 127.5 - 1, patch_pixels(pixels(), (8, 8)))
    losses.sum().backward()
    assert [n for n, p in module.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []


def test_without_targets_the_answer_is_that_of_the_bare_model() -> None:
    module = small()
    images = pixels() / 127.5 - 1
    assert torch.equal(module(images), module.vit(images))


def test_it_learns_one_picture_by_heart() -> None:
    module = small(
        AutoencoderObjective(decoder_width=64, decoder_depth=1, decoder_heads=2)
    )  # room for 16 patches
    images, targets = pixels(1) / 127.5 - 1, patch_pixels(pixels(1), (8, 8))
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-3)
    losses = []
    for step in range(250):
        torch.manual_seed(step)
        loss = module(images, targets)[0].mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[0] > 1 and sum(losses[-5:]) / 5 < 0.1  # the pictures are noise: nothing but memory helps


def test_models_that_cannot_leave_patches_out_are_refused() -> None:
    for options in (
        {"positions": "relative", "position_placement": "shared"},
        {"position_placement": "every_layer"},
    ):
        with pytest.raises(ConfigError, match="adds absolute positions once"):
            small(**options)
    hybrid = create_model("R26+ViT-Ti/16", image_size=64, num_classes=None, depth=2)
    assert isinstance(hybrid, ViT)
    with pytest.raises(ConfigError, match="without convolutions"):
        MaskedAutoencoder(hybrid, SMALL)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"hidden": 1.0}, "between 0 and 1"),
        ({"decoder_depth": 0}, "at least 1"),
        ({"decoder_width": 18}, "multiple"),
    ],
)
def test_nonsense_is_refused(wrong: dict[str, float], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        AutoencoderObjective(**wrong)  # type: ignore[arg-type]


def test_some_patch_is_always_visible_and_some_always_hidden() -> None:
    assert [num_visible(n, hidden=0.75) for n in (2, 4, 16, 196)] == [1, 1, 4, 49]
    assert num_visible(4, hidden=0.01) == 3 and num_visible(4, hidden=0.99) == 1
