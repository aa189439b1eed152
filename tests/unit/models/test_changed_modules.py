"""Models whose modules others have adapted, hooked, pruned, parametrized or quantized: each module is called."""

import copy
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune

from tests.unit.models.small import VIT
from vitrine.checkpoints.libraries import import_installed
from vitrine.models import ViT, create_model
from vitrine.models.encoder import Mlp
from vitrine.models.kernels.layers import FastMlp, FastSelfAttention, speed_up
from vitrine.models.touched import is_as_built, is_plain
from vitrine.runtime.processes import leave_processes

TARGETS = ("blocks.2.attention.to_qkv", "patch_projection", "blocks.2.mlp.expand", "head")
BYPASSED = TARGETS[:2]


def small_model(seed: int = 0) -> ViT:
    torch.manual_seed(seed)
    model = create_model(**VIT)
    assert isinstance(model, ViT)
    assert model.head is not None
    nn.init.normal_(model.head.weight)  # a fresh head is zero and would hide every difference
    return model.eval()


def images(count: int = 2) -> Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("run", ["forward", "embed", "features"])
def test_a_forward_hook_sees_every_module_with_all_its_tokens(name: str, run: str) -> None:
    if name == "head" and run == "embed":
        pytest.skip("embed ends before the head")
    model, seen = small_model(), []
    plain = model(images())
    model.get_submodule(name).register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    getattr(model, run)(images())
    assert len(seen) == 1
    assert seen[0][:2] == {"patch_projection": (2, 32), "head": (2, 5)}.get(name, (2, 17))
    torch.testing.assert_close(model(images()), plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["blocks.2", "blocks.2.norm_2", "blocks.2.attention", "norm"])
def test_a_hook_behind_the_last_attention_sees_all_tokens(name: str) -> None:
    model, seen = small_model(), []
    model.get_submodule(name).register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    model(images())
    assert seen == [(2, 17, 32)]


def test_the_plain_model_computes_the_read_token_alone_in_its_last_block() -> None:
    model, seen = small_model(), []
    block = model.blocks[-1]
    original = type(block).forward
    assert is_as_built(block)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            type(block), "forward", lambda *args: seen.append(original(*args).shape) or original(*args)
        )
        model(images())
    assert seen[-1] == (2, 1, 32)


def test_hooks_on_every_module_of_the_process_see_the_bypassed_ones_too() -> None:
    model, seen = small_model(), []
    handle = nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(module))
    try:
        model(images())
    finally:
        handle.remove()
    assert all(model.get_submodule(name) in seen for name in TARGETS)


