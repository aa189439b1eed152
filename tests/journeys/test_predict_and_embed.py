"""From pictures to answers and features: `vitrine predict`, `vitrine embed`, with a model and without naming one."""

import csv
import errno
import io
import json

import numpy as np
import pytest
import torch
from boxes import SMALL, untrained_box
from pictures import class_folders, photo, save
from PIL import Image
from pyarrow import parquet
from unit.data.web import answering

import vitrine
from vitrine.checkpoints import locating
from vitrine.errors import ConfigError, DataError, MissingDataError
from vitrine.runtime.devices import ON_CPU

from .commandline import assert_refused, inside, refusal
from .commandline import vitrine as run


@pytest.fixture(scope="module")
def small_box(tmp_path_factory):
    return untrained_box(tmp_path_factory.mktemp("box") / "box", image_size=32, num_classes=7)


@pytest.fixture(autouse=True)
def here(small_box, monkeypatch, tmp_path):
    """An empty folder to work in, and a small model in the place of the one in the box."""
    monkeypatch.setattr(locating, "BOX_FOLDER", small_box)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def inbox(here):
    for number in range(3):
        save(here / "inbox" / f"{number}.png", photo(number))
    (here / "inbox" / "bad.jpg").write_text("no picture")
    return here / "inbox"


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_one_photo_and_nothing_else_is_answered_by_the_model_in_the_box(command_line, inbox):
    code, out, _ = command_line("predict")("predict", "inbox/0.png")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "inbox/0.png"
    shares = [float(line.split("%")[0]) for line in lines[1:6]]
    assert shares == sorted(shares, reverse=True)
    assert "7 classes of box" in out
    assert "Next: vitrine inspect box:ti inbox/0.png" in out


def test_what_comes_next_is_about_a_picture_that_can_be_read(command_line, inbox):
    out = command_line("predict")("predict", "inbox/bad.jpg", "inbox/1.png", "--out", "preds.csv")[1]
    assert "Next: vitrine inspect box:ti inbox/1.png" in out


def test_a_list_of_pictures_names_one_class_each_and_as_many_as_are_asked_for(command_line, inbox):
    said = command_line("predict")("predict", "inbox/0.png", "inbox/1.png")[1].splitlines()
    assert [line.count(" %") for line in said[:2]] == [1, 1]
    said = command_line("predict")("predict", "inbox/0.png", "inbox/1.png", "--top", "3")[1].splitlines()
    assert [line.count(" %") for line in said[:2]] == [3, 3]


@pytest.mark.parametrize(
    "words",
    [
        ["inbox"],
        ["inbox/*"],
        ["box", "inbox"],
        ["inbox/0.png", "inbox/1.png", "inbox/2.png", "inbox/bad.jpg"],
        ["MODEL", "inbox/*.png", "inbox/bad.jpg"],
        ["list.csv"],
        ["list.txt"],
        ["box", "list.jsonl"],
    ],
    ids=" ".join,
)
def test_folder_pattern_files_and_lists_give_a_row_a_picture_and_an_error_for_the_bad_one(
    command_line, inbox, small_box, words, here
):
    names = ["0.png", "1.png", "2.png", "bad.jpg"]
    (here / "list.csv").write_text("id,Path\n" + "".join(f"7,inbox/{name}\n" for name in names))
    (here / "list.txt").write_text("".join(f"inbox/{name}\n" for name in names))
    (here / "list.jsonl").write_text("".join(json.dumps({"image": f"inbox/{name}"}) + "\n" for name in names))
    words = [str(small_box) if word == "MODEL" else word for word in words]
    code, out, _ = command_line("predict")("predict", *words, "--out", "preds.csv", "--top", "2")
    assert code == 0
    assert "Wrote preds.csv" in out
    assert "4 pictures; 1 cannot" in out
    rows = rows_of(here / "preds.csv")
    assert [row["path"] for row in rows] == [f"inbox/{name}" for name in names]
    assert [bool(row["error"]) for row in rows] == [False, False, False, True]
    assert rows[3]["predicted"] == ""
    assert all(row["predicted"].startswith("thing") for row in rows[:3])
    assert all(float(row["confidence"]) >= float(row["confidence_2"]) for row in rows[:3])


