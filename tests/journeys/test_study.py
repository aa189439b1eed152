"""A study from data to verdict, killed half-way, given one more seed: on generated pictures, on the CPU."""

import json
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

import vitrine
from tests.journeys.commandline import assert_refused, inside, started
from tests.journeys.commandline import vitrine as command
from tests.unit.studies.test_pool import wait_until
from vitrine.errors import ConfigError
from vitrine.reports.charts import Chart
from vitrine.runtime.locks import require_lock
from vitrine.studies.arms import FINE_FACTORS
from vitrine.studies.record import Run, Setup, Study
from vitrine.studies.registry import STUDIES, register_study
from vitrine.studies.results import FILE, points_by
from vitrine.studies.scales import from_scratch, vit
from vitrine.studies.verdicts import ahead
from vitrine.training.saving import numbers_of

DATA = "generated:shapes?size=16&count=120&label=colour&noise=0"


def study(out: Path, *arguments: str) -> list[str]:
    return ["study", *arguments, "--scale", "tiny", "--out", str(out), "--device", "cpu", "--rate", "0.05"]


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / FILE).read_text().splitlines()]


def test_a_tiny_study_runs_from_data_to_a_page_and_another_seed_adds_only_that_seed(tmp_path: Path) -> None:
    once = inside(*study(tmp_path, "head,resolution", DATA, "--seeds", "1"))
    assert once.returncode == 0, once.stderr
    plan = once.stderr + once.stdout
    assert "24 of 24 runs left" in plan and re.search(r"\d exaFLOPs", plan)
    assert "Wrote" in once.stdout
    assert "Next:" in once.stdout
    head = (tmp_path / "head" / FILE).read_bytes()
    measured = lines(tmp_path / "head")
    assert [line["seed"] for line in measured] == [0] * 9
    assert all(0 <= line["measures"]["accuracy"] <= 1 for line in measured)
    assert all(0 <= line["measures"]["fewshot"] <= 1 for line in measured)
    # Weights stay only where another run begins with them, and no optimizer with them.
    assert not list(tmp_path.rglob("last.safetensors"))
    kept = sorted((tmp_path / "resolution" / "runs").iterdir())
    assert [path.name.partition("-seed0-")[0] for path in kept] == ["pre-training-longer", "pre-training"]
    for folder in kept:
        names = {path.name for path in folder.iterdir()}
        assert "model" in names and "checkpoints" not in names
    assert not list((tmp_path / "head" / "runs").iterdir())
    larger = [line for line in lines(tmp_path / "resolution") if line["group"].startswith("larger")]
    assert len(larger) == 6

    twice = inside(*study(tmp_path, "head", DATA, "--seeds", "2"))
    assert twice.returncode == 0, twice.stderr
    assert "Plan: 9 of 18 runs" in twice.stderr + twice.stdout
    assert (tmp_path / "head" / FILE).read_bytes().startswith(head)
    assert [line["seed"] for line in lines(tmp_path / "head")] == [0] * 9 + [1] * 9

    page = (tmp_path / "head" / "index.html").read_text()
    assert "class token" in page
    assert "<svg" in page
    again = inside(*study(tmp_path, "head", DATA, "--seeds", "2", "--json"))
    answer = json.loads(again.stdout)
    assert answer["lines"][0]["finished"] == 18
    assert answer["lines"][0]["verdict"] in ("reproduced", "open", "contradicted")

    document = tmp_path / "docs" / "studies.md"
    written = inside("study", "page", str(tmp_path), "--out", str(document))
    assert written.returncode == 0, written.stderr
    assert "| class token, 0.002 |" in document.read_text()
    assert (document.parent / "studies" / "resolution.svg").exists()


def test_a_study_that_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    arguments = study(tmp_path, "head", DATA, "--seeds", "1", "--steps", "6")
    results = tmp_path / "head" / FILE
    runs = tmp_path / "head" / "runs"

    def is_half_way() -> bool:
        assert process.poll() is None, process.communicate()
        others = [
            path
            for path in runs.glob("*/checkpoints/last.safetensors")
            if "class_token-lr0.1-" not in str(path) and numbers_of(path)["step"]
        ]
        return results.exists() and bool(others)

    with started(*arguments) as process:
        wait_until(is_half_way, seconds=150)  # a busy machine
        process.kill()
    before = results.read_bytes()
    finished = [line["run"] for line in lines(tmp_path / "head")]
    names = [path.parent.name.rpartition("-")[0] for path in runs.glob("*/checkpoints")]
    half_done = [name for name in names if name not in finished]
    after = inside(*arguments)
    assert after.returncode == 0, after.stderr
    assert results.read_bytes().startswith(before)
    measured = lines(tmp_path / "head")
    assert len(measured) == len({line["run"] for line in measured}) == 9
    resumed = {line["run"]: line["resumed_at"] for line in measured}
    # Checkpoints are made half-way; a run takes 16 x 6 steps at this scale.
    assert [resumed[name] for name in half_done] == [48] or not half_done
    assert all(resumed[name] == 0 for name in finished)
    assert half_done or len(finished) > 1


