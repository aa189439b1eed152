"""How several processes train one model: DDP, or FSDP2 if the weights are sharded."""

from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from vitrine.models.axial_resnet import AxialUnit
from vitrine.models.bit import PreActivationUnit
from vitrine.models.encoder import Block, ParallelBlock
from vitrine.runtime.processes import Processes

UNITS = (Block, ParallelBlock, PreActivationUnit, AxialUnit)


def distributed(model: nn.Module, processes: Processes, *, shard: bool) -> nn.Module:
    """Return the module that exchanges gradients: the model itself, the model in DDP, or the sharded model."""
    if processes.world_size == 1:
        return model
    if shard:
        mesh = init_device_mesh(processes.device.type, (processes.world_size,))
        # Blocks one by one, so that only one of them is gathered at a time.
        inside = {
            part for module in model.modules() if isinstance(module, ParallelBlock) for part in module.parts
        }
        for module in list(model.modules()):
            if isinstance(module, UNITS) and module not in inside:
                fully_shard(module, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model
    devices = [processes.device] if processes.device.type == "cuda" else None
    return nn.parallel.DistributedDataParallel(model, device_ids=devices, gradient_as_bucket_view=True)