def piped(monkeypatch, data):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_paths_that_find_separates_by_nul_bytes_may_hold_line_breaks(command_line, inbox, monkeypatch):
    (inbox / "two\nlines.png").write_bytes((inbox / "0.png").read_bytes())
    piped(monkeypatch, b"inbox/0.png\0inbox/two\nlines.png\0")
    code, out, _ = command_line("predict")("predict", "-", "--json")
    assert code == 0
    names = [one["name"] for one in json.loads(out)["predictions"]]
    assert names == ["inbox/0.png", "inbox/two\nlines.png"]


def test_a_picture_on_standard_input_is_the_picture(command_line, inbox, monkeypatch):
    piped(monkeypatch, (inbox / "0.png").read_bytes())
    code, out, _ = command_line("predict")("predict", "-", "--json")
    by_pipe = json.loads(out)["predictions"]
    assert code == 0 and by_pipe[0]["name"] == "-"
    by_name = json.loads(command_line("predict")("predict", "inbox/0.png", "--json")[1])["predictions"]
    assert by_pipe[0]["answers"] == by_name[0]["answers"]
    piped(monkeypatch, (inbox / "0.png").read_bytes()[:300])
    code, out, _ = command_line("predict")("predict", "-")
    assert code == 1 and "damaged" in out


def test_predictions_on_standard_output_are_csv_and_nothing_else(command_line, inbox):
    code, out, _ = command_line("predict")("predict", "inbox", "--out", "-", "--top", "1")
    assert code == 0
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["path"] for row in rows] == [
        f"inbox/{name}" for name in ("0.png", "1.png", "2.png", "bad.jpg")
    ]
    assert all(bool(row["predicted"]) != bool(row["error"]) for row in rows)


def test_a_gpu_that_is_not_there_is_refused_in_one_sentence(command_line, inbox):
    if torch.backends.mps.is_available():
        pytest.skip("this machine has an Apple GPU")
    with pytest.raises(ConfigError) as refused:
        vitrine.predict("inbox", device="mps")
    assert refused.value.option == "device" and refused.value.advice == (ON_CPU,)


def test_paths_on_standard_input_that_do_not_exist_become_rows_too(command_line, inbox, monkeypatch, here):
    piped(monkeypatch, b"inbox/0.png\ninbox/gone.png\n\n")
    code, _, _ = command_line("predict")("predict", "-", "--out", "preds.jsonl")
    assert code == 0
    rows = [json.loads(line) for line in (here / "preds.jsonl").read_text().splitlines()]
    assert [row["path"] for row in rows] == ["inbox/0.png", "inbox/gone.png"]
    assert len(rows[0]["answers"]) == 5
    assert "No such file" in rows[1]["error"]


def test_json_holds_the_same_answers_as_the_library(command_line, inbox, here):
    command_line("predict")("predict", "inbox", "--out", "preds.json")
    kept = json.loads((here / "preds.json").read_text())
    result = vitrine.predict("inbox")
    assert [row["path"] for row in kept] == [one.name for one in result.predictions]
    for row, one in zip(kept, result.predictions, strict=True):
        assert [answer["label"] for answer in row["answers"]] == [answer.label for answer in one.answers]
    assert result.num_errors == 1


def test_unreadable_alone_and_strict_exit_with_1(command_line, inbox):
    code, out, _ = command_line("predict")("predict", "inbox/bad.jpg")
    assert code == 1
    assert "it looks like text" in out
    code, _, _ = command_line("predict")("predict", "inbox", "--strict")
    assert code == 1


