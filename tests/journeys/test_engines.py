"""The scripts of docs/guides/engines: Spark, Dask and Daft give the rows that the callable gives in this process.

Each is skipped where its engine is not installed; none of them is a dependency.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from pictures import photo, save

import vitrine
from vitrine.data.preparing.preprocess import Preprocess

from .commandline import SOURCE

parquet = pytest.importorskip("pyarrow.parquet")
SCRIPTS = Path(__file__).parents[2] / "docs" / "guides" / "engines"


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["pyspark", "dask", "daft"])
def test_the_script_of_an_engine_writes_the_rows_of_the_callable(engine, tmp_path):
    pytest.importorskip(engine)
    photos = tmp_path / "photos"
    for number in range(40):
        save(photos / "abc"[number % 3] / f"{number:02d}.jpg", photo(number, 40, 36))
    (photos / "bad.jpg").write_text("no picture")
    torch.manual_seed(0)
    model = vitrine.create_model("ViT-Ti/16", image_size=32, depth=1, num_classes=3)
    torch.nn.init.normal_(model.head.weight)
    vitrine.save(model, tmp_path / "model", preprocess=Preprocess(size=(32, 32)), classes=("x", "y", "z"))

    script = SCRIPTS / f"with_{engine.removeprefix('py')}.py"
    roots = os.pathsep.join([str(SOURCE), *sys.path])
    environment = {
        **os.environ,
        "PYTHONPATH": roots,
        "PYSPARK_PYTHON": sys.executable,
        "OMP_NUM_THREADS": "1",
    }
    words = [sys.executable, script, tmp_path / "model", photos, tmp_path / "out"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]

    rows = parquet.read_table(tmp_path / "out").to_pylist()
    assert len(rows) == 41
    rows.sort(key=lambda row: row["path"])
    files = sorted(str(file) for file in photos.rglob("*.jpg"))
    here = vitrine.BatchPredictor(str(tmp_path / "model"), device="cpu")({"path": files})
    for number, row in enumerate(rows):
        assert row["path"].endswith(files[number])
        assert (row["error"] is None) == (here["error"][number] is None)
        if row["error"] is None:
            assert row["predicted"] == here["predicted"][number]
            np.testing.assert_allclose(row["embedding"], here["embedding"][number], rtol=0, atol=1e-5)
