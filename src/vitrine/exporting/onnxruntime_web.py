"""onnxruntime-web, which runs a model in a browser: from npm's registry, checked, and copied with its licence.

One version is pinned by its SHA-256. Two of its builds are copied: WebAssembly for every browser, and WebGPU.
"""

import os
import tarfile
from importlib import metadata
from pathlib import Path

from vitrine.errors import DownloadError, MissingDataError, TryOption
from vitrine.runtime.cache import cache_folder
from vitrine.runtime.download import download
from vitrine.runtime.files import write_atomically

VERSION = "1.30.0"
SHA256 = "d2228df7e4616bc3348bf504ee888f3bec43789a273f0a63f3e68d203ce3bf71"
BYTES = 33_106_585
REGISTRY_VARIABLE, REGISTRY = "NPM_CONFIG_REGISTRY", "https://registry.npmjs.org"
"""npm's own variable, which companies set to their own registry."""
WASM = ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")
WEBGPU = ("ort.jspi.min.mjs", "ort-wasm-simd-threaded.jspi.mjs", "ort-wasm-simd-threaded.jspi.wasm")
LICENCES = ("LICENSE", "ThirdPartyNotices.txt")


def find_onnxruntime_web(folder: Path | None = None) -> dict[str, bytes]:
    """Return the files by their new names: from an unpacked package, or else from npm's registry.

    `.mjs` becomes `.js`: some static hosts have no content type for `.mjs`, and browsers then refuse to run it.
    """
    read = _from_package() if folder is None else _from_folder(folder)
    files = {name.replace(".mjs", ".js"): data for name, data in read.items()}
    return files | _licences()


def _from_folder(folder: Path) -> dict[str, bytes]:
    place = next((one for one in (folder / "dist", folder) if (one / WASM[0]).is_file()), None)
    if place is None:
        raise MissingDataError(
            f"{folder} is not the package onnxruntime-web: it has no dist/{WASM[0]}; "
            f"get it with npm pack onnxruntime-web@{VERSION} and unpack it",
            option="onnxruntime_web",
        )
    missing = [name for name in (*WASM, *WEBGPU) if not (place / name).is_file()]
    if missing:
        raise MissingDataError(
            f"{place} lacks {missing[0]}; use onnxruntime-web {VERSION}", option="onnxruntime_web"
        )
    return {name: (place / name).read_bytes() for name in (*WASM, *WEBGPU)}


def _from_package() -> dict[str, bytes]:
    name = f"onnxruntime-web-{VERSION}.tgz"
    registry = os.environ.get(REGISTRY_VARIABLE) or os.environ.get(REGISTRY_VARIABLE.lower()) or REGISTRY
    try:
        path = download(
            f"{registry.rstrip('/')}/onnxruntime-web/-/{name}",
            cache_folder() / name,
            size=BYTES,
            sha256=SHA256,
        )
    except DownloadError as error:
        raise DownloadError(
            f"onnxruntime-web, which runs the model in browsers, cannot be downloaded: {error}",
            advice=[TryOption("onnxruntime_web", "to use an unpacked npm package", "FOLDER")],
        ) from error
    wanted = {f"package/dist/{name}": name for name in (*WASM, *WEBGPU)}
    with tarfile.open(path) as archive:
        files = {
            wanted[member.name]: file.read()
            for member in archive
            if member.name in wanted and (file := archive.extractfile(member)) is not None
        }
    return {name: files[name] for name in wanted.values()}


def _licences() -> dict[str, bytes]:
    """Return the licence of onnxruntime: its npm package has none, the Python package of the same source has both."""
    licences = {}
    for file in metadata.files("onnxruntime") or ():
        if file.name in LICENCES and file.name not in licences:
            licences[file.name] = Path(str(file.locate())).read_bytes()
    assert "LICENSE" in licences, "onnxruntime is installed without its licence"
    return licences


def copy_into(files: dict[str, bytes], folder: Path) -> None:
    """Write files by name into a folder."""
    for name, data in files.items():
        with write_atomically(folder / name) as file:
            file.write(data)
