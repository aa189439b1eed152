"""Whether other code has changed a model's modules: wrapped, hooked, pruned, parametrized, quantized or replaced.

A model takes shortcuts around unchanged modules: it multiplies by their weights directly, and the last block skips
the tokens that the head does not read. If a module has been changed, the model calls it with all its inputs instead.
"""

from torch import nn
from torch.nn.modules import module as torch_modules

KNOWN_CODE = ("vitrine.", "torch.nn.modules.", "torch.distributed.")


def is_plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether calling `module` does what `kind` does and nothing else."""
    # An adapted, parametrized or quantized layer has its own class, often with attributes of the same names.
    return type(module) is kind and not is_hooked(module) and not has_global_hooks()


def is_as_built(module: nn.Module) -> bool:
    """Whether `module` and everything inside it run only our code and torch's."""
    if is_hooked(module) or not type(module).__module__.startswith(KNOWN_CODE):
        return False
    return all(child is None or is_as_built(child) for child in module._modules.values())


def is_hooked(module: nn.Module) -> bool:
    """Whether foreign code runs when `module` is called."""
    has_hooks = (
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
    )
    return bool(has_hooks) and not gathers_weights_only(module)


def gathers_weights_only(module: nn.Module) -> bool:
    """Whether all hooks are those that gather the weights of a sharded module (FSDP)."""
    if module._backward_hooks or module._backward_pre_hooks or "forward" in module.__dict__:
        return False
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    return all(getattr(hook, "__module__", "").startswith("torch.distributed.") for hook in hooks)


def has_global_hooks() -> bool:
    """Whether foreign code observes every module of this process."""
    return bool(
        torch_modules._global_forward_hooks
        or torch_modules._global_forward_pre_hooks
        or torch_modules._global_backward_hooks
        or torch_modules._global_backward_pre_hooks
    )