def test_a_second_command_on_the_same_study_is_refused_before_it_writes_into_the_runs_of_the_first(
    tmp_path: Path,
) -> None:
    with require_lock(tmp_path / "head", advice=""):
        second = inside(*study(tmp_path, "head", DATA, "--seeds", "1"))
    assert_refused(second, str(tmp_path / "head"))
    assert not (tmp_path / "head").exists()


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path: Path) -> None:
    with started(*study(tmp_path, "resolution", DATA, "--seeds", "1", "--steps", "20")) as process:
        wait_until(lambda: bool(list(tmp_path.rglob("last.safetensors"))))
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "everything is saved" in said


def test_weights_that_were_removed_are_made_again_only_where_a_run_needs_them(tmp_path: Path) -> None:
    arguments = study(tmp_path, "resolution", DATA, "--seeds", "1")
    assert inside(*arguments).returncode == 0
    shutil.rmtree(tmp_path / "resolution" / "runs")
    finished = inside(*arguments)
    assert re.search(r"All \d+ runs have finished", finished.stderr + finished.stdout)
    results = tmp_path / "resolution" / FILE
    kept = [line for line in results.read_text().splitlines() if "fresh" not in line]
    results.write_text("\n".join(kept) + "\n")
    again = inside(*arguments)
    assert "Plan: 4 of " in again.stderr + again.stdout
    assert sorted(line["run"] for line in lines(tmp_path / "resolution")[len(kept) :]) == [
        *(f"larger-fresh-positions-lr{factor:g}-seed0" for factor in FINE_FACTORS),
        "pre-training-seed0",
    ]


def test_changed_data_is_not_taken_for_the_old(tmp_path: Path) -> None:
    for seed in ("0", "1"):
        result = inside(*study(tmp_path, "head", f"{DATA}&seed={seed}", "--seeds", "1"))
        assert "Plan: 9 of 9 runs" in result.stderr + result.stdout
    measured = lines(tmp_path / "head")
    assert len(measured) == 18
    assert len({line["series"] for line in measured}) == 2
    document = tmp_path / "studies.md"
    assert inside("study", "page", str(tmp_path), "--out", str(document)).returncode == 0
    # The document is about the last series alone.
    assert "9 finished runs · 1" in document.read_text()
    assert "seed=1' --scale tiny --seeds 1" in document.read_text()


def test_a_study_from_outside_runs_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STUDIES, "batch", STUDIES["head"])
    monkeypatch.delitem(STUDIES, "batch")  # removed again when the test ends

    def runs(setup: Setup) -> tuple[Run, ...]:
        return tuple(
            Run(
                study="batch",
                group=f"batch-{size}",
                seed=setup.seed,
                settings={"batch": size},
                model=vit(setup.scale, num_classes=setup.num_classes),
                recipe=from_scratch(setup.scale, seed=setup.seed, name=f"batch {size}", batch_size=size),
            )
            for size in (8, 16)
        )

    register_study(
        Study(
            name="batch",
            title="Batch size",
            where="nowhere in the paper",
            claim="A smaller batch is better.",
            rule="Test accuracy.",
            runs=runs,
            findings=lambda results: ahead(
                "8 is ahead of 16", results.values(batch=8), results.values(batch=16), spread=results.spread()
            ),
            charts=lambda results: [
                Chart(title="Ours", y_label="%", series={"batch": points_by(results, "batch", (8, 16))})
            ],
            seeds=1,
        )
    )
    result = vitrine.study("batch", DATA, scale="tiny", out=str(tmp_path), device="cpu", rate=0.05)
    assert [(line.name, line.finished, line.runs) for line in result.lines] == [("batch", 2, 2)]
    assert result.lines[0].verdict in ("reproduced", "open", "contradicted")
    page = (tmp_path / "batch" / "index.html").read_text()
    assert "A smaller batch is better." in page and "<svg" in page
    assert "batch" in [line.name for line in vitrine.study("list", rate=700.0).lines]
    with pytest.raises(ConfigError, match="in use"):
        register_study(STUDIES["head"])