@pytest.mark.parametrize("name", BYPASSED)
def test_a_pruned_module_computes_with_its_mask(name: str) -> None:
    model = small_model()
    module = model.get_submodule(name)
    prune.l1_unstructured(module, "weight", amount=0.5)
    with (
        torch.no_grad()
    ):  # as an optimizer does; the masked weight is computed anew when the module is called
        module.weight_orig.mul_(2)
    before = model(images())
    prune.remove(module, "weight")
    torch.testing.assert_close(model(images()), before, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", BYPASSED)
def test_a_parametrized_module_computes_with_its_parametrization(name: str) -> None:
    class Doubled(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return 2 * weight

    model = small_model()
    parametrize.register_parametrization(model.get_submodule(name), "weight", Doubled())
    found = model(images())
    parametrize.remove_parametrizations(model.get_submodule(name), "weight")
    # Another processor may sum in another order: logits of 10 differ in their seventh digit.
    torch.testing.assert_close(found, model(images()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", BYPASSED)
def test_a_module_whose_forward_was_replaced_is_called(name: str) -> None:
    model = small_model()
    module, calls = model.get_submodule(name), []
    original = module.forward
    module.forward = lambda values: calls.append(1) or original(values)  # as accelerate's hooks do
    model(images())
    assert calls == [1]


def test_quantised_layers_compute() -> None:
    model = small_model()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        smaller = torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {nn.Linear}, dtype=torch.qint8)
        found = smaller(images())
    assert type(smaller.blocks[-1].attention.to_qkv) is not nn.Linear
    expected = model(images())
    assert (found - expected).abs().max() < 0.1 * expected.abs().max()
    assert not torch.equal(found, expected)


def adapted(model: ViT, targets: list[str]) -> nn.Module:
    peft = import_installed("peft")
    lora = peft.LoraConfig(r=2, lora_alpha=8, target_modules=targets, init_lora_weights=False)
    return peft.get_peft_model(model, lora).eval()


@pytest.mark.parametrize(
    "targets", [["to_qkv"], ["patch_projection"], ["to_qkv", "expand", "contract", "to_out"]]
)
def test_a_lora_adapter_computes_what_its_merged_model_does(targets: list[str]) -> None:
    torch.manual_seed(0)
    model = adapted(small_model(), targets)
    plain, with_adapter = small_model()(images()), model(images())
    merged = model.merge_and_unload()
    assert (with_adapter - plain).abs().max() > 1e-3
    torch.testing.assert_close(merged(images()), with_adapter, rtol=0, atol=1e-4)


def test_every_weight_of_a_lora_adapter_gets_a_gradient() -> None:
    model = adapted(small_model(), ["to_qkv", "patch_projection", "expand"]).train()
    model(images()).square().sum().backward()
    assert [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None] == []


def train_lora_under_ddp(rank: int, rendezvous: str) -> None:
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(rendezvous, 2)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    take_two_steps(rank)
    leave_processes()


def take_two_steps(rank: int) -> None:
    model = nn.parallel.DistributedDataParallel(
        adapted(small_model(), ["to_qkv", "patch_projection"]).train()
    )
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for step in range(2):  # a parameter without gradient fails in the second step
        optimizer.zero_grad()
        model(images()[rank : rank + 1] + step).square().sum().backward()
        optimizer.step()
    total = torch.stack([p.detach().double().sum() for p in model.parameters()])
    others = [torch.empty_like(total) for _ in range(2)]
    torch.distributed.all_gather(others, total)
    assert torch.equal(others[0], others[1])


@pytest.mark.slow
def test_lora_trains_under_ddp_on_two_processes(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(train_lora_under_ddp, args=(str(tmp_path / "rendezvous"),), nprocs=2)


@pytest.mark.parametrize(
    "name", ["blocks.2.attention.to_qkv", "blocks.2", "blocks.2.norm_1", "patch_projection"]
)
def test_captum_attributes_to_a_layer(name: str) -> None:
    captum = import_installed("captum.attr")
    model = small_model()
    layer = model.get_submodule(name)
    for method in (captum.LayerActivation(model, layer), captum.LayerGradientXActivation(model, layer)):
        extra = {} if isinstance(method, captum.LayerActivation) else {"target": 1}
        found = method.attribute(images(), **extra)
        assert found.shape[1 if name == "patch_projection" else 2] in (32, 96)
        assert found.abs().sum() > 0


@pytest.mark.parametrize("name", ["blocks.2", "blocks.2.norm_1", "blocks.1"])
def test_grad_cam_maps_the_patches_of_the_last_block(name: str) -> None:
    grad_cam = import_installed("pytorch_grad_cam")
    utils = import_installed("pytorch_grad_cam.utils.model_targets")

    def on_grid(tokens: Tensor) -> Tensor:
        return tokens[:, 1:].unflatten(1, (4, 4)).permute(0, 3, 1, 2)

    model = small_model()
    with grad_cam.GradCAM(
        model=model, target_layers=[model.get_submodule(name)], reshape_transform=on_grid
    ) as cam:
        maps = cam(input_tensor=images(), targets=[utils.ClassifierOutputTarget(1)] * 2)
    assert maps.shape == (2, 32, 32)
    # The head reads the class token alone: behind the last attention no patch has a gradient.
    assert (maps.max() > 0) == (name != "blocks.2")


def test_kernels_leave_changed_layers_to_their_own_code() -> None:
    model = speed_up(small_model())
    mlp, attention = model.blocks[-1].mlp, model.blocks[-1].attention
    assert isinstance(mlp, FastMlp) and isinstance(attention, FastSelfAttention)
    assert mlp.is_plain() and attention.is_plain()
    handle = mlp.expand.register_forward_hook(lambda *_: None)
    attention.to_qkv.register_forward_pre_hook(lambda *_: None)
    assert not mlp.is_plain() and not attention.is_plain()
    handle.remove()
    assert mlp.is_plain()
    mlp.contract = nn.Sequential(mlp.contract)
    assert not mlp.is_plain()


def test_a_subclass_of_a_layer_is_not_taken_for_the_layer() -> None:
    class Other(nn.Linear):
        pass

    assert is_plain(nn.Linear(2, 2), nn.Linear)
    assert not is_plain(Other(2, 2), nn.Linear)
    assert is_as_built(Mlp(2, hidden_width=2, gelu="erf")) and not is_as_built(Other(2, 2))
