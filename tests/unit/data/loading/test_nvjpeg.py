from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from unit.data.pictures import encoded, smooth

from vitrine.data.decoding.decode import decode
from vitrine.data.loading import nvjpeg as decode_cuda
from vitrine.data.loading.nvjpeg import CUDA_TOLERANCE, fitting_layout, nvjpeg, render_rows, require_nvjpeg
from vitrine.data.preparing.training_view import TrainView
from vitrine.data.randomness import uniforms
from vitrine.data.sources.source import Example
from vitrine.errors import ConfigError, DataError

# Large enough that the CPU decodes at full size, too.
VIEW = TrainView(size=(96, 96))
CPU = torch.device("cpu")


def fake_nvjpeg(files, *, device):
    """Decode as nvJPEG would, by the CPU."""
    return [torch.from_numpy(decode(data).copy()).permute(2, 0, 1).contiguous() for data in files]


def examples_of(*files):
    return [
        Example(data=data, label=0, name=f"{number}.jpg") if isinstance(data, bytes) else data
        for number, data in enumerate(files)
    ]


def numbers_for(count):
    return uniforms(0, stream="view", epochs=0, positions=np.arange(count), count=VIEW.num_uniforms)


def by_workers(example, numbers):
    out = torch.empty(3, *VIEW.size, dtype=torch.uint8)
    VIEW.render(example.data, name=example.name, numbers=numbers, out=out)
    return out


def test_only_plain_upright_colour_jpegs_go_to_nvjpeg(monkeypatch):
    picture = smooth(40, 50)
    layout = fitting_layout(encoded(picture, "JPEG"))
    assert layout is not None and (layout.height, layout.width) == (40, 50)
    assert fitting_layout(encoded(picture, "JPEG", progressive=True)) is None
    assert fitting_layout(encoded(picture, "PNG")) is None
    assert fitting_layout(encoded(picture[:, :, 0], "JPEG")) is None
    assert fitting_layout(encoded(picture, "JPEG")[:-9]) is None
    assert fitting_layout(picture) is None
    exif = Image.Exif()
    exif[0x0112] = 6
    assert fitting_layout(encoded(picture, "JPEG", exif=exif)) is None
    monkeypatch.setattr(decode_cuda, "_MOST_PIXELS", 40 * 50 - 1)
    assert fitting_layout(encoded(picture, "JPEG")) is None


def test_jpegs_that_store_rgb_are_left_to_the_cpu():
    # Without its own colour transform, a file says so by its components' names, or in Adobe's marker.
    data = encoded(smooth(40, 50), "JPEG", keep_rgb=True)
    assert fitting_layout(data) is None
    adobe = b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00"
    plain = encoded(smooth(40, 50), "JPEG")
    assert fitting_layout(plain[:2] + adobe + b"\x01" + plain[2:]) is not None
    assert fitting_layout(plain[:2] + adobe + b"\x00" + plain[2:]) is None


def test_views_made_on_the_device_are_those_of_the_workers(monkeypatch):
    monkeypatch.setattr(decode_cuda, "nvjpeg", fake_nvjpeg)
    monkeypatch.setattr(decode_cuda, "_MOST_AT_ONCE", 3 * 60 * 60)  # two calls
    files = [encoded(smooth(50 + n, 60, seed=n), "JPEG") for n in range(4)]
    files.append(encoded(smooth(30, 40), "PNG"))
    examples, numbers = examples_of(*files), numbers_for(5)
    found = render_rows(examples, numbers=numbers, view=VIEW, device=CPU)
    assert found.num_by_cpu == 1 and not found.failures
    for row, (example, own) in enumerate(zip(examples, numbers, strict=True)):
        # Floats against whole numbers, and the CPU stops decoding below the crop.
        assert (by_workers(example, own).int() - found.images[row].int()).abs().max() <= 2


def test_what_cannot_be_read_is_black_and_named_by_row(monkeypatch):
    monkeypatch.setattr(decode_cuda, "nvjpeg", fake_nvjpeg)
    good = encoded(smooth(50, 60), "JPEG")
    files = [good, DataError("gone.jpg is missing"), b"", good[:200]]
    rows = render_rows(examples_of(*files), numbers=numbers_for(4), view=VIEW, device=CPU)
    assert list(rows.failures) == [1, 2, 3]
    assert rows.failures[1] == "gone.jpg is missing"
    assert rows.failures[2] == "2.jpg is empty (0 bytes)"
    assert rows.failures[3].startswith("3.jpg is a damaged JPEG")
    assert rows.images[0].sum() > 0 and rows.images[1:].sum() == 0


def test_a_file_that_nvjpeg_refuses_does_not_take_its_company_along(monkeypatch):
    files = [encoded(smooth(50, 60, seed=n), "JPEG") for n in range(3)]

    def decode_jpeg(packed, *, mode, device):
        if any(bytes(data.numpy()) == files[1] for data in packed):
            raise RuntimeError("nvJPEG: status 6")
        return fake_nvjpeg([bytes(data.numpy()) for data in packed], device=device)

    monkeypatch.setattr(decode_cuda, "_torchvision_io", lambda: SimpleNamespace(decode_jpeg=decode_jpeg))
    assert [image is None for image in nvjpeg(files, device=CPU)] == [False, True, False]
    examples, numbers = examples_of(*files), numbers_for(3)
    found = render_rows(examples, numbers=numbers, view=VIEW, device=CPU)
    assert found.num_by_cpu == 1 and not found.failures
    assert torch.equal(found.images[1], by_workers(examples[1], numbers[1]))


def test_a_machine_without_cuda_is_refused():
    with pytest.raises(ConfigError, match=r"device_share .*CUDA device, got cpu"):
        require_nvjpeg(CPU)


def test_a_torchvision_without_nvjpeg_is_refused_with_its_reason(monkeypatch):
    def decode_jpeg(packed, *, mode, device):
        raise RuntimeError("decode_jpegs_cuda: torchvision not compiled with nvJPEG support\nmore")

    monkeypatch.setattr(decode_cuda, "_torchvision_io", lambda: SimpleNamespace(decode_jpeg=decode_jpeg))
    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda device: SimpleNamespace(synchronize=lambda: None)
    )
    with pytest.raises(ConfigError, match=r"nvJPEG \(decode_jpegs_cuda: .*\); .*device_share 0"):
        require_nvjpeg(torch.device("cuda"))


@pytest.mark.gpu
def test_nvjpegs_pixels_are_the_cpus_within_the_tolerance():
    files = [encoded(smooth(120, 160 + n, seed=n), "JPEG", quality=92) for n in range(5)]
    for data, image in zip(files, nvjpeg(files, device=torch.device("cuda")), strict=True):
        assert image is not None
        difference = np.abs(image.permute(1, 2, 0).cpu().numpy().astype(int) - decode(data))
        assert difference.mean() < CUDA_TOLERANCE


@pytest.mark.gpu
def test_views_by_nvjpeg_are_those_of_the_workers_within_the_tolerance():
    files = [encoded(smooth(120 + 9 * n, 160, seed=n), "JPEG", quality=92) for n in range(40)]
    examples, numbers = examples_of(*files), numbers_for(40)
    found = render_rows(examples, numbers=numbers, view=VIEW, device=torch.device("cuda"))
    assert found.num_by_cpu == 0 and not found.failures
    for row, (example, own) in enumerate(zip(examples, numbers, strict=True)):
        difference = (by_workers(example, own).float() - found.images[row].cpu().float()).abs()
        assert difference.mean() < CUDA_TOLERANCE
