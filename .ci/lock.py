"""Write and check the lock files: exact versions of everything installed, with the hashes of their files.

    python .ci/lock.py write    both locks, from the versions that are installed now; needs the package index
    python .ci/lock.py check    installed versions equal the lock; needs no network

`requirements.lock` holds everything that the `dev` group needs, `docs/requirements.lock` what the `docs` group needs
beyond it. Hashes are those of the index's files for CPython 3.11 to 3.14 on Linux, macOS and Windows, and of local
wheels that pip is configured to find: a machine may have another build of torch than PyPI's.
"""

import hashlib
import html
import json
import os
import re
import subprocess
import sys
import tomllib
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
LOCK, DOCS_LOCK = ROOT / "requirements.lock", ROOT / "docs" / "requirements.lock"
HEADER = "# Written by `make lock`. Install with: pip install --no-deps --require-hashes -r {path}\n"
INDEX = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/")
WHEEL = re.compile(r"-(py3|py2\.py3|cp3\w*(?:\.cp3\w*)*|cp31[1-4])-(none|abi3|cp31[1-4])-([\w.]+)\.whl$")
PLATFORMS = re.compile(
    r"any|manylinux\w*_(x86_64|aarch64)|macosx_\w+_(arm64|x86_64|universal2)|win_(amd64|arm64)"
)


def main() -> None:
    if sys.argv[1:] == ["write"]:
        write()
    elif sys.argv[1:] == ["check"]:
        sys.exit(check())
    else:
        sys.exit(__doc__)


def write() -> None:
    dev, docs = closure("dev"), closure("docs")
    for path, names in ((LOCK, dev), (DOCS_LOCK, docs - dev)):
        with ThreadPoolExecutor(8) as pool:
            entries = list(pool.map(entry, sorted(names)))
        path.write_text(HEADER.format(path=path.relative_to(ROOT)) + "\n".join(entries) + "\n")
        print(f"Wrote {path.relative_to(ROOT)}: {len(entries)} packages")


def closure(group: str) -> set[str]:
    """Return the installed packages that a dependency group needs, directly or not."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    left = [Requirement(line) for line in project["dependency-groups"][group]]
    needed: set[str] = set()
    done: set[tuple[str, str]] = set()
    while left:
        requirement = left.pop()
        name = canonicalize_name(requirement.name)
        for extra in ("", *sorted(requirement.extras)):
            if (name, extra) in done:
                continue
            done.add((name, extra))
            if name != "vitrine":
                needed.add(name)
            left += [
                one for one in map(Requirement, metadata.requires(name) or ())
                if one.marker is None or one.marker.evaluate({"extra": extra})
            ]  # fmt: skip
    return needed


def entry(name: str) -> str:
    """Return the lines of one package: its version, and the hash of every file that may be installed."""
    version = version_of(name)
    builds = local(name, version)
    # pip prefers a file whose hash the index names to a better one in a folder: only one of them can be in the lock.
    others = indexed(name, version, without={PLATFORMS.search(file)[0] for file in builds})  # type: ignore[index]
    hashes = sorted({*others, *builds.values()})
    if not hashes:
        raise SystemExit(f"the index has no file of {name} {version}")
    return " \\\n".join([f"{name}=={version}", *(f"    --hash=sha256:{digest}" for digest in hashes)])


def version_of(name: str) -> str:
    """Return the installed version without its local part: 2.13.0+cpu and 2.13.0 are one release."""
    return metadata.version(name).partition("+")[0]


def indexed(name: str, version: str, *, without: set[str]) -> list[str]:
    """Return the hashes of an index's files: wheels for the usual platforms, or else the source.

    Files of the platforms in `without` are left to the local wheels.
    """
    with urllib.request.urlopen(f"{INDEX}/{name}/", timeout=60) as answer:
        page = answer.read().decode()
    files = {}
    for link in re.findall(r'href="([^"]+)"', page):
        address = urllib.parse.urlsplit(html.unescape(link))
        file = urllib.parse.unquote(address.path.rpartition("/")[2])
        if address.fragment.startswith("sha256=") and is_of(file, name, version):
            files[file] = address.fragment.removeprefix("sha256=")
    wheels = {file: digest for file, digest in files.items() if file.endswith(".whl")}
    usual = [
        digest
        for file, digest in wheels.items()
        if is_usual(file) and PLATFORMS.search(file)[0] not in without  # type: ignore[index]
    ]
    return usual or list(wheels.values()) or list(files.values())


def is_of(file: str, name: str, version: str) -> bool:
    """Whether a file belongs to a version of a package; names are spelled in several ways."""
    stem = re.escape(name).replace(r"\-", "[-_.]")
    return (
        re.match(rf"{stem}-{re.escape(version)}(\+[\w.]+)?(-|\.tar\.gz$|\.zip$)", file, re.IGNORECASE)
        is not None
    )


def is_usual(file: str) -> bool:
    wheel = WHEEL.search(file)
    return wheel is not None and any(PLATFORMS.fullmatch(tag) for tag in wheel[3].split("."))


def local(name: str, version: str) -> dict[str, str]:
    """Return the hashes of wheels in the folders that pip is told to look in (find-links), by file name."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    folders = {Path(place) for line in re.findall(r"find-links='([^']*)'", listed) for place in line.split()}
    files = [file for folder in folders if folder.is_dir() for file in folder.glob("*.whl")]
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
        if is_of(file.name, name, version)
    }


def check() -> int:
    """Compare the installed packages with the lock; print what differs."""
    pinned = dict(re.findall(r"^([\w.-]+)==([^\s\\]+)", LOCK.read_text(), flags=re.MULTILINE))
    differing = {}
    for name, version in pinned.items():
        try:
            installed = version_of(name)
        except metadata.PackageNotFoundError:
            installed = "missing"
        if installed != version:
            differing[name] = {"lock": version, "installed": installed}
    print(json.dumps(differing, indent=2) if differing else f"{len(pinned)} packages are as locked")
    return int(bool(differing))


if __name__ == "__main__":
    main()
