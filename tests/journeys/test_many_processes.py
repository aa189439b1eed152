"""One process, two or four, whole or sharded, interrupted and resumed: the same losses, the same weights.

Sums over a batch are added in another order by several processes, which changes the last bits of a float32
(2^-24 = 6e-8 of the value); Adam divides small numbers by small numbers and so carries some of that into the
weights. Six steps in, the losses agree to 1e-5 and weights, of size 0.01 to 1, to 1e-4.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from journeys.commandline import SOURCE, inside, losses
from journeys.many_processes import do
from safetensors.torch import load_file

import vitrine as library

DATA = "generated:shapes?count=96&size=32&label=colour"
SETTINGS = [
    "training.average_decay=0.9", "augment.mixup=0.2", "model_options.width=32", "model_options.depth=2",
    "model_options.mlp_width=64", "model_options.dropout=0.1", "model_options.stochastic_depth=0.3",
]  # fmt: skip
# Blocks of a group of their own, and the rates of layer-wise decay.
MUON = [*SETTINGS, "training.optimizer=muon", "training.layer_decay=0.8", "model_options.depth=3"]
# Compiled, in micro-batches of three (of eight or four), activations computed again in the backward pass.
COSTLY = ["training.compile=true", "training.micro_batch=3", "model_options.activation_checkpointing=true"]
OPTIONS = {
    "recipe": "demo", "steps": 6, "batch_size": 16, "log_every": 1, "checkpoint_every": 2, "evaluate_every": 4,
    "device": "cpu", "workers": 0, "precision": "fp32", "set": SETTINGS,
}  # fmt: skip
JOBS = Path(__file__).with_name("many_processes.py")


def pretrain(out: Path, *, stop_after: int | None = None, full_disk: bool = False, **options: object) -> dict:
    return {
        "verb": "pretrain", "argument": DATA, "options": {**OPTIONS, "out": str(out), **options},
        "stop_after": stop_after, "full_disk": full_disk,
    }  # fmt: skip


def resume(run: Path) -> dict:
    return {"verb": "resume", "argument": str(run), "options": {}}


def on_processes(count: int, jobs: list[dict]) -> list[str]:
    """Run jobs in so many processes; return how each one ended."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    done = subprocess.run(
        [sys.executable, *(torchrun if count > 1 else []), str(JOBS), json.dumps(jobs)],
        capture_output=True, text=True, timeout=200,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[:6000]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """One process, two, and a run that changes from two to one, by the names of their folders."""
    return made_once("many-processes", make_runs, tmp_path_factory, request)


@pytest.fixture(scope="module")
def costly_runs(runs: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """More ways to spread a run: four processes, other changes of their number, compiled, in bf16."""
    return made_once("more-processes", make_costly_runs, tmp_path_factory, request)


def made_once(
    name: str, make: Callable[[Path], None], factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Path:
    """Make the runs of this module once, however many workers share the tests."""
    if not hasattr(request.config, "workerinput"):
        root = factory.mktemp(name)
        make(root)
        return root
    root = factory.getbasetemp().parent / name
    try:
        root.mkdir()
    except FileExistsError:
        end = time.monotonic() + 280
        while not (root / "made").exists():
            assert time.monotonic() < end, "another worker should have made the runs by now"
            time.sleep(0.2)
        return root
    make(root)
    (root / "made").touch()
    return root


def make_runs(root: Path) -> None:
    assert do(pretrain(root / "one"), rank=0) == "0"
    assert do(pretrain(root / "one-muon", set=MUON), rank=0) == "0"
    ends = on_processes(
        2,
        [
            pretrain(root / "two"),
            pretrain(root / "two-sharded", shard=True),
            pretrain(root / "begun-on-2-sharded", shard=True, stop_after=3),
            pretrain(root / "not-finite", shard=True, lr=1e30),
            pretrain(root / "full-sharded", shard=True, full_disk=True),
            pretrain(root / "muon", shard=True, set=MUON),
            pretrain(root / "lamb", shard=True, set=[*SETTINGS, "training.optimizer=lamb"]),
            pretrain(root / "two"),
        ],
    )
    (root / "ends.json").write_text(json.dumps(ends))
    shutil.copytree(root / "begun-on-2-sharded", root / "begun-on-2-sharded-then-1")
    assert do(resume(root / "begun-on-2-sharded-then-1"), rank=0) == "0"


def make_costly_runs(root: Path) -> None:
    stopped = "130 stopped after step 3 of 6"
    assert do(pretrain(root / "begun-on-1", shard=True, stop_after=3), rank=0).startswith(stopped)
    ends = on_processes(
        2,
        [
            pretrain(root / "begun-on-2", stop_after=3),
            pretrain(root / "begun-on-2-sharded", shard=True, stop_after=3),
            pretrain(root / "full", full_disk=True),
            pretrain(root / "frozen", set=[*SETTINGS, "training.trains=head"]),
            pretrain(root / "bf16-sharded", shard=True, precision="bf16"),
            pretrain(root / "compiled", set=[*SETTINGS, *COSTLY]),
            pretrain(root / "compiled-sharded", shard=True, set=[*SETTINGS, *COSTLY]),
        ],
    )
    assert all(end.startswith(stopped) for end in ends[:2])
    assert "MB free and" in ends[2]
    assert ends[3:] == ["0"] * 4
    shutil.copytree(root / "begun-on-2", root / "begun-on-2-then-1")
    assert do(resume(root / "begun-on-2-then-1"), rank=0) == "0"
    names = ("begun-on-2", "begun-on-2-sharded", "begun-on-1")
    for name in names:
        shutil.copytree(root / name, root / f"{name}-then-4")
    jobs = [pretrain(root / "four"), *(resume(root / f"{name}-then-4") for name in names)]
    assert on_processes(4, jobs) == ["0"] * 4


@pytest.mark.parametrize("name", ["two", "two-sharded", "begun-on-2-sharded-then-1"])
def test_losses_and_weights_are_those_of_one_process(runs: Path, name: str) -> None:
    assert_same_run(runs / name, runs / "one")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "four", "begun-on-2-then-1", "begun-on-2-then-4", "begun-on-2-sharded-then-4", "begun-on-1-then-4",
        "compiled", "compiled-sharded",
    ],
)  # fmt: skip
def test_every_way_to_spread_a_run_gives_the_losses_and_weights_of_one_process(
    runs: Path, costly_runs: Path, name: str
) -> None:
    assert_same_run(costly_runs / name, runs / "one")


