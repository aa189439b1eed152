"""Two nodes of Ray write the bytes that one process writes, and resume what it began."""

import hashlib
import os
import sys
from pathlib import Path

import pytest
import torch
from pictures import photo, save

import vitrine
from vitrine.data.preparing.preprocess import Preprocess

pytest.importorskip("pyarrow")
CPU = {"device": "cpu", "part_size": 8, "batch_size": 4}


def hashes(folder: Path) -> dict[str, str]:
    files = (file for file in sorted(folder.rglob("*")) if file.is_file())
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.mark.slow
def test_two_ray_nodes_write_the_bytes_of_one_process_and_resume_it(tmp_path, monkeypatch):
    ray = pytest.importorskip("ray")
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    # Wherever Ray is installed: its processes start with this path.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(vitrine.__file__).parents[1]), *sys.path]))
    for number in range(29):
        save(tmp_path / "photos" / f"{number:02d}.png", photo(number, 20, 18))
    (tmp_path / "photos" / "bad.png").write_text("no picture")
    torch.manual_seed(0)
    model = vitrine.create_model(
        "ViT", width=8, depth=1, num_heads=1, mlp_width=8, image_size=16, patch_size=8, num_classes=3
    )
    vitrine.save(model, tmp_path / "model", preprocess=Preprocess(size=(16, 16)))
    words = (str(tmp_path / "model"), str(tmp_path / "photos"))
    vitrine.embed(*words, out=tmp_path / "here", workers=0, **CPU)
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    try:
        cluster.add_node(num_cpus=2)
        ray.init(address=cluster.address, log_to_driver=False)
        assert len([node for node in ray.nodes() if node["Alive"]]) == 2
        vitrine.embed(*words, out=tmp_path / "there", part="1/4", workers=0, **CPU)
        done = vitrine.embed(*words, out=tmp_path / "there", engine="ray", **CPU)
        assert (done.parts.num_skipped, done.parts.num_computed) == (8, 22)
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert hashes(tmp_path / "there") == hashes(tmp_path / "here")