def test_mistakes_are_answered_in_one_sentence(inbox, small_box, here):
    with refusal(MissingDataError, "inbox/00.png", "did you mean inbox/0.png"):
        vitrine.predict("inbox/00.png")
    with refusal(MissingDataError, "folder inbx", "did you mean inbox"):
        vitrine.predict("inbx")
    with refusal(ConfigError, "ViT-B/16 is a model", advice=["predict"]):
        vitrine.predict("ViT-B/16")
    with refusal(ConfigError, f"{small_box} is a model", advice=["predict"]):
        vitrine.predict(str(small_box))
    with pytest.raises(ConfigError, match="no pictures given"):
        vitrine.predict()
    with refusal(ConfigError, ".csv, .json, .jsonl", option="out"):
        vitrine.predict("inbox", out=here / "preds.xlsx")
    with pytest.raises(ConfigError, match="inside the folder of pictures"):
        vitrine.predict("inbox", out=inbox / "preds.csv")
    (here / "preds.csv").touch()
    with pytest.raises(ConfigError, match="exists"):
        vitrine.predict("inbox", out=here / "preds.csv")
    (here / "empty").mkdir()
    with pytest.raises(DataError, match="empty holds no pictures"):
        vitrine.predict("empty")
    (here / "wrong.csv").write_text("name\nx\n")
    with pytest.raises(DataError, match="has no path"):
        vitrine.predict("wrong.csv")


def test_the_command_line_itself_refuses_without_a_traceback(here):
    assert_refused(run("predict", "nowhere.jpg", cwd=here), "no such file nowhere.jpg")


def test_features_as_npy_with_paths_beside_it_and_as_parquet(command_line, inbox, here):
    code, out, _ = command_line("embed")("embed", "inbox", "--out", "f.npy")
    assert code == 0
    assert "Wrote f.csv" in out
    features = np.load(here / "f.npy")
    assert features.shape == (3, SMALL["width"])
    rows = rows_of(here / "f.csv")
    assert [row["row"] for row in rows] == ["0", "1", "2", ""]
    assert rows[3]["error"]
    vitrine.embed("box", ["inbox"], out=here / "f.parquet")
    table = parquet.read_table(here / "f.parquet").to_pydict()
    assert table["path"] == [row["path"] for row in rows]
    assert table["features"][3] is None
    assert table["error"][:3] == [None] * 3
    np.testing.assert_array_equal(np.array(table["features"][:3], dtype=np.float32), features)


def test_features_go_to_a_new_folder_where_no_file_is_named(command_line, inbox, here):
    code, _, _ = command_line("embed")("embed", "inbox")
    assert code == 0
    [file] = here.glob("runs/*-embed/features.npy")
    assert np.load(file).shape == (3, SMALL["width"])
    with pytest.raises(DataError, match="no picture can be read"):
        vitrine.embed("inbox/bad.jpg")


def test_verbs_with_data_take_the_box_where_no_model_is_named(command_line, here):
    class_folders(here / "photos", each=8)
    code, out, err = command_line("fewshot")("fewshot", "photos", "--shots", "2", "--no-cache")
    assert code == 0, err
    assert "box:ti on photos" in out
    with refusal(ConfigError, "box is a model", advice=["evaluate"]):
        vitrine.evaluate("box")
    with pytest.raises(ConfigError, match="no data given"):
        vitrine.fewshot()


def test_few_shots_are_those_that_there_are_examples_for(command_line, here):
    class_folders(here / "photos", each=12)
    code, out, err = command_line("fewshot")("fewshot", "photos", "--no-cache", "--seeds", "1")
    assert code == 0, err
    assert "Skipping 10, 25 shots" in err and "6 training examples" in err
    assert "5-shot" in out and "10-shot" not in out
    with pytest.raises(DataError, match="fewer than 10 shots"):
        vitrine.fewshot("photos", shots="10", cache=False)


def test_inspect_takes_the_box_where_the_first_word_is_a_photo(command_line, inbox):
    code, _, err = command_line("inspect")("inspect", "inbox/0.png", "--out", "look", "--show", "0")
    assert code == 0, err
    assert "Plan: box:ti at 32x32 px" in err
    assert "1 image, 0 with figures" in err