def assert_same_run(run: Path, one: Path) -> None:
    assert len(losses(one)) == 6
    assert losses(run) == pytest.approx(losses(one), rel=1e-5)
    expected = load_file(one / "model" / "model.safetensors")
    weights = load_file(run / "model" / "model.safetensors")
    assert weights.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(weights[key], value, rtol=0, atol=1e-4, msg=key)
    assert library.load(run).classes == library.load(one).classes


@pytest.mark.parametrize("name", ["two", "two-sharded"])
def test_evaluations_count_every_image_once_on_two_processes(runs: Path, name: str) -> None:
    assert_same_evaluations(runs / name, runs / "one")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["four", "begun-on-2-sharded-then-4"])
def test_evaluations_count_every_image_once_on_four_processes(
    runs: Path, costly_runs: Path, name: str
) -> None:
    assert_same_evaluations(costly_runs / name, runs / "one")


def assert_same_evaluations(run: Path, one: Path) -> None:
    evaluations, expected = ([r for r in records(path) if "val_loss" in r] for path in (run, one))
    assert [r["step"] for r in evaluations] == [4, 6]
    for ours, other in zip(evaluations, expected, strict=True):
        assert ours["val_loss"] == pytest.approx(other["val_loss"], rel=1e-5)
        assert ours["val_accuracy"] == other["val_accuracy"]


def kept(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir())


def test_a_sharded_run_keeps_folders_and_what_a_whole_one_leaves_replaces_them(runs: Path) -> None:
    assert kept(runs / "two") == ["best.safetensors", "last.safetensors"]
    assert kept(runs / "two-sharded") == ["best", "last"]
    assert "last.safetensors" in kept(runs / "begun-on-2-sharded-then-1")
    assert "last" not in kept(runs / "begun-on-2-sharded-then-1")


@pytest.mark.slow
def test_a_run_resumed_on_more_processes_replaces_its_file_by_a_folder(costly_runs: Path) -> None:
    names = kept(costly_runs / "begun-on-1-then-4")
    assert "last" in names and "last.safetensors" not in names


def test_muon_sharded_is_muon_on_one_process(runs: Path) -> None:
    """To the tolerances of this module: matrices in other batches differ in their last bits."""
    assert losses(runs / "muon") == pytest.approx(losses(runs / "one-muon"), rel=1e-5)
    one, two = (load_file(runs / name / "model" / "model.safetensors") for name in ("one-muon", "muon"))
    assert one.keys() == two.keys()
    assert all(torch.allclose(one[name], two[name], rtol=0, atol=1e-4) for name in one)


