"""Each label definition, on files made in the layout of the original archive."""

import pickle
import sys

import numpy as np
import pytest
from scipy.io import savemat
from unit.evaluation import vtab_files as files

from vitrine.data.preparing.preprocess import Preprocess
from vitrine.data.sources.vtab.task_data import complete_splits, find_folders, open_task
from vitrine.data.sources.vtab.tasks import GROUPS, TASKS, find_task
from vitrine.errors import ConfigError, DataError, MissingExtraError

SMALL = {"num_train": 8, "num_val": 4}


def test_there_are_19_tasks_in_three_groups_of_seven_four_and_eight():
    assert len(TASKS) == 19
    assert [sum(task.group == group for task in TASKS) for group in GROUPS] == [7, 4, 8]


def test_no_crop_or_flip_where_it_destroys_the_label():
    assert {task.name for task in TASKS if not task.may_crop} == {
        "SVHN", *(task.name for task in TASKS if task.group == "Structured")
    }  # fmt: skip
    assert {task.name for task in TASKS if not task.may_flip} == {
        "SVHN", "dSprites-Location", "dSprites-Orientation", "sNORB-Azimuth"
    }  # fmt: skip


def test_lists_are_taken_as_they_are(tmp_path):
    files.make_lists(tmp_path, 47)
    data = open_task(tmp_path, find_task("DTD"))
    assert [len(part) for part in (data.train, data.val, data.trainval, data.test)] == [8, 4, 12, 6]
    assert data.layout == "lists"
    assert data.test.labels.tolist() == [0, 1, 2, 3, 4, 5]
    assert len(data.train.classes) == 47  # all of the task's, not those that the list happens to have


def test_clevr_count_is_the_number_of_objects_less_three(tmp_path):
    scenes = [[9.0] * count for count in range(3, 11)] * 3
    files.make_clevr(tmp_path, {"train": scenes, "val": scenes[:8]})
    data = open_task(tmp_path, find_task("Clevr-Count"), num_train=8, num_val=2)
    assert data.test.labels.tolist() == list(range(8))
    assert len(data.train) == 8
    assert data.test.read(0).data[:4] == b"\x89PNG"


def test_clevr_distance_is_the_nearest_depth_by_threshold_and_a_threshold_belongs_below(tmp_path):
    nearest = [7.9, 8.0, 8.01, 8.5, 8.6, 9.0, 9.2, 9.5, 9.7, 10.0, 10.1, 30.0]
    scenes = [[20.0, depth, 15.0] for depth in nearest]
    scenes[-1] = [30.0, 31.0, 32.0]
    files.make_clevr(tmp_path / "CLEVR_v1.0", {"train": scenes * 2, "val": scenes})
    data = open_task(tmp_path, find_task("Clevr-Dist"), **(SMALL | {"num_val": 2}))
    assert data.test.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


