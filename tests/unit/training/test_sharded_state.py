"""A sharded run's folder from somebody else: its table of contents is a pickle, and must not run anything."""

import os
import pickle
import warnings
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.state_dict_saver import save

from vitrine.errors import CheckpointError
from vitrine.training.saving import weights_of
from vitrine.training.sharded_state import CONTENTS, require_plain

TENSORS = {
    "model.weight": torch.arange(6.0).view(2, 3),
    "model.half": torch.ones(2, dtype=torch.bfloat16),
    "model.count": torch.tensor(3),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that one process saves alone is meant
        save(dict(TENSORS), checkpoint_id=tmp_path / "last", no_dist=True)
    return tmp_path / "last"


class Hostile:
    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> object:
        return os.mkdir, (str(self.place),)


def test_what_torch_writes_is_read(folder: Path) -> None:
    require_plain(folder)
    found = weights_of(folder)
    assert found.keys() == {"weight", "half", "count"}
    for name, value in found.items():
        assert torch.equal(value, TENSORS[f"model.{name}"])


def test_a_table_of_contents_that_would_run_code_is_refused_and_runs_nothing(folder: Path) -> None:
    done = folder / "done"
    (folder / CONTENTS).write_bytes(pickle.dumps(Hostile(done)))
    with pytest.raises(CheckpointError, match=r"not a training state that can be read.*mkdir.*may run code"):
        weights_of(folder)
    assert not done.exists()


@pytest.mark.parametrize(
    "call",
    [(torch.load, "file"), (torch.hub.load, "file"), (getattr, "file")],
    ids=lambda call: call[0].__name__,
)
def test_torchs_own_functions_are_no_way_in(folder: Path, call: tuple[object, str]) -> None:
    class Asking:
        def __reduce__(self) -> object:
            return call[0], (call[1],)

    (folder / CONTENTS).write_bytes(pickle.dumps(Asking()))
    with pytest.raises(CheckpointError, match="may run code"):
        require_plain(folder)


def test_a_table_that_is_cut_short_or_missing_is_said(folder: Path) -> None:
    whole = (folder / CONTENTS).read_bytes()
    (folder / CONTENTS).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match="not a training state that can be read"):
        require_plain(folder)
    (folder / CONTENTS).unlink()
    with pytest.raises(CheckpointError, match="not a training state that can be read"):
        require_plain(folder)
