"""Adapters in PEFT's format: theirs here, ours there, and of the models of transformers."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from oracles import import_torchvision
from torch import nn
from unit.checkpoints.made import images, logits, randomised, small_vit

from vitrine.checkpoints import load, save
from vitrine.checkpoints.adapters import CONFIG, write_adapter
from vitrine.checkpoints.record import Record
from vitrine.checkpoints.shared_backbone import Backbones
from vitrine.errors import CheckpointError
from vitrine.models.lora import adapters_of, add_adapters, merge_adapters

import_torchvision()  # PEFT imports transformers, which imports it
peft = pytest.importorskip("peft")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    return save(small_vit(), tmp_path / "base")


def trained(base: Path, *, rank: int = 4) -> nn.Module:
    """A model with adapters and a head that are not at their start."""
    model = load(base).model
    add_adapters(model, rank=rank, alpha=2 * rank)
    torch.manual_seed(1)
    with torch.no_grad():
        for layer in adapters_of(model).values():
            layer.lora_b.normal_(std=0.05)
        model.head.weight.add_(0.1)  # type: ignore[union-attr]
    return model.eval()


def test_peft_loads_our_adapter_and_computes_the_same(base: Path, tmp_path: Path) -> None:
    model = trained(base)
    loaded = load(base)
    write_adapter(model, tmp_path / "adapter", base=str(base), record=loaded.record)  # type: ignore[arg-type]
    theirs = peft.PeftModel.from_pretrained(load(base).model, tmp_path / "adapter").eval()
    batch = images(loaded.model)
    expected = logits(model, batch)
    assert (expected - logits(loaded.model, batch)).abs().max() > 1e-2
    torch.testing.assert_close(logits(theirs, batch), expected, rtol=0, atol=1e-5)
    ours = load(tmp_path / "adapter")
    torch.testing.assert_close(logits(ours.model, batch), expected, rtol=0, atol=1e-5)
    assert ours.record.preprocess == loaded.record.preprocess
    assert sum(path.stat().st_size for path in (tmp_path / "adapter").iterdir()) < 200_000


def test_we_load_an_adapter_that_peft_saved_on_our_model(base: Path, tmp_path: Path) -> None:
    settings = peft.LoraConfig(
        r=4, lora_alpha=16, target_modules=["to_qkv", "contract"], modules_to_save=["head"], use_rslora=True
    )
    theirs = peft.get_peft_model(load(base).model, settings)
    torch.manual_seed(2)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if "lora_B" in name or "modules_to_save" in name:
                parameter.normal_(std=0.05)
    theirs.save_pretrained(tmp_path / "adapter")
    answer = load_adapter_on(tmp_path / "adapter", base)
    batch = images(answer)
    torch.testing.assert_close(logits(answer, batch), logits(theirs.eval(), batch), rtol=0, atol=1e-5)


def load_adapter_on(folder: Path, base: Path) -> nn.Module:
    """Load an adapter whose file names no base."""
    settings = json.loads((folder / CONFIG).read_text()) | {"base_model_name_or_path": str(base)}
    (folder / CONFIG).write_text(json.dumps(settings))
    return load(folder).model


def test_an_adapter_of_a_model_of_transformers_is_merged_into_our_fused_layers(tmp_path: Path) -> None:
    import transformers

    torch.manual_seed(0)
    theirs = transformers.ViTForImageClassification(
        transformers.ViTConfig(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48, image_size=32,
            patch_size=16, num_labels=5,
        )
    )  # fmt: skip
    theirs.save_pretrained(tmp_path / "base")
    names = {name.rpartition(".")[2] for name, _ in theirs.named_modules()}
    targets = ["q_proj", "v_proj"] if "q_proj" in names else ["query", "value"]
    settings = peft.LoraConfig(r=2, target_modules=targets, modules_to_save=["classifier"])
    adapted = peft.get_peft_model(theirs, settings)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name or "modules_to_save" in name:
                parameter.normal_(std=0.1)
    adapted.save_pretrained(tmp_path / "adapter")
    ours = load_adapter_on(tmp_path / "adapter", tmp_path / "base")
    batch = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        expected = adapted.eval()(pixel_values=batch).logits
    torch.testing.assert_close(logits(ours, batch), expected, rtol=0, atol=1e-5)
    shared = Backbones().open(str(tmp_path / "adapter")).model
    assert adapters_of(shared)
    torch.testing.assert_close(logits(shared, batch), expected, rtol=0, atol=1e-5)


def test_adapters_over_one_backbone_equal_merged_models_and_hold_its_weights_once(
    base: Path, tmp_path: Path
) -> None:
    record = load(base).record
    for number in range(3):
        model = trained(base, rank=2 + number)
        if number == 2:  # a head of its own size
            model.head = randomised(nn.Linear(64, 9))
            model.config = dataclasses.replace(model.config, num_classes=9)
            record = dataclasses.replace(record, config=model.config, classes=tuple("abcdefghi"))
        write_adapter(model, tmp_path / f"adapter{number}", base=str(base), record=record)  # type: ignore[arg-type]
    backbones = Backbones()
    opened = [backbones.open(str(base)), *(backbones.open(str(tmp_path / f"adapter{n}")) for n in range(3))]
    batch = images(opened[0].model)
    before = logits(opened[0].model, batch)
    for number, one in enumerate(opened[1:]):
        merged = load(tmp_path / f"adapter{number}")
        torch.testing.assert_close(logits(one.model, batch), logits(merged.model, batch), rtol=0, atol=1e-5)
        assert one.classes == merged.classes and one.preprocess == merged.preprocess
    assert torch.equal(logits(opened[0].model, batch), before)  # the base is as it was
    bytes_of = {p.data_ptr(): p.numel() * 4 for one in opened for p in one.model.parameters()}
    own = sum(p.numel() * 4 for p in opened[0].model.parameters())
    added = sum(path.stat().st_size for path in tmp_path.glob("adapter?/adapter_model.safetensors"))
    assert own < sum(bytes_of.values()) < own + added
    again = backbones.open(str(base), is_fresh=True)
    assert again.model is not opened[0].model and backbones.open(str(base)) is again


def test_adapters_give_a_backbone_without_a_head_one_of_their_own(tmp_path: Path) -> None:
    torch.manual_seed(0)
    backbone = save(small_vit(num_classes=None), tmp_path / "backbone")
    record = load(backbone).record
    for number in range(2):
        model = load(backbone, num_classes=3 + number).model
        randomised(model.head)  # type: ignore[arg-type]
        add_adapters(model, rank=2)
        own = dataclasses.replace(record, config=model.config)
        write_adapter(model, tmp_path / f"adapter{number}", base=str(backbone), record=own)
    backbones = Backbones()
    assert backbones.open(str(backbone)).model.head is None
    for number in range(2):
        one, merged = backbones.open(str(tmp_path / f"adapter{number}")), load(tmp_path / f"adapter{number}")
        batch = images(merged.model)
        assert logits(one.model, batch).shape[1] == 3 + number
        torch.testing.assert_close(logits(one.model, batch), logits(merged.model, batch), rtol=0, atol=1e-5)


@pytest.mark.parametrize("change", ["image size", "patches"])
def test_adapters_trained_at_another_input_shape_equal_merged_models_and_share_what_they_can(
    base: Path, tmp_path: Path, change: str
) -> None:
    own = load(base).model.config
    height = 2 * own.image_size[0]
    shape = {"image_size": height} if change == "image size" else {"patch_size": 2 * own.patch_size[0]}  # type: ignore[union-attr]
    expected = []
    for number in range(2):
        started = load(base, **shape)  # type: ignore[arg-type]
        model = started.model
        add_adapters(model, rank=2)
        torch.manual_seed(number)
        with torch.no_grad():
            for layer in adapters_of(model).values():
                layer.lora_b.normal_(std=0.05)
        write_adapter(model, tmp_path / f"adapter{number}", base=str(base), record=started.record)
        expected.append(model.eval())
    backbones = Backbones()
    opened = [backbones.open(str(base)), *(backbones.open(str(tmp_path / f"adapter{n}")) for n in range(2))]
    for number, (one, model) in enumerate(zip(opened[1:], expected, strict=True)):
        batch = images(model)
        merged = load(tmp_path / f"adapter{number}")
        for other in (one.model, merged.model):
            torch.testing.assert_close(logits(other, batch), logits(model, batch), rtol=0, atol=1e-5)
            assert other.config.patch_size == model.config.patch_size  # type: ignore[union-attr]
    if change == "image size":
        bytes_of = {p.data_ptr(): p.numel() * 4 for one in opened for p in one.model.parameters()}
        positions = opened[1].model.positions[0].table.numel() * 4  # type: ignore[index, union-attr]
        added = sum(path.stat().st_size for path in tmp_path.glob("adapter?/adapter_model.safetensors"))
        whole = sum(p.numel() * 4 for p in opened[0].model.parameters())
        assert whole < sum(bytes_of.values()) < whole + positions + added


def test_what_cannot_be_merged_is_refused_in_one_sentence(base: Path, tmp_path: Path) -> None:
    model = trained(base)
    record = Record(config=model.config, preprocess=load(base).preprocess)  # type: ignore[arg-type]
    folder = tmp_path / "adapter"
    write_adapter(model, folder, base="nowhere/to-be-found.safetensors", record=record)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match="is an adapter for nowhere"):
        load(folder)
    settings = json.loads((folder / CONFIG).read_text()) | {"base_model_name_or_path": str(base)}
    for change, message in (
        ({"peft_type": "IA3"}, "only LORA can be read"),
        ({"use_dora": True}, "DoRA"),
        ({"base_model_name_or_path": ""}, "does not name the base model"),
    ):
        (folder / CONFIG).write_text(json.dumps(settings | change))
        with pytest.raises(CheckpointError, match=message):
            load(folder)
    (folder / CONFIG).write_text(json.dumps(settings))
    merge_adapters(model)
    torch.testing.assert_close(logits(load(folder).model, images(model)), logits(model, images(model)))
