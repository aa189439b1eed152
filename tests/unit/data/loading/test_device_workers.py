import numpy as np
import pytest
import torch
from unit.data.pictures import encoded, save, smooth

from vitrine.data.decoding.decode import decode
from vitrine.data.loading import device_workers
from vitrine.data.loading import nvjpeg as decode_cuda
from vitrine.data.loading.device_workers import rows_on_device
from vitrine.data.loading.loader import Loader
from vitrine.data.loading.nvjpeg import CUDA_TOLERANCE
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.data.preparing.training_view import TrainView
from vitrine.data.sources.opening import open_source
from vitrine.errors import ConfigError, DataError
from vitrine.runtime.progress import listening

# Large enough that the workers decode at full size, too.
VIEW = TrainView(size=(64, 64))


@pytest.fixture
def without_cuda(monkeypatch):
    """Let the CPU stand in for nvJPEG."""

    def nvjpeg(files, *, device):
        return [torch.from_numpy(decode(data).copy()).permute(2, 0, 1).contiguous() for data in files]

    monkeypatch.setattr(decode_cuda, "nvjpeg", nvjpeg)
    monkeypatch.setattr(device_workers, "require_nvjpeg", lambda device: None)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    root = tmp_path_factory.mktemp("photos")
    for number in range(30):
        save(root / f"class{number % 3}" / f"{number:02d}.jpg", seed=number, height=160 + number, width=200)
    return root


def collect(root, *, stop_step=6, batch_size=8, **options):
    with Loader(open_source(root), VIEW, batch_size=batch_size, seed=4, **options) as loader:
        return list(loader.training_batches(stop_step=stop_step))


@pytest.mark.parametrize("share", [0.0, 0.25, 0.37, 1.0])
def test_the_share_is_kept_and_depends_on_the_position_alone(share):
    positions = np.arange(1000)
    is_device = rows_on_device(positions, share=share)
    assert abs(is_device.sum() - 1000 * share) <= 1
    # Evenly: any run of twenty has its share, give or take one.
    runs = np.convolve(is_device, np.ones(20), mode="valid")
    assert runs.min() >= np.floor(20 * share) - 1 and runs.max() <= np.ceil(20 * share) + 1
    assert np.array_equal(rows_on_device(positions[500:], share=share), is_device[500:])


@pytest.mark.parametrize("share", [0.5, 1.0])
@pytest.mark.parametrize("workers", [{"num_workers": 0}, {"num_workers": 2}])
def test_rows_from_the_device_stand_where_they_belong(without_cuda, photos, share, workers):
    alone, shared = collect(photos, num_workers=0), collect(photos, device_share=share, **workers)
    for expected, batch in zip(alone, shared, strict=True):
        is_device = rows_on_device(batch.rows.positions, share=share)
        assert torch.equal(batch.labels, expected.labels)
        assert torch.equal(batch.images[~is_device], expected.images[~is_device])
        assert (batch.images.int() - expected.images.int()).abs().max() <= 2


def test_rows_from_the_device_join_those_of_processes(without_cuda, photos):
    alone = collect(photos, num_workers=0, device_share=0.5)
    shared = collect(photos, num_workers=1, worker_kind="processes", device_share=0.5)
    for expected, batch in zip(alone, shared, strict=True):
        assert torch.equal(batch.images, expected.images)


def test_any_number_of_processes_decodes_the_same_rows_on_the_device(without_cuda, photos):
    alone = collect(photos, num_workers=0, device_share=0.4)
    parts = [collect(photos, num_workers=0, device_share=0.4, rank=rank, world_size=2) for rank in range(2)]
    for whole, *halves in zip(alone, *parts, strict=True):
        together = torch.cat([half.images for half in halves])
        # Company in a group may change which way a half is rounded.
        assert (together.int() - whole.images.int()).abs().max() <= 1