def test_an_error_of_the_first_process_ends_all_of_them(runs: Path) -> None:
    ends = json.loads((runs / "ends.json").read_text())
    assert ends[:2] == ["0", "0"]
    assert ends[2].startswith("130 stopped") and "step 3 of 6" in ends[2]
    assert ends[3].startswith("3 the loss") and "NaN" in ends[3]
    assert "MB free and" in ends[4]
    assert ends[5] == "0"
    assert ends[6].startswith("2 lamb needs whole tensors")
    assert "already holds config.yaml" in ends[7]


def test_the_weights_of_a_sharded_run_that_stopped_are_the_last_good_ones(runs: Path) -> None:
    from vitrine.training.saving import weights_of

    kept = weights_of(runs / "not-finite" / "checkpoints" / "stopped")
    assert kept and all(value.isfinite().all() for value in kept.values())


@pytest.mark.slow
def test_bf16_goes_with_sharding(runs: Path, costly_runs: Path) -> None:
    assert losses(costly_runs / "bf16-sharded") == pytest.approx(losses(runs / "one"), rel=0.02)  # 8 bits


def command_line(out: Path) -> list[str]:
    """Write the run of this module as a user types it."""
    settings = [part for one in SETTINGS for part in ("--set", one)]
    return [
        "-m", "vitrine", "pretrain", DATA, "--recipe", "demo", "--steps", "6", "--batch-size", "16",
        "--log-every", "1", "--checkpoint-every", "2", "--evaluate-every", "4", "--device", "cpu",
        "--workers", "0", "--precision", "fp32", *settings, "--out", str(out),
    ]  # fmt: skip


@pytest.mark.slow
def test_tasks_of_srun_find_each_other_without_torchrun(tmp_path: Path, runs: Path) -> None:
    """Two processes with the variables that srun gives them, on this machine."""
    shared = {
        **os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NODELIST": "localhost", "SLURM_JOB_ID": str(os.getpid()),
    }  # fmt: skip

    def by_two_tasks(words: list[str]) -> list[tuple[str, str]]:
        tasks = [
            subprocess.Popen(
                [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env={**shared, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)},
            )
            for rank in range(2)
        ]  # fmt: skip
        said = [task.communicate(timeout=200) for task in tasks]
        assert [task.returncode for task in tasks] == [0, 0], said
        return said

    said = by_two_tasks(command_line(tmp_path / "run"))
    assert "Accuracy" in said[0][0] and said[1][0] == ""  # the first one speaks
    assert losses(tmp_path / "run") == pytest.approx(losses(runs / "one"), rel=1e-5)
    measure = ["evaluate", str(tmp_path / "run"), DATA, "--device", "cpu", "--workers", "0"]
    said = by_two_tasks(["-m", "vitrine", *measure, "--out", str(tmp_path / "two"), "--json"])
    assert said[1][0] == ""  # two tasks that had not met would both have measured, and both have spoken
    alone = inside(*measure, "--out", tmp_path / "one", "--json")
    scores, expected = json.loads(said[0][0]), json.loads(alone.stdout)
    assert scores["num_images"] == expected["num_images"]
    assert scores["top1"]["value"] == expected["top1"]["value"]


@pytest.mark.slow
def test_a_lost_worker_is_replaced_and_the_run_goes_on_from_its_last_checkpoint(
    tmp_path: Path, runs: Path
) -> None:
    """One of two processes dies by `kill -9` after step 3, once; torchrun starts both anew."""
    hook = tmp_path / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(
        "import os, signal, sys, threading\n"
        "if os.environ.get('RANK') == '1' and os.environ.get('TORCHELASTIC_RESTART_COUNT') == '0':\n"
        "    from pathlib import Path\n"
        "    import time\n"
        "    def wait():\n"
        f"        path = Path({str(tmp_path / 'run' / 'metrics.jsonl')!r})\n"
        "        while not path.exists() or path.read_text().count('loss') < 3:\n"
        "            time.sleep(0.002)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    threading.Thread(target=wait, daemon=True).start()\n"
    )
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
    done = subprocess.run(
        [sys.executable, *torchrun, *command_line(tmp_path / "run")],
        capture_output=True, text=True, timeout=200,
        env={**os.environ, "PYTHONPATH": f"{hook}:{SOURCE}", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[:6000]
    assert "Resuming" in done.stderr
    assert losses(tmp_path / "run") == pytest.approx(losses(runs / "one"), rel=1e-5)
    assert "has finished" in inside("resume", tmp_path / "run").stderr


def records(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