def test_a_full_disk_is_said_in_one_sentence_and_leaves_no_half_a_file(inbox, here, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("vitrine.runtime.files.os.fsync", full)
    before = sorted(here.iterdir())
    done = inside("predict", "inbox", "--out", "preds.csv")
    assert_refused(done, "No space left on device", "--out")
    assert sorted(here.iterdir()) == before


def test_classes_whose_names_are_no_utf_8_are_answered_on_any_terminal(here, monkeypatch):
    """Such a name comes out of an old archive; a model has learned it, and saying so must not fail."""
    model = vitrine.create_model(
        "ViT", width=8, depth=1, num_heads=1, mlp_width=8, image_size=16, num_classes=2
    )
    vitrine.save(model, here / "model", classes=["caf\udce9", "dog"])
    save(here / "a.png", photo(1))
    for encoding in ("utf-8:strict", "ascii:strict"):
        monkeypatch.setenv("PYTHONIOENCODING", encoding)
        said = run("predict", "model", "a.png")
        assert said.returncode == 0, said.stderr
        assert "caf\\xe9" in said.stdout and "dog" in said.stdout


def test_python_callers_may_pass_pictures_of_every_kind(tmp_path):
    pixels = photo(3, 40, 56)
    path = save(tmp_path / "a.png", pixels)
    tensor = torch.from_numpy(pixels.copy()).permute(2, 0, 1) / 255
    pictures = [
        path,
        str(path),
        pixels,
        tensor,
        path.read_bytes(),
        io.BytesIO(path.read_bytes()),
        Image.open(path),
    ]
    many = vitrine.predict("box", pictures)
    assert many.num_errors == 0
    (answers,) = {tuple(one.label for one in prediction.answers) for prediction in many.predictions}
    assert vitrine.predict("box", (picture for picture in pictures[2:4])).num_pictures == 2
    assert vitrine.predict("box", np.stack([pixels, pixels])).num_pictures == 2
    features = vitrine.embed("box", pictures[2:], out=tmp_path / "features.npy")
    assert features.num_pictures == 5
    with answering(lambda request: (200, {}, path.read_bytes())) as (address, _):
        (one,) = vitrine.predict("box", f"{address}/photo.png").predictions
        assert tuple(answer.label for answer in one.answers)[: len(answers)] == answers


def test_pictures_are_counted_by_class_after_predict(here, inbox):
    result = vitrine.predict(pictures=str(inbox))
    best = [one.answers[0].label for one in result.predictions if one.answers]
    assert result.tally == {name: best.count(name) for name in best} and sum(result.tally.values()) == 3
    counts = list(result.tally.values())
    assert counts == sorted(counts, reverse=True)
    assert f"{counts[0]}  {next(iter(result.tally))}" in inside("predict", inbox).stdout


def test_a_table_with_other_letters_begins_with_the_mark_that_excel_needs(here, inbox):
    vitrine.predict(pictures="inbox", out="plain.csv")
    assert (here / "plain.csv").read_bytes().startswith(b"path,")
    (inbox / "0.png").rename(inbox / "Größe.png")
    vitrine.predict(pictures="inbox", out="letters.csv")
    assert (here / "letters.csv").read_bytes().startswith(b"\xef\xbb\xbfpath,")
    with (here / "letters.csv").open(encoding="utf-8-sig", newline="") as file:
        assert "inbox/Größe.png" in [row["path"] for row in csv.DictReader(file)]


def test_features_of_class_folders_and_tables_come_with_labels(here):
    class_folders(here / "photos", each=2)
    vitrine.embed(pictures="photos", out="f.npy")
    assert [row["label"] for row in rows_of(here / "f.csv")] == ["cat", "cat", "dog", "dog"]
    vitrine.embed(pictures="photos", out="f.parquet")
    assert parquet.read_table(here / "f.parquet")["label"].to_pylist() == ["cat", "cat", "dog", "dog"]
    (here / "t.csv").write_text("file,class\nphotos/dog/0.png,woof\nphotos/cat/0.png,meow\n")
    vitrine.embed(pictures="t.csv", out="u.npy")
    assert [row["label"] for row in rows_of(here / "u.csv")] == ["woof", "meow"]


def test_features_of_loose_pictures_have_no_labels(here, inbox):
    vitrine.embed(pictures="inbox", out="f.npy")
    assert "label" not in rows_of(here / "f.csv")[0]
