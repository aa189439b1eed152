import numpy as np
import pytest
import torch
from unit.data.pictures import encoded, smooth

from vitrine.data.decode import decode
from vitrine.data.decode_cuda import CUDA_TOLERANCE, _suits, decode_batch, render_batch
from vitrine.data.randomness import uniforms
from vitrine.data.view import TrainView
from vitrine.errors import DataError


def test_only_plain_upright_colour_jpegs_go_to_nvjpeg():
    picture = smooth(40, 50)
    assert _suits(encoded(picture, "JPEG"), "x")
    assert not _suits(encoded(picture, "JPEG", progressive=True), "x")
    assert not _suits(encoded(picture, "PNG"), "x")
    assert not _suits(encoded(picture[:, :, 0], "JPEG"), "x")
    assert not _suits(encoded(picture, "JPEG")[:-9], "x")
    assert not _suits(picture, "x")


def test_what_nvjpeg_cannot_take_is_decoded_by_the_cpu_and_counted():
    files = [encoded(smooth(20, 30, seed=n), "PNG") for n in range(3)]
    batch = decode_batch(files, names=["a", "b", "c"], device=torch.device("cpu"))
    assert batch.num_by_cpu == 3
    for data, image in zip(files, batch.images, strict=True):
        assert np.array_equal(image.permute(1, 2, 0).numpy(), decode(data))


def test_a_bad_file_is_named():
    with pytest.raises(DataError, match=r"^b\.jpg is empty"):
        decode_batch([b""], names=["b.jpg"], device=torch.device("cpu"))


def test_views_made_on_the_device_are_those_of_the_workers():
    view = TrainView(size=(24, 24))
    pictures = [smooth(50 + n, 60, seed=n) for n in range(4)]
    numbers = uniforms(0, stream="view", epochs=0, positions=np.arange(4), count=view.num_uniforms)
    found, _ = render_batch(view, pictures, names=["x"] * 4, numbers=numbers, device=torch.device("cpu"))
    for row in range(4):
        out = torch.empty(3, 24, 24, dtype=torch.uint8)
        view.render(pictures[row], name="x", numbers=numbers[row], out=out)
        assert (out.float() - found[row].float()).abs().max() <= 2  # floats against whole numbers


@pytest.mark.gpu
def test_nvjpegs_pixels_are_the_cpus_within_the_tolerance():
    files = [encoded(smooth(120, 160, seed=n), "JPEG", quality=92) for n in range(5)]
    files.append(encoded(smooth(50, 50), "PNG"))
    batch = decode_batch(files, names=["x"] * 6, device=torch.device("cuda"))
    assert batch.num_by_cpu == 1
    for data, image in zip(files, batch.images, strict=True):
        difference = np.abs(image.permute(1, 2, 0).cpu().numpy().astype(int) - decode(data))
        assert difference.mean() < CUDA_TOLERANCE
