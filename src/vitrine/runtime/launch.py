"""The rank of this process among those that torchrun or SLURM started, from environment variables. No torch."""

import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass

from vitrine.errors import ConfigError

# Ports where the processes of a job may connect; below those that systems assign automatically.
FIRST_PORT, NUM_PORTS = 12_000, 20_000


@dataclass(frozen=True, kw_only=True)
class Launch:
    """The rank of this process among those started with it."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    """Processes on this machine that share its cores."""
    address: str = "127.0.0.1"
    """The machine of the first process, to which all others connect."""
    port: int = 29_500
    restarts: int = 0
    """How often torchrun has restarted the processes after losing one."""
    identity: str | None = None
    """The same for all processes and restarts of one torchrun, if known."""


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
            local_world_size=int(variables.get("LOCAL_WORLD_SIZE", 1)),
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


@dataclass(frozen=True, kw_only=True)
class Share:
    """The part of the work that this process does: number `number`, from 0, of `count`."""

    number: int = 0
    count: int = 1

    def of(self, total: int) -> range:
        """Return this process's share of `total` numbered items: consecutive, and of equal size within one."""
        return range(self.number * total // self.count, (self.number + 1) * total // self.count)


def share_of_work(part: str | None, environment: Mapping[str, str] | None = None) -> Share:
    """Return the share `part`, such as 3/16 (counted from 1), or else the one that a launcher gives this process.

    Launchers are torchrun and `srun` (a rank among all), SLURM job arrays and Indexed Jobs of Kubernetes whose
    manifest sets JOB_COMPLETIONS.
    """
    if part is not None:
        match = re.fullmatch(r"(\d+)/(\d+)", part.strip())
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise ConfigError(f"must be like 3/16, counted from 1, got {part!r}", option="part")
        return Share(number=int(match[1]) - 1, count=int(match[2]))
    variables = os.environ if environment is None else environment
    launch = launched(variables)
    if launch.world_size > 1:
        return Share(number=launch.rank, count=launch.world_size)
    if "SLURM_ARRAY_TASK_COUNT" in variables:
        first = int(variables.get("SLURM_ARRAY_TASK_MIN", 0))
        step = int(variables.get("SLURM_ARRAY_TASK_STEP", 1))
        number = (int(variables["SLURM_ARRAY_TASK_ID"]) - first) // step
        return Share(number=number, count=int(variables["SLURM_ARRAY_TASK_COUNT"]))
    if "JOB_COMPLETION_INDEX" in variables and "JOB_COMPLETIONS" in variables:
        return Share(number=int(variables["JOB_COMPLETION_INDEX"]), count=int(variables["JOB_COMPLETIONS"]))
    return Share()


def first_host(nodes: str) -> str:
    """Return the first name of a list as SLURM writes it: `node[03-07,12],gpu1` begins with node03."""
    match = re.match(r"([^\[,]+)(?:\[([^\],-]+)[^\]]*\]([^,]*))?", nodes)
    if match is None:
        return nodes
    return "".join(part or "" for part in match.groups())
