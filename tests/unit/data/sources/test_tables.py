"""Tables as spreadsheets save them."""

import pytest
from unit.data.pictures import save

from vitrine.data.sources.manifest import are_measurements
from vitrine.data.sources.opening import open_kind, open_source
from vitrine.data.sources.picture_paths import open_pictures
from vitrine.data.sources.tables import rows_of
from vitrine.errors import DataError
from vitrine.runtime.progress import listening

TABLE = "File Name,Class\nphotos\\zoë.png,Größe L\nphotos\\b.png,klein\n"


class Heard:
    def __init__(self):
        self.remarks = []

    def notice(self, text, advice=()):
        self.remarks.append(text)


@pytest.fixture
def photos(tmp_path):
    for number, name in enumerate(["zoë.png", "b.png"]):
        save(tmp_path / "photos" / name, seed=number)
    return tmp_path


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252", "utf-16", "utf-16-le"])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
def test_a_table_is_read_whatever_program_saved_it(photos, encoding, separator, line_break):
    text = TABLE.replace(",", separator).replace("\n", line_break)
    (photos / "labels.csv").write_bytes(text.encode(encoding))
    source = open_source(photos / "labels.csv")
    assert source.classes == ("Größe L", "klein")
    assert [source.name(0), source.name(1)] == ["photos/zoë.png", "photos/b.png"]
    assert source.read(0).data[:4] == b"\x89PNG"


@pytest.mark.parametrize("column", ["path", "filename", "file", "image", "Image Path"])
@pytest.mark.parametrize("label", ["label", "class", "Category"])
def test_columns_are_found_by_the_names_that_people_use(photos, column, label):
    (photos / "t.csv").write_text(f"id,{column},{label}\n1,photos/b.png,x\n2,photos/zoë.png,y\n\n,,\n")
    source = open_source(photos / "t.csv")
    assert source.classes == ("x", "y") and len(source) == 2


def test_a_line_that_names_the_separator_for_excel_is_not_the_header(photos):
    (photos / "t.csv").write_text("sep=;\npath;label\nphotos/b.png;x\nphotos/zoë.png;y\n")
    assert [number for number, _ in rows_of(photos / "t.csv")] == [3, 4]
    assert open_source(photos / "t.csv").classes == ("x", "y")


def test_a_path_with_a_drive_letter_is_found_by_its_end(photos):
    (photos / "t.csv").write_text(
        "path,label\nC:\\Users\\me\\photos\\b.png,x\nC:\\Users\\me\\photos\\zoë.png,y\n"
    )
    source = open_source(photos / "t.csv")
    assert source.name(0) == "photos/b.png" and source.path(0).is_file()


def test_several_labels_are_separated_by_other_signs_where_semicolons_separate_columns(photos):
    (photos / "t.csv").write_text("path;labels\nphotos/b.png;red,round\nphotos/zoë.png;red\n")
    source = open_source(photos / "t.csv")
    assert source.is_multi_label and source.classes == ("red", "round")


def test_a_table_beside_the_photos_is_noticed(photos):
    (photos / "labels.csv").write_text("file,label\nb.png,x\nzoë.png,y\n")
    heard = Heard()
    with listening(heard):
        splits = open_kind(photos)
    assert splits["all"].classes == ("x", "y") and splits["all"].path(0).is_file()
    assert any("labels.csv" in text for text in heard.remarks)
    (photos / "labels.csv").rename(photos / "photos" / "labels.csv")
    assert open_kind(photos / "photos")["all"].classes == ("x", "y")


def test_a_table_beside_class_folders_does_not_replace_them(photos):
    save(photos / "other" / "c.png", seed=5)
    (photos / "labels.csv").write_text("file,label\nphotos/b.png,x\nphotos/zoë.png,y\n")
    heard = Heard()
    with listening(heard):
        assert open_kind(photos)["all"].classes == ("other", "photos")
    assert any("labels.csv has labels, too" in text for text in heard.remarks)


def test_numbers_that_hardly_repeat_are_measurements_and_not_classes(photos):
    for number in range(30):
        save(photos / "more" / f"{number}.png", seed=number)
    rows = "".join(f"more/{number}.png,{1.5 * number}\n" for number in range(30))
    (photos / "t.csv").write_text("path,label\n" + rows)
    source = open_source(photos / "t.csv")
    assert source.is_numeric and source.classes == ("label",)
    assert source.values is not None and source.values[:3].tolist() == [0.0, 1.5, 3.0]
    (photos / "t.csv").write_text("path,class\n" + rows)
    assert not open_source(photos / "t.csv").is_numeric
    assert len(open_source(photos / "t.csv").classes) == 30


def test_numbered_classes_stay_classes():
    assert not are_measurements([str(n % 10) for n in range(100)], column="label", where="t")
    assert not are_measurements([str(n % 100) for n in range(300)], column="label", where="t")
    assert are_measurements([str(n) for n in range(396)], column="label", where="t")
    assert are_measurements([f"{n},5" for n in range(30)], column="label", where="t")
    assert not are_measurements(["1", "x"] * 20, column="label", where="t")


def test_a_word_in_a_column_of_numbers_is_named():
    with pytest.raises(DataError, match="unknown"):
        are_measurements(["1", "unknown"], column="value", where="t.csv")


def test_a_txt_with_columns_is_a_table_as_excel_saves_unicode_text(photos):
    (photos / "labels.txt").write_bytes("file\tclass\r\nphotos\\zoë.png\tGröße L\r\n".encode("utf-16"))
    assert open_source(photos / "labels.txt").classes == ("Größe L",)
    picture, _ = open_pictures([str(photos / "labels.txt")])
    assert picture is not None and picture.name(0).endswith("zoë.png")


def test_a_list_of_vtab_in_utf_16_is_read(photos):
    (photos / "list.txt").write_bytes("photos/b.png 0\r\nphotos/zoë.png 1\r\n".encode("utf-16"))
    assert len(open_source(photos / "list.txt")) == 2


def test_a_table_beside_folders_of_splits_without_classes_is_noticed(photos):
    (photos / "photos").rename(photos / "train")
    save(photos / "test" / "c.png", seed=3)
    (photos / "train.csv").write_text("file,label\nb.png,x\nzoë.png,y\n")
    (photos / "test.csv").write_text("file,size\nc.png,3\n")
    assert open_kind(photos)["all"].classes == ("x", "y")


def test_several_tables_and_spreadsheets_beside_loose_photos_are_named(photos):
    (photos / "photos" / "labels.ods").write_bytes(b"PK")
    with pytest.raises(DataError, match=r"labels\.ods as CSV"):
        open_kind(photos / "photos")
    with pytest.raises(DataError, match=r"labels\.ods .*spreadsheet; .*CSV"):
        open_kind(photos / "photos" / "labels.ods")
    for name in ("a.csv", "b.csv"):
        (photos / "photos" / name).write_text("file,label\nb.png,x\nzoë.png,y\n")
    with pytest.raises(DataError, match=r"one of the tables.*a\.csv, b\.csv$"):
        open_kind(photos / "photos")