def test_the_list_says_claim_runs_and_cost_of_every_study_and_reads_no_data() -> None:
    listed = inside("study", "list", "--scale", "paper", "--rate", "700", "--jobs", "1", "--json")
    answer = json.loads(listed.stdout)
    assert len(answer["lines"]) == len(STUDIES)
    assert all(line["runs"] and line["claim"] and line["estimated_seconds"] > 0 for line in answer["lines"])
    shown = inside("study", "list", "--rate", "700").stdout
    assert "(appendix D.4, Table 8, Fig." in shown
    assert re.search(r"small: 51 runs, \S+ exaFLOPs", shown)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["study", "positons", "cifar10"], "no study is called 'positons'; nearest: positions"),
        (["study", "positions"], "data"),
        (["study", "positions", DATA, "--seeds", "0"], "--seeds: must be at least 1, got 0"),
        (["study", "positions", DATA, "--steps", "0"], "above 0"),
        (["study", "page", "nowhere", "--out", "a.md"], "nowhere holds no results of a study"),
        (["study", "page", ".", "--out", "a.html"], "--out: must be a Markdown file"),
        (["study", "head", "generated:shapes?label=colour,shape"], "one label per image"),
    ],
)
def test_mistakes_are_refused_in_one_sentence(arguments: list[str], words: str) -> None:
    assert_refused(inside(*arguments), words)


@pytest.mark.gpu
def test_studies_share_a_gpu(tmp_path: Path) -> None:
    names = "positions,head,few-shot-vs-data,compute,self-supervision,resolution,cost"
    arguments = [
        "study",
        names,
        "generated:shapes?size=32&count=2000&label=colour",
        "--seeds",
        "1",
        "--jobs",
        "3",
    ]
    result = command(
        *arguments, "--scale", "small", "--steps", "0.02", "--out", tmp_path, "--device", "cuda", timeout=280
    )
    assert result.returncode == 0, result.stderr
    for name in names.split(","):
        assert all(line["device"] != "cpu" for line in lines(tmp_path / name))
    assert all(line["measures"]["largest_batch"] > 0 for line in lines(tmp_path / "cost"))


@pytest.mark.slow
def test_the_study_of_descendants_trains_every_method_and_the_teacher_of_one(tmp_path: Path) -> None:
    done = inside(*study(tmp_path, "descendants", DATA, "--seeds", "1", "--steps", "0.13"))
    assert done.returncode == 0, done.stderr
    measured = lines(tmp_path / "descendants")
    assert {line["group"] for line in measured if line["role"] != "search"} == {
        "teacher", "plain-ViT", "plain-ViT-longer", "T2T-tokens", "PEG", "PVT-v2", "TNT", "DeiTs-token",
    }  # fmt: skip
    searched = [line for line in measured if line["role"] == "search"]
    rates = {
        line["settings"]["method"]: line["settings"]["rate"]
        for line in measured
        if line["role"] == "measured"
    }
    for method, rate in rates.items():
        scores = {
            line["settings"]["rate"]: line["measures"]["held_out"]
            for line in searched
            if line["settings"]["method"] == method
        }
        assert scores[rate] == max(scores.values()), method
    assert "DeiT's token is better than" in done.stdout


# The other three have tests of their own.
OTHERS = [name for name in STUDIES if name not in ("descendants", "head", "resolution")]


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_every_study_runs_from_data_to_a_verdict_at_scale_tiny(name: str, tmp_path: Path) -> None:
    pictures = DATA.replace("count=120", "count=80")
    done = inside(*study(tmp_path, name, pictures, "--seeds", "1", "--steps", "0.13", "--json"))
    assert done.returncode == 0, done.stderr
    (line,) = json.loads(done.stdout)["lines"]
    assert line["finished"] == line["runs"]
    # The families of the smallest models have no compute in common.
    assert (line["verdict"] == "not measured") is (name == "compute")
    measured = lines(tmp_path / name)
    accuracies = [run["measures"].get("accuracy") for run in measured if run["role"] == "measured"]
    assert name == "cost" or all(0 <= accuracy <= 1 for accuracy in accuracies)
    # Every study but that of speeds trains one arm twice as long.
    assert any(run["role"] == "check" for run in measured) is (name != "cost")
    assert "<svg" in (tmp_path / name / "index.html").read_text()