@pytest.mark.parametrize("suffix", ["npz", "hdf5"])
def test_dsprites_labels_are_pairs_of_places_and_floor_of_orientation_over_two_and_a_half(tmp_path, suffix):
    factors, images = files.make_dsprites(tmp_path, suffix=suffix)
    for name, column, classes in (
        ("dSprites-Location", 4, np.arange(32) // 2),
        ("dSprites-Orientation", 3, np.floor(np.arange(40) / 2.5).astype(int)),
    ):
        data = open_task(tmp_path, find_task(name), **SMALL | {"num_val": 3})
        assert len(data.test) == 7  # a tenth of 64
        for index in range(len(data.test)):
            number = int(data.test.name(index))
            assert data.test.label(index) == classes[factors[number, column]]
            pixels = data.test.read(index).data
            assert np.array_equal(pixels[:, :, 0], images[number] * 255)
        assert classes.max() == 15


def test_kitti_distance_is_to_the_nearest_car_van_or_truck_with_a_class_for_none(tmp_path):
    scenes = [
        [("Car", 7.0), ("Pedestrian", 3.0)],
        [("Van", 8.0)],
        [("Truck", 8.1), ("Car", 30.0)],
        [("Car", 20.0)],
        [("Car", 20.1)],
        [("Pedestrian", 2.0), ("Tram", 5.0), ("DontCare", -1000)],
        [],
    ]
    files.make_kitti(tmp_path, scenes)
    from vitrine.data.sources.vtab.structured import open_kitti as open_splits

    whole = open_splits(tmp_path, find_task("KITTI-Distance"))["all"]
    assert whole.labels.tolist() == [0, 0, 1, 1, 2, 3, 3]


def test_kitti_with_its_mapping_keeps_every_drive_on_one_side(tmp_path):
    files.make_kitti(tmp_path, [[("Car", 7.0)]] * 60)
    (tmp_path / "mapping").mkdir()
    drives = [f"drive_{number // 3:04d}" for number in range(60)]
    order = np.random.default_rng(0).permutation(60)
    (tmp_path / "mapping" / "train_mapping.txt").write_text(
        "\n".join(f"2011_09_26 {drive} 0000000000" for drive in drives) + "\n"
    )
    (tmp_path / "mapping" / "train_rand.txt").write_text(",".join(str(number + 1) for number in order))
    from vitrine.data.sources.vtab.structured import open_kitti as open_splits

    splits = open_splits(tmp_path, find_task("KITTI-Distance"))
    sides = {
        split: {drives[order[int(source.name(i)[-10:-4])]] for i in range(len(source))}
        for split, source in splits.items()
    }
    assert [len(sides[split]) for split in ("train", "val", "test")] == [
        16,
        2,
        2,
    ]  # a tenth of 20 drives each
    assert not sides["train"] & sides["val"] and not sides["train"] & sides["test"]
    assert not sides["val"] & sides["test"]


def test_small_norb_labels_are_azimuth_halved_and_elevation_and_the_left_image_is_used(tmp_path):
    info = files.make_smallnorb(tmp_path)
    for name, column, factor in (("sNORB-Azimuth", 2, 2), ("sNORB-Elevation", 1, 1)):
        data = open_task(tmp_path, find_task(name), **SMALL)
        assert len(data.test) == 18  # half of the testing files; the other half is val
        for source, part in ((data.train, "training"), (data.test, "testing")):
            for index in range(len(source)):
                number = int(source.name(index).split("/")[1])
                assert source.label(index) == info[part][number, column] // factor
                assert (source.read(index).data == number).all()  # the right image of each pair is all 255
        assert not {data.val.name(i) for i in range(4)} & {data.test.name(i) for i in range(18)}


def test_dmlab_records_are_read_without_tensorflow(tmp_path):
    image = files.make_dmlab(tmp_path)
    data = open_task(tmp_path, find_task("DMLab"), **SMALL)
    assert data.test.labels.tolist() == [0, 1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 0]
    assert data.test.read(7).data == image
    assert Preprocess(size=(8, 8))(data.test.read(0).data).shape == (3, 8, 8)


def test_a_dmlab_file_that_was_cut_short_is_refused(tmp_path):
    files.make_dmlab(tmp_path)
    file = tmp_path / "dmlab-test.tfrecord-00001-of-00002"
    file.write_bytes(file.read_bytes()[:-7])
    with pytest.raises(DataError, match=f"{file.name} .*DMLab: .*ends within a record"):
        open_task(tmp_path, find_task("DMLab"), **SMALL)


def test_retinopathy_takes_public_for_val_and_private_for_test(tmp_path):
    files.make_retinopathy(tmp_path)
    data = open_task(tmp_path, find_task("Retinopathy"), **SMALL)
    assert data.test.labels.tolist() == [4, 0, 1, 2, 3, 4]
    assert [data.test.name(i) for i in (0, 5)] == ["test/4_left.jpeg", "test/9_left.jpeg"]
    assert len(data.val) == 4


def test_svhn_is_read_from_matlab_files_and_ten_is_zero(tmp_path):
    images, digits = files.make_svhn(tmp_path)
    data = open_task(tmp_path, find_task("SVHN"), num_train=8, num_val=2)
    assert data.test.labels.tolist() == (digits.ravel() % 10).tolist()
    np.testing.assert_array_equal(data.test.read(3).data, images[:, :, :, 3])


def test_camelyon_is_read_from_hdf5_and_survives_a_trip_to_another_process(tmp_path):
    images = files.make_camelyon(tmp_path)
    data = open_task(tmp_path, find_task("Camelyon"), **SMALL)
    assert data.test.labels.tolist() == [0, 1] * 5
    np.testing.assert_array_equal(data.test.read(3).data, images[3])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(data.test)).read(3).data, images[3])


