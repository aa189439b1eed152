"""Tests that need a GPU are left out where there is none, however pytest is called; kernels run in an interpreter."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    # Read when Triton is first imported, by whichever test that is.
    os.environ["TRITON_INTERPRET"] = "1"

# As those in processes of their own do (journeys/commandline.py): the number of threads decides the last bits.
torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
