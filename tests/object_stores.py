"""Object stores on loopback: moto for S3, gcp-storage-emulator for Google's, Azurite for Azure's.

None of them is a dependency; tests are skipped where one is missing:
`pip install moto[server] s3fs gcp-storage-emulator gcsfs adlfs` and `npm install -g azurite`.
"""

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator

import pytest

BUCKET = "bucket"
# The account that every Azurite has, as its documentation gives it.
AZURITE = (
    "DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey=Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2"
    "UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==;BlobEndpoint=http://127.0.0.1:{port}/devstoreaccount1;"
)


@contextlib.contextmanager
def open_s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Give the address of an empty bucket of moto's server."""
    boto3, server = pytest.importorskip("boto3"), pytest.importorskip("moto.server")
    pytest.importorskip("s3fs").S3FileSystem.clear_instance_cache()  # those of an earlier server
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{running.get_host_and_port()[1]}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    boto3.client("s3").create_bucket(Bucket=BUCKET)
    yield f"s3://{BUCKET}"
    running.stop()


@contextlib.contextmanager
def open_gs(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Give the address of an empty bucket of gcp-storage-emulator."""
    emulator = pytest.importorskip("gcp_storage_emulator.server")
    pytest.importorskip("gcsfs").GCSFileSystem.clear_instance_cache()
    port = free_port()
    running = emulator.create_server("127.0.0.1", port, in_memory=True, default_bucket=BUCKET)
    running.start()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
    yield f"gs://{BUCKET}"
    running.stop()


@contextlib.contextmanager
def open_az(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Give the address of an empty container of Azurite."""
    adlfs = pytest.importorskip("adlfs")
    program = shutil.which("azurite-blob")
    if program is None:
        pytest.skip("azurite-blob is not installed")
    adlfs.AzureBlobFileSystem.clear_instance_cache()
    port = free_port()
    command = [program, "--blobPort", str(port), "--inMemoryPersistence", "--skipApiVersionCheck"]
    running = subprocess.Popen([*command, "--silent", "--disableTelemetry"], stdout=subprocess.DEVNULL)
    try:
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", AZURITE.format(port=port))
        wait_for(port)
        adlfs.AzureBlobFileSystem(connection_string=AZURITE.format(port=port)).mkdir(BUCKET)
        yield f"az://{BUCKET}"
    finally:
        running.terminate()
        running.wait()


def free_port() -> int:
    """Return a port of this machine that nobody listens at."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def wait_for(port: int, *, seconds: float = 30) -> None:
    """Wait until somebody listens."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.2)
    raise TimeoutError(f"nobody listens at port {port}")


STORES = {"s3": open_s3, "gs": open_gs, "az": open_az}
