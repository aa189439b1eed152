"""Who this process is, by the variables of torchrun and of SLURM."""

import pytest

from vitrine.runtime.launch import Launch, first_host, launched

SLURM = {
    "SLURM_PROCID": "13", "SLURM_LOCALID": "5", "SLURM_NTASKS": "16", "SLURM_JOB_ID": "4242",
    "SLURM_STEP_NUM_TASKS": "16", "SLURM_STEP_NODELIST": "node[07-08]",
}  # fmt: skip
TORCHRUN = {
    "RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1234",
    "TORCHELASTIC_RUN_ID": "abc", "TORCHELASTIC_RESTART_COUNT": "2",
}  # fmt: skip


def test_without_a_launcher_a_process_is_alone() -> None:
    assert launched({}) == Launch(rank=0, world_size=1, local_rank=0)


def test_torchrun_tells_rank_world_size_meeting_place_and_restarts() -> None:
    assert launched(TORCHRUN) == Launch(
        rank=3, world_size=8, local_rank=1, address="10.0.0.1", port=1234, restarts=2, identity="abc"
    )


def test_srun_tells_rank_and_world_size_and_all_meet_on_its_first_machine() -> None:
    found = launched(SLURM)
    assert (found.rank, found.world_size, found.local_rank) == (13, 16, 5)
    assert found.address == "node07"
    assert found.port == launched({**SLURM, "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}).port
    assert found.port != launched({**SLURM, "SLURM_JOB_ID": "4243"}).port  # two jobs on one machine


def test_a_meeting_place_that_is_given_wins_over_slurms() -> None:
    found = launched({**SLURM, "MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "999"})
    assert (found.address, found.port) == ("10.0.0.9", 999)


def test_torchrun_inside_a_slurm_job_counts_as_torchrun() -> None:
    assert launched({**SLURM, **TORCHRUN}).rank == 3


def test_a_batch_script_runs_alone_however_many_tasks_its_job_has() -> None:
    script = {name: value for name, value in SLURM.items() if "STEP" not in name}
    assert launched({**script, "SLURM_PROCID": "0"}) == Launch()


def test_a_step_of_one_task_runs_alone() -> None:
    assert launched({**SLURM, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}) == Launch()


def test_torchruns_without_an_id_are_told_apart_by_their_process() -> None:
    found = launched({**TORCHRUN, "TORCHELASTIC_RUN_ID": "none"}).identity
    assert found is not None and found != "none"


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node1", "node1"),
        ("node1,node2", "node1"),
        ("node[03-07,12],gpu1", "node03"),
        ("a-b[1,4-6]", "a-b1"),
        ("rack[2-3]-gpu,x", "rack2-gpu"),
    ],
)
def test_the_first_machine_of_a_list_as_slurm_writes_it(nodes: str, first: str) -> None:
    assert first_host(nodes) == first
