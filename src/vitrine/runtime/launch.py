"""Which of the started processes this one is, as torchrun or SLURM tells it by environment variables. No torch."""

import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass

# Ports that a job may take for its processes to meet; below those that systems hand out by themselves.
FIRST_PORT, NUM_PORTS = 12_000, 20_000


@dataclass(frozen=True, kw_only=True)
class Launch:
    """This process among those that were started with it."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    address: str = "127.0.0.1"
    """The machine of the first process, where all of them meet."""
    port: int = 29_500
    restarts: int = 0
    """How often torchrun has started the processes anew after losing one."""
    identity: str | None = None
    """The same for all processes and restarts of one torchrun, where it is known."""


def launched(environment: Mapping[str, str] | None = None) -> Launch:
    """Read torchrun's variables, then SLURM's; without a launcher this process is alone."""
    found = os.environ if environment is None else environment
    if "RANK" in found and "WORLD_SIZE" in found:
        identity = found.get("TORCHELASTIC_RUN_ID")
        if identity == "none":  # torchrun was given no --rdzv-id: its own process tells it from others
            identity = f"{platform.node()}:{os.getppid()}"
        return Launch(
            rank=int(found["RANK"]),
            world_size=int(found["WORLD_SIZE"]),
            local_rank=int(found.get("LOCAL_RANK", 0)),
            address=found.get("MASTER_ADDR", Launch.address),
            port=int(found.get("MASTER_PORT", Launch.port)),
            restarts=int(found.get("TORCHELASTIC_RESTART_COUNT", 0)),
            identity=identity,
        )
    # Only a step of srun has these two; a batch script has SLURM_NTASKS and SLURM_PROCID, but runs alone.
    if int(found.get("SLURM_STEP_NUM_TASKS", 1)) > 1 and "SLURM_STEP_NODELIST" in found:
        port = FIRST_PORT + int(found.get("SLURM_JOB_ID", 0)) % NUM_PORTS
        return Launch(
            rank=int(found["SLURM_PROCID"]),
            world_size=int(found["SLURM_STEP_NUM_TASKS"]),
            local_rank=int(found["SLURM_LOCALID"]),
            address=found.get("MASTER_ADDR", first_host(found["SLURM_STEP_NODELIST"])),
            port=int(found.get("MASTER_PORT", port)),
        )
    return Launch()


def first_host(nodes: str) -> str:
    """Return the first name of a list as SLURM writes it: `node[03-07,12],gpu1` begins with node03."""
    match = re.match(r"([^\[,]+)(?:\[([^\],-]+)[^\]]*\]([^,]*))?", nodes)
    if match is None:
        return nodes
    return "".join(part or "" for part in match.groups())