def test_class_folders_are_split_in_the_tasks_proportions_without_overlap(tmp_path):
    files.make_class_folders(tmp_path, 10, 10)
    data = open_task(tmp_path, find_task("EuroSAT"), num_train=60, num_val=20)
    assert [len(part) for part in (data.train, data.val, data.test)] == [60, 20, 20]
    names = [{part.name(i) for i in range(len(part))} for part in (data.train, data.val, data.test)]
    assert len(set.union(*names)) == 100
    again = open_task(tmp_path, find_task("EuroSAT"), num_train=60, num_val=20)
    assert names[0] == {again.train.name(i) for i in range(60)}


def test_caltech_trains_on_thirty_of_each_class(tmp_path):
    from vitrine.data.sources.opening import open_kind

    files.make_class_folders(tmp_path, 3, 35)
    splits = complete_splits(open_kind(tmp_path), find_task("Caltech101"), seed=0)
    train = np.concatenate([splits["train"].labels, splits["val"].labels])
    assert np.bincount(train).tolist() == [30, 30, 30]
    assert np.bincount(splits["test"].labels).tolist() == [5, 5, 5]


def test_class_folders_inside_one_more_folder_are_found(tmp_path):
    files.make_class_folders(tmp_path / "2750", 10, 4)
    data = open_task(tmp_path, find_task("EuroSAT"), num_train=8, num_val=4)
    assert len(data.test.classes) == 10


def test_dtd_takes_the_first_of_its_own_splits(tmp_path):
    files.make_class_folders(tmp_path / "images", 47, 3)
    (tmp_path / "labels").mkdir()
    for number, split in enumerate(("train", "val", "test")):
        lines = [f"class_{k:03d}/{number}.png" for k in range(47)]
        (tmp_path / "labels" / f"{split}1.txt").write_text("\n".join(lines) + "\n")
    data = open_task(tmp_path, find_task("DTD"), **SMALL)
    assert data.test.labels.tolist() == list(range(47))
    assert {data.test.name(i)[-5:] for i in range(47)} == {"2.png"}
    assert {data.train.name(i)[-5:] for i in range(8)} == {"0.png"}


def test_flowers_takes_its_own_train_val_and_test(tmp_path):
    count = 204
    labels = np.arange(count) % 102 + 1
    for number in range(1, count + 1):
        files.picture(tmp_path / "jpg" / f"image_{number:05d}.jpg")
    numbers = np.arange(1, count + 1)
    sets = {"trnid": numbers[:20], "valid": numbers[20:30], "tstid": numbers[30:]}
    savemat(tmp_path / "imagelabels.mat", {"labels": labels[None].astype(np.uint8)})
    savemat(tmp_path / "setid.mat", {name: rows[None].astype(np.uint16) for name, rows in sets.items()})
    data = open_task(tmp_path, find_task("Flowers102"), **SMALL)
    assert data.test.labels.tolist() == (labels[30:] - 1).tolist()
    assert all(int(data.val.name(i)[-9:-4]) in sets["valid"] for i in range(4))


def test_cifar_100_takes_the_fine_labels(tmp_path):
    files.make_cifar100(tmp_path)
    data = open_task(tmp_path, find_task("CIFAR-100"), num_train=200, num_val=20)
    assert data.test.labels.tolist() == [number % 100 for number in range(300)]
    assert len(data.train) == 200


def test_pets_are_37_breeds_with_their_own_test_list(tmp_path):
    files.make_pets(tmp_path)
    data = open_task(tmp_path, find_task("Pets"), num_train=60, num_val=20)
    assert np.bincount(data.test.labels).tolist() == [4] * 37
    assert {int(data.test.name(i).rpartition("_")[2][:-4]) for i in range(148)} == {0, 1, 2, 3}
    assert {int(data.trainval.name(i).rpartition("_")[2][:-4]) for i in range(80)} == {4, 5, 6, 7}


@pytest.mark.parametrize("has_lists", [True, False])
def test_sun397_reads_nested_classes_and_the_lists_where_they_are_there(tmp_path, has_lists):
    classes = [f"/a/scene_{k:03d}" for k in range(396)] + ["/b/bakery/shop"]
    paths = [f"{name}/sun_{number}.jpg" for name in classes for number in range(2)]
    for path in paths:
        files.picture(tmp_path / path.strip("/"))
    (tmp_path / "ClassName.txt").write_text("\n".join(classes) + "\n")
    if has_lists:
        for name, part in {"tr": paths[:300], "va": paths[300:400], "te": paths[400:]}.items():
            (tmp_path / f"sun397_tfds_{name}.txt").write_text("\n".join(part) + "\n")
    data = open_task(tmp_path, find_task("Sun397"), **SMALL)
    if has_lists:
        assert data.test.labels.tolist() == [k for k in range(200, 397) for _ in range(2)]
    for index in range(len(data.test)):
        folder = data.test.name(index).rpartition("/")[0]
        assert classes[data.test.label(index)].strip("/") == folder


