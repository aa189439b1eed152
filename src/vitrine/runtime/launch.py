"""This process among those that torchrun or SLURM started, by their environment variables. No torch."""

import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass

# Ports where the processes of a job may connect; below those that systems assign by themselves.
FIRST_PORT, NUM_PORTS = 12_000, 20_000


@dataclass(frozen=True, kw_only=True)
class Launch:
    """This process among those that were started with it."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    address: str = "127.0.0.1"
    """The machine of the first process, to which all others connect."""
    port: int = 29_500
    restarts: int = 0
    """How often torchrun has restarted the processes after losing one."""
    identity: str | None = None
    """The same for all processes and restarts of one torchrun, if it is known."""


def launched(environment: Mapping[str, str] | None = None) -> Launch:
    """Read torchrun's variables, then SLURM's; without a launcher there is only this process."""
    variables = os.environ if environment is None else environment
    if "RANK" in variables and "WORLD_SIZE" in variables:
        identity = variables.get("TORCHELASTIC_RUN_ID")
        if identity == "none":  # torchrun was started without --rdzv-id: its own process identifies it
            identity = f"{platform.node()}:{os.getppid()}"
        return Launch(
            rank=int(variables["RANK"]),
            world_size=int(variables["WORLD_SIZE"]),
            local_rank=int(variables.get("LOCAL_RANK", 0)),
            address=variables.get("MASTER_ADDR", Launch.address),
            port=int(variables.get("MASTER_PORT", Launch.port)),
            restarts=int(variables.get("TORCHELASTIC_RESTART_COUNT", 0)),
            identity=identity,
        )
    # Only a step of srun sets these two; a batch script has SLURM_NTASKS and SLURM_PROCID, but is one process.
    if int(variables.get("SLURM_STEP_NUM_TASKS", 1)) > 1 and "SLURM_STEP_NODELIST" in variables:
        port = FIRST_PORT + int(variables.get("SLURM_JOB_ID", 0)) % NUM_PORTS
        return Launch(
            rank=int(variables["SLURM_PROCID"]),
            world_size=int(variables["SLURM_STEP_NUM_TASKS"]),
            local_rank=int(variables["SLURM_LOCALID"]),
            address=variables.get("MASTER_ADDR", first_host(variables["SLURM_STEP_NODELIST"])),
            port=int(variables.get("MASTER_PORT", port)),
        )
    return Launch()


def first_host(nodes: str) -> str:
    """Return the first name of a list as SLURM writes it: `node[03-07,12],gpu1` begins with node03."""
    match = re.match(r"([^\[,]+)(?:\[([^\],-]+)[^\]]*\]([^,]*))?", nodes)
    if match is None:
        return nodes
    return "".join(part or "" for part in match.groups())
