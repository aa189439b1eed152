"""How many images a device takes at a time, by the memory that they are predicted to need."""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitrine.runs.training_run import Setting
    from vitrine.runtime.processes import Processes

# Of a machine's memory: the rest is for Python, for images on their way and for whatever else runs there.
SHARE_OF_MACHINE = 0.75


def chosen_micro_batch(setting: "Setting", processes: "Processes") -> int | None:
    """Return what was asked for, else what is predicted to fit where that cannot be tried out; None takes all.

    A machine without memory ends the process; of a sharded run no process can try alone. A GPU, alone or under DDP,
    says when it is full, and the loop halves the micro-batch then.
    """
    import torch

    from vitrine.runtime.hardware import memory_of

    training, device = setting.recipe.training, processes.device
    if training.micro_batch is not None:
        return training.micro_batch
    if device.type == "cpu":
        # What the machine has, not what is free just now: a run that goes on adds up in the same order.
        machine = memory_of(device)
        room = math.inf if machine is None else SHARE_OF_MACHINE * machine / processes.world_size
    elif device.type == "cuda" and setting.shard and processes.world_size > 1:
        room, _ = torch.cuda.mem_get_info(device)
    else:
        return None
    share = images_a_process(setting, processes)
    size = fitting_micro_batch(setting, processes, room=room)
    return None if size == share else size


def fitting_micro_batch(setting: "Setting", processes: "Processes", *, room: float) -> int:
    """Halve a process's share of the batch until what it needs is predicted to fit into `room` bytes."""
    size = images_a_process(setting, processes)
    while size > 1 and memory_of_step(setting, processes, micro_batch=size) > room:
        size //= 2
    return size


def images_a_process(setting: "Setting", processes: "Processes") -> int:
    """Return a process's share of the batch."""
    return max(setting.recipe.training.batch_size // processes.world_size, 1)


def memory_of_step(setting: "Setting", processes: "Processes", *, micro_batch: int) -> float:
    """Predict the bytes of a step on one device."""
    from vitrine.models.cost import cost_of
    from vitrine.models.memory import Demand
    from vitrine.runs.run_plan import states_of
    from vitrine.training.config import is_bf16

    training, config = setting.recipe.training, setting.model.config
    is_low = is_bf16(training.precision, device=processes.device.type)
    demand = Demand(cost=cost_of(config), states=states_of(training), bytes_kept=2 if is_low else 4)
    return demand.memory(
        micro_batch=math.ceil(micro_batch * setting.recipe.passes(config)),
        shards=processes.world_size if setting.shard else 1,
        checkpointing=config.activation_checkpointing,
    ).total
