"""The manifests of docs/guides/manifests: valid for Kubernetes, consistent, and their commands are Vitrine's."""

import re
import shlex
from pathlib import Path

import pytest
import typer.main
import yaml

from vitrine.cli.app import build
from vitrine.runtime.launch import Share, share_of_work

FOLDER = Path(__file__).parents[2] / "docs" / "guides" / "manifests"
YAML = sorted(FOLDER.glob("*.yaml"))
SCRIPTS = sorted(FOLDER.glob("*.sbatch"))


def parse(words: list[str]) -> None:
    """Parse a call of Vitrine as the command line does, without running it."""
    application = typer.main.get_command(build())
    context = application.make_context("vitrine", list(words), resilient_parsing=True)
    _, command, rest = application.resolve_command(context, list(words))
    assert command is not None
    command.make_context(words[0], list(rest), parent=context)


@pytest.mark.parametrize("file", YAML, ids=lambda file: file.name)
def test_a_manifest_holds_a_command_of_vitrine_and_asks_for_shared_memory(file: Path) -> None:
    jobs = [one for one in yaml.safe_load_all(file.read_text()) if one["kind"] == "Job"]
    assert len(jobs) == 1
    job = jobs[0]["spec"]
    assert job["completionMode"] == "Indexed" and job["completions"] == job["parallelism"]
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    words = container["command"]
    parse(words[words.index("vitrine") + 1 :])
    assert "/dev/shm" in {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == {one["name"] for one in pod["volumes"]}
    variables = {one["name"]: one["value"] for one in container.get("env", [])}
    if "JOB_COMPLETIONS" in variables:
        last = {**variables, "JOB_COMPLETION_INDEX": str(job["completions"] - 1)}
        assert share_of_work(None, last) == Share(number=job["completions"] - 1, count=job["completions"])


@pytest.mark.parametrize("file", YAML, ids=lambda file: file.name)
def test_a_manifest_is_valid_by_the_schema_of_kubernetes(file: Path) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    for resource in yaml.safe_load_all(file.read_text()):
        validate.validate(resource, "1.31", strict=True)


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda file: file.name)
def test_a_batch_script_calls_vitrine_as_the_command_line_takes_it(file: Path) -> None:
    lines = [
        line for line in file.read_text().splitlines() if re.search(r"\bvitrine\b", line) and line[0] != "#"
    ]
    assert lines
    for line in lines:
        words = shlex.split(line)
        parse(words[words.index("vitrine") + 1 :])