def test_tasks_are_found_by_any_of_their_folders_and_missing_ones_are_none(tmp_path):
    for name in ("cifar100", "clevr", "smallnorb_azi"):
        (tmp_path / name).mkdir()
    folders = find_folders(tmp_path)
    present = {name for name, path in folders.items() if path is not None}
    assert present == {"CIFAR-100", "Clevr-Count", "Clevr-Dist", "sNORB-Azimuth"}
    with pytest.raises(DataError, match="no such folder"):
        find_folders(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="no task 'petz'") as refused:
        find_task("petz")
    assert refused.value.suggestions == ("Pets",)


def test_what_is_unfinished_is_refused_in_one_sentence(tmp_path):
    def refuse(folder, task, message, **options):
        with pytest.raises(DataError, match=message):
            open_task(folder, find_task(task), **(SMALL | options))

    files.make_lists(tmp_path / "lists", 47)
    (tmp_path / "lists" / "images" / "test" / "000003.jpg").unlink()
    refuse(tmp_path / "lists", "DTD", "DTD is incomplete: .*000003.jpg is listed for test and missing")
    (tmp_path / "lists" / "test.txt").unlink()
    refuse(tmp_path / "lists", "DTD", "lists is incomplete: test.txt is missing")
    files.make_lists(tmp_path / "other", 60, counts={"train800": 60, "val200": 4, "test": 4})
    refuse(tmp_path / "other", "DTD", "labels from 0 to 59 for train, but DTD has 0 to 46")
    files.make_class_folders(tmp_path / "few", 10, 2)
    refuse(tmp_path / "few", "EuroSAT", "has 12 images of EuroSAT for train, fewer than 60", num_train=60)
    refuse(tmp_path / "few", "Resisc45", "has 10 classes, but Resisc45 has 45", num_train=2, num_val=2)
    files.make_svhn(tmp_path / "svhn")
    (tmp_path / "svhn" / "test_32x32.mat").unlink()
    refuse(tmp_path / "svhn", "SVHN", "test_32x32.mat is missing")
    files.make_smallnorb(tmp_path / "norb")
    next((tmp_path / "norb").glob("*testing-info.mat")).unlink()
    refuse(tmp_path / "norb", "sNORB-Azimuth", "testing-info.mat is missing")
    files.make_clevr(tmp_path / "clevr", {"train": [[9.0] * 3] * 20})
    refuse(tmp_path / "clevr", "Clevr-Count", "CLEVR_val_scenes.json is missing")
    files.make_camelyon(tmp_path / "pcam")
    (tmp_path / "pcam" / "camelyonpatch_level_2_split_test_y.h5").unlink()
    refuse(tmp_path / "pcam", "Camelyon", "split_test_y.h5 is missing")


def test_damaged_archives_are_refused_in_one_sentence(tmp_path):
    files.make_dsprites(tmp_path, suffix="npz")
    file = next(tmp_path.glob("*.npz"))
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(DataError, match="cannot be read as dSprites"):
        open_task(tmp_path, find_task("dSprites-Location"), **SMALL)
    files.make_smallnorb(tmp_path / "norb")
    broken = next((tmp_path / "norb").glob("*training-dat.mat"))
    broken.write_bytes(b"\0" * 64)
    with pytest.raises(DataError, match=f"{broken.name} .*small NORB's format"):
        open_task(tmp_path / "norb", find_task("sNORB-Elevation"), **SMALL)
    files.make_clevr(tmp_path / "clevr", {"train": [[9.0] * 3] * 20, "val": [[9.0] * 3] * 5})
    scenes = tmp_path / "clevr" / "scenes" / "CLEVR_val_scenes.json"
    scenes.write_text(scenes.read_text()[:150])
    with pytest.raises(DataError, match=f"{scenes.name} .*not a complete file"):
        open_task(tmp_path / "clevr", find_task("Clevr-Count"), **SMALL)


def test_hdf5_without_h5py_says_what_to_install(tmp_path, monkeypatch):
    files.make_camelyon(tmp_path)
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'vitrine\[vtab\]'"):
        open_task(tmp_path, find_task("Camelyon"), **SMALL)
