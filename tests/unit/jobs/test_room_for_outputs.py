import pytest

import vitrine.jobs.test_images as images
from vitrine.errors import DataError
from vitrine.jobs.test_images import require_memory

GIB = 2**30


class Pictures:
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count


@pytest.fixture
def machine(monkeypatch):
    monkeypatch.setattr(images, "memory_of", lambda device: 16 * GIB)


def test_a_test_set_whose_outputs_exceed_the_memory_is_refused_with_the_way_in_parts(machine):
    with pytest.raises(DataError) as refused:
        require_memory(Pictures(100_000_000), num_outputs=1000, model="run", data="photos")
    assert [(one.verb, one.arguments, one.options) for one in refused.value.advice] == [
        ("predict", ("run", "photos"), {"out": "answers"}),
        ("evaluate", ("answers",), {}),
    ]


@pytest.mark.parametrize(("count", "fits"), [(GIB // 1000, True), (GIB // 1000 + 1, False)])
def test_outputs_may_take_a_quarter_of_the_memory(machine, count, fits):
    if fits:
        require_memory(Pictures(count), num_outputs=1000, model="run", data="photos")
        return
    with pytest.raises(DataError, match="16 GiB"):
        require_memory(Pictures(count), num_outputs=1000, model="run", data="photos")


def test_a_machine_that_does_not_report_its_memory_refuses_nothing(monkeypatch):
    monkeypatch.setattr(images, "memory_of", lambda device: None)
    require_memory(Pictures(10**12), num_outputs=1000, model="run", data="photos")