def test_bad_files_are_named_wherever_they_are_decoded(without_cuda, photos, tmp_path):
    for number in range(8):
        save(tmp_path / "a" / f"{number}.jpg", seed=number, height=40, width=50)
    for number in (2, 3):
        (tmp_path / "a" / f"{number}.jpg").write_bytes(b"")
    (batch,) = collect(tmp_path, stop_step=1, num_workers=0, device_share=0.5, keep_going=True)
    bad = {row: int(index) for row, index in enumerate(batch.rows.indices) if index in (2, 3)}
    assert batch.failures == {row: f"a/{index}.jpg is empty (0 bytes)" for row, index in bad.items()}
    assert all(batch.images[row].sum() == 0 for row in bad)
    with pytest.raises(DataError, match=rf"^a/{bad[min(bad)]}\.jpg is empty"):
        collect(tmp_path, stop_step=1, num_workers=0, device_share=0.5)


def test_leaving_early_leaves_the_loader_usable(without_cuda, photos):
    with Loader(open_source(photos), VIEW, batch_size=8, num_workers=1, device_share=0.5) as loader:
        for _ in range(3):
            batches = loader.training_batches()
            next(batches)
            batches.close()
        assert len(next(loader.training_batches()).images) == 8


def test_files_that_are_not_for_the_device_are_spoken_of_once(without_cuda, tmp_path):
    class Heard:
        def __init__(self):
            self.said = []

        def notice(self, text, advice=()):
            self.said.append(text)

    for number in range(8):
        (tmp_path / "a").mkdir(exist_ok=True)
        (tmp_path / "a" / f"{number}.png").write_bytes(encoded(smooth(30, 40, seed=number)))
    heard = Heard()
    with listening(heard):
        collect(tmp_path, stop_step=3, num_workers=0, device_share=1.0)
    assert len(heard.said) == 1 and heard.said[0].startswith("nvJPEG cannot decode most")


def test_nonsense_is_refused(photos):
    source = open_source(photos)
    with pytest.raises(ConfigError, match=r"device_share .*got 1\.5"):
        Loader(source, VIEW, batch_size=8, device_share=1.5)
    with pytest.raises(ConfigError, match=r"device_share .*CUDA device, got cpu"):
        Loader(source, VIEW, batch_size=8, device_share=0.5)
    with pytest.raises(ConfigError, match=r"device_share .*the inception crop"):
        Loader(source, Preprocess(size=(16, 16)), batch_size=8, device_share=0.5)


@pytest.mark.gpu
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_rows_decoded_on_cuda_are_the_cpus_within_the_tolerance(photos, share):
    alone = collect(photos, num_workers=0)
    shared = collect(photos, num_workers=2, device="cuda", device_share=share)
    for expected, batch in zip(alone, shared, strict=True):
        images = batch.images.cpu()
        is_device = rows_on_device(batch.rows.positions, share=share)
        assert torch.equal(images[~is_device], expected.images[~is_device])
        difference = (images.float() - expected.images.float()).abs().mean(dim=(1, 2, 3))
        assert difference.max() < CUDA_TOLERANCE


@pytest.mark.gpu
def test_batches_from_the_device_are_the_same_each_time_however_busy_it_is(photos):
    # Memory given out too early would show here: a stream full of products runs beside.
    work = torch.randn(4096, 4096, device="cuda")
    options = {"stop_step": 40, "batch_size": 24, "device": "cuda", "device_share": 1.0, "num_workers": 0}
    first = [batch.images.cpu() for batch in collect(photos, **options)]
    with Loader(open_source(photos), VIEW, batch_size=24, seed=4, **{
        name: value for name, value in options.items() if name not in ("stop_step", "batch_size")
    }) as loader:  # fmt: skip
        for expected, batch in zip(first, loader.training_batches(stop_step=40), strict=True):
            for _ in range(4):
                work = (work @ work).clamp_(-1, 1)
            assert torch.equal(batch.images.cpu(), expected)
