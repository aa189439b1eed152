"""YOLOS against transformers on random weights, its official names, its loss, and its assignment by SciPy."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from vitrine.checkpoints import load
from vitrine.checkpoints.libraries import import_installed
from vitrine.data.preparing.box_view import BoxBatch
from vitrine.models.dense.yolos import Yolos
from vitrine.objectives.set_detection import SetDetectionObjective

OFFICIAL = {
    "vit.embeddings.cls_token": "backbone.cls_token",
    "vit.embeddings.detection_tokens": "backbone.det_token",
    "vit.embeddings.position_embeddings": "backbone.pos_embed",
    "vit.embeddings.patch_embeddings.projection": "backbone.patch_embed.proj",
    "vit.encoder.interpolation.mid_position_embeddings": "backbone.mid_pos_embed",
    "vit.layernorm": "backbone.norm",
    "class_labels_classifier": "class_embed",
    "bbox_predictor": "bbox_embed",
    "attention.output.dense": "attn.proj",
    "intermediate.dense": "mlp.fc1",
    "output.dense": "mlp.fc2",
    "layernorm_before": "norm1",
    "layernorm_after": "norm2",
    "vit.encoder.layer": "backbone.blocks",
}


@pytest.fixture(scope="module", params=[True, False], ids=["middle positions", "no middle positions"])
def theirs(request: pytest.FixtureRequest) -> torch.nn.Module:
    transformers = import_installed("transformers")
    torch.manual_seed(0)
    config = transformers.YolosConfig(
        hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=32, image_size=[32, 48],
        patch_size=8, num_detection_tokens=5, use_mid_position_embeddings=request.param, num_labels=4,
        layer_norm_eps=1e-6, id2label=dict(enumerate(("cat", "dog", "cow", "hen"))),
    )  # fmt: skip
    model: torch.nn.Module = transformers.YolosForObjectDetection(config).eval()
    for parameter in model.parameters():  # zeros would hide what is not read
        torch.nn.init.normal_(parameter, std=0.2)
    return model


def answers_of(theirs: torch.nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        answered = theirs(images)
    return answered.pred_boxes, answered.logits


def assert_same(theirs: torch.nn.Module, folder: Path, **options: object) -> None:
    model = load(folder, **options).model  # type: ignore[arg-type]
    assert isinstance(model, Yolos)
    # The size of the table, and another: both interpolate it, the second in every block.
    for size in ((32, 48), (40, 64)):
        images = torch.randn(2, 3, *size)
        boxes, logits = model.answers(images)
        expected = answers_of(theirs, images)
        torch.testing.assert_close(boxes, expected[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(logits, expected[1], rtol=1e-4, atol=1e-4)


def test_files_of_transformers_answer_as_transformers_does(theirs: torch.nn.Module, tmp_path: Path) -> None:
    theirs.save_pretrained(tmp_path)
    assert_same(theirs, tmp_path)
    loaded = load(tmp_path)
    assert loaded.model.config.num_classes == 4
    assert loaded.classes == ("cat", "dog", "cow", "hen")


def test_official_names_hold_the_same_model(theirs: torch.nn.Module, tmp_path: Path) -> None:
    state, fused = {}, dict[str, dict[str, Tensor]]()
    for their_name, value in theirs.state_dict().items():
        name = their_name
        for part, other in OFFICIAL.items():
            name = name.replace(part, other)
        which = next((one for one in ("query", "key", "value") if f"attention.attention.{one}" in name), None)
        if which is not None:
            fused.setdefault(name.replace(f"attention.attention.{which}", "attn.qkv"), {})[which] = value
            continue
        state[name] = value.contiguous().clone()
    for name, parts in fused.items():
        state[name] = torch.cat([parts[which] for which in ("query", "key", "value")])
    save_file(state, tmp_path / "model.safetensors")
    assert_same(theirs, tmp_path, num_heads=2, image_size=(32, 48))


def test_the_loss_is_that_of_transformers(theirs: torch.nn.Module) -> None:
    pytest.importorskip("scipy")
    torch.manual_seed(1)
    images, objective = torch.randn(3, 3, 32, 48), SetDetectionObjective(num_detections=5, most_objects=5)
    corners = torch.rand(3, 5, 2) * torch.tensor([24.0, 16.0])
    boxes = torch.cat([corners, corners + 4 + 12 * torch.rand(3, 5, 2)], dim=-1)
    counts = torch.tensor([3, 0, 2])
    is_object = torch.arange(5) < counts[:, None]
    objects = BoxBatch(boxes, torch.randint(0, 4, (3, 5)), is_object, torch.zeros(3, 5, dtype=torch.bool))
    found, logits = answers_of(theirs, images)
    num_objects = int(counts.sum())
    weight = num_objects + 0.1 * (15 - num_objects)
    losses, _ = objective.set_losses(
        found, logits, objects, images, per_object=torch.full((3,), 3 / num_objects),
        per_token=torch.full((3,), 3 / weight),
    )  # fmt: skip
    scale = torch.tensor([48.0, 32.0])
    labels = [
        {
            "class_labels": objects.labels[row, : counts[row]],
            "boxes": torch.cat(
                [(one[:, :2] + one[:, 2:]) / 2 / scale, (one[:, 2:] - one[:, :2]) / scale], dim=1
            ),
        }
        for row in range(3)
        for one in [boxes[row, : counts[row]]]
    ]
    import_installed("transformers")
    expected = theirs(images, labels=labels).loss
    torch.testing.assert_close(losses.mean(), expected.detach(), rtol=1e-4, atol=1e-4)
