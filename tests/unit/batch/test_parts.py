"""Jobs in numbered parts: which part a process computes, what is skipped, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from vitrine.batch.parts import Job, PartFolder, PartRecord, default_part_size, input_hash
from vitrine.data.sources.in_memory import PictureList
from vitrine.errors import ConfigError, DataError
from vitrine.runtime.launch import Share, share_of_work


def job(**changes):
    fields = {
        "model": "box", "weights": "abc", "preprocess": {"size": (16, 16)}, "precision": "fp32", "columns": {},
        "batch_size": 4, "num_pictures": 10, "part_size": 4,
    }  # fmt: skip
    return Job(**{**fields, **changes})


def record(number, job):
    rows = job.rows(number)
    return PartRecord(
        file=f"part-{number:05d}.parquet", first=rows.start, num_rows=len(rows), num_unreadable=0, bytes=9,
        sha256="00", input="11",
    )  # fmt: skip


@pytest.mark.parametrize("count", [1, 2, 3, 7, 16])
@pytest.mark.parametrize("total", [0, 1, 5, 16, 1000])
def test_shares_cover_every_part_once_and_differ_by_at_most_one(count, total):
    shares = [Share(number=number, count=count).of(total) for number in range(count)]
    assert [part for share in shares for part in share] == list(range(total))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, Share()),
        ({"RANK": "3", "WORLD_SIZE": "8"}, Share(number=3, count=8)),
        (
            {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NODELIST": "n1", "SLURM_LOCALID": "0"},
            Share(number=1, count=4),
        ),
        (
            {"SLURM_ARRAY_TASK_ID": "5", "SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_COUNT": "16"},
            Share(number=4, count=16),
        ),
        (
            {"SLURM_ARRAY_TASK_ID": "6", "SLURM_ARRAY_TASK_STEP": "2", "SLURM_ARRAY_TASK_COUNT": "4"},
            Share(number=3, count=4),
        ),
        ({"JOB_COMPLETION_INDEX": "2", "JOB_COMPLETIONS": "3"}, Share(number=2, count=3)),
        ({"SLURM_ARRAY_TASK_ID": "5"}, Share()),
    ],
    ids=["none", "torchrun", "srun", "array", "array with a step", "kubernetes", "half of an array"],
)  # fmt: skip
def test_a_launcher_tells_its_share_and_an_explicit_one_wins(variables, expected):
    assert share_of_work(None, variables) == expected
    assert share_of_work("2/5", variables) == Share(number=1, count=5)


@pytest.mark.parametrize("part", ["0/4", "5/4", "1", "a/b", "1/0", "-1/4", ""])
def test_a_share_that_does_not_exist_is_refused(part):
    with pytest.raises(ConfigError, match=f"3/16.*got {part!r}") as refused:
        share_of_work(part, {})
    assert refused.value.option == "part"


def test_the_size_of_parts_depends_on_the_number_of_pictures_alone():
    assert [default_part_size(count) for count in (1, 10_000, 50_000, 10**6, 10**8)] == [
        256, 256, 1024, 15_872, 16_384,
    ]  # fmt: skip
    assert all(default_part_size(count) % 256 == 0 for count in range(1, 3_000_000, 7919))


def test_a_job_is_resumed_and_another_one_refused_by_what_differs(tmp_path):
    first = PartFolder.begin(tmp_path, job(), share=Share(), is_overwriting=False)
    first.finish(0, record(0, first.job))
    again = PartFolder.begin(tmp_path, job(), share=Share(), is_overwriting=False)
    assert list(again.finished()) == [0] and again.missing() == [1, 2]
    for changes, words in [
        ({"weights": "other"}, "it differs in the weights"),
        ({"num_pictures": 11}, "number of pictures: 10 there, 11 now"),
        ({"precision": "bf16"}, "precision: fp32 there, bf16 now"),
        ({"columns": {"top": 5}}, "it differs in the columns"),
    ]:
        with pytest.raises(ConfigError, match=words):
            PartFolder.begin(tmp_path, job(**changes), share=Share(), is_overwriting=False)
    PartFolder.begin(tmp_path, job(precision="bf16"), share=Share(), is_overwriting=True)
    assert PartFolder.open(tmp_path).missing() == [0, 1, 2]


def test_one_of_several_processes_never_removes_the_parts_of_others(tmp_path):
    parts = PartFolder.begin(tmp_path, job(), share=Share(), is_overwriting=False)
    for number in range(3):
        parts.finish(number, record(number, parts.job))
    PartFolder.begin(tmp_path, job(), share=Share(number=1, count=3), is_overwriting=True)
    assert parts.missing() == [1]
    with pytest.raises(ConfigError, match="parts of another job"):
        PartFolder.begin(tmp_path, job(weights="x"), share=Share(number=1, count=3), is_overwriting=True)


def test_the_manifest_is_written_only_when_every_part_is_there(tmp_path):
    parts = PartFolder.begin(tmp_path, job(), share=Share(), is_overwriting=False)
    parts.finish(2, record(2, parts.job))
    assert parts.write_manifest(parts.finished()) is None
    for number in (0, 1):
        parts.finish(number, record(number, parts.job))
    manifest = json.loads(Path(parts.write_manifest(parts.finished())).read_text())
    assert manifest["num_rows"] == 10 and [part["first"] for part in manifest["parts"]] == [0, 4, 8]


def test_a_folder_without_a_job_and_a_damaged_record_are_refused(tmp_path):
    with pytest.raises(DataError, match=rf"{tmp_path.name} .*_job/job\.json"):
        PartFolder.open(tmp_path)
    parts = PartFolder.begin(tmp_path, job(), share=Share(), is_overwriting=False)
    (tmp_path / "_job" / "part-00001.json").write_text("{")
    with pytest.raises(DataError, match=r"part-00001.json is damaged; remove it"):
        parts.finished()


def test_a_changed_picture_changes_the_hash_of_its_part_only(tmp_path):
    files = [tmp_path / f"{number}.jpg" for number in range(4)]
    for file in files:
        file.write_bytes(b"x")
    source = PictureList(files)
    before = [input_hash(source, range(2)), input_hash(source, range(2, 4))]
    assert before == [input_hash(source, range(2)), input_hash(source, range(2, 4))]
    files[3].write_bytes(b"y")  # of the same size, later
    now = [input_hash(source, range(2)), input_hash(source, range(2, 4))]
    assert now[0] == before[0] and now[1] != before[1]
    files[0].unlink()
    assert input_hash(source, range(2)) != before[0]
    arrays = PictureList([np.zeros((2, 2, 3), dtype=np.uint8)] * 2)
    assert input_hash(arrays, range(2)) == input_hash(arrays, range(2))
