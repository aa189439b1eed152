"""Run several training jobs one after the other in the processes that torchrun started; no test by itself.

The jobs are a JSON list of `{"verb", "argument", "options", "stop_after", "full_disk", "caches"}`: starting Python
and torch once for all of them saves most of the cost. With `caches`, every process has a cache of its own, as on a
machine of its own. What became of each job is printed by the first process.
"""

import functools
import json
import os
import sys
from unittest import mock

import torch

import vitrine
from vitrine.errors import VitrineError
from vitrine.runtime import files
from vitrine.runtime.processes import joined_processes
from vitrine.training.loop import Run


def do(job: dict, rank: int) -> str:
    log, usage = Run.log, files.shutil.disk_usage

    def log_and_stop(self: Run, *arguments: object, **options: object) -> str:
        if self.state.step == job.get("stop_after") and rank == self.processes.world_size - 1:
            self.wants_to_stop = True  # as a signal to one of the processes does
        return log(self, *arguments, **options)

    def full(path: object) -> object:
        return type("Usage", (), {"free": 100})() if job.get("full_disk") else usage(path)

    # Whether compilation goes with the wrappings is the question, not what the compiler makes of it.
    quick = functools.partial(torch.compile, backend="aot_eager")
    own = {"VITRINE_CACHE": f"{job['caches']}/{rank}"} if "caches" in job else {}
    with (
        mock.patch.dict(os.environ, own),
        mock.patch.object(Run, "log", log_and_stop),
        mock.patch.object(files.shutil, "disk_usage", full),
        mock.patch.object(torch, "compile", quick),
    ):
        try:
            getattr(vitrine, job["verb"])(job["argument"], **job["options"])
        except VitrineError as error:
            return f"{error.exit_code} {error}"
    return "0"


if __name__ == "__main__":
    with joined_processes("cpu") as processes:
        ends = [do(job, processes.rank) for job in json.loads(sys.argv[1])]
    if processes.is_first:
        sys.stdout.write(json.dumps(ends) + "\n")
    sys.stdout.flush()
    os._exit(0)  # as the command line ends: torch's threads may abort while Python is taken down
