"""A folder of numbered parts: what its job is, which parts are finished, and the manifest that joins them.

    part-00000.parquet        rows of the pictures from 0 on
    _job/job.json             everything that the rows depend on
    _job/part-00000.json      written after its part: rows, unreadable pictures, bytes, checksums
    _job/manifest.json        written when every part is there

Programs that read a folder of Parquet files skip names that begin with an underscore. A part is finished if its
record is there. Records and manifest hold no times, so that an interrupted job ends with the bytes of any other.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from vitrine.data.sources.source import Source
from vitrine.errors import ConfigError, DataError, TryOption
from vitrine.runtime.files import parse_json
from vitrine.runtime.launch import Share
from vitrine.runtime.places import Folder, LocalFolder, Place, open_folder
from vitrine.runtime.threads import in_order
from vitrine.spelling import printable

RECORDS, JOB, MANIFEST = "_job", "_job/job.json", "_job/manifest.json"
# Pictures per part: at least a batch of a GPU, at most what makes 50 MB of 768 floats; large jobs have more parts.
LEAST_PER_PART, MOST_PER_PART, PARTS_OF_SMALL_JOBS = 256, 16_384, 64
_VERSION = 1
# Records that are read at once: over a network each takes a while.
_READERS = 16
# The name of each field of a job, for messages about a job that differs from the folder's.
_WORDS = {
    "num_pictures": "number of pictures",
    "part_size": "number of pictures per part",
    "weights": "weights",
    "batch_size": "batch size",
    "columns": "columns",
}


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything that the rows depend on, but the pictures themselves; those are checked part by part."""

    model: str
    weights: str
    """Hash of config and weights."""
    preprocess: dict[str, Any]
    precision: str
    columns: dict[str, Any]
    batch_size: int
    """Batches of another size add sums in another order, which changes the last digits."""
    num_pictures: int
    part_size: int
    version: int = _VERSION

    @property
    def num_parts(self) -> int:
        """How many parts there are in all."""
        return -(-self.num_pictures // self.part_size)

    def rows(self, number: int) -> range:
        """Return the numbers of the pictures of a part."""
        return range(number * self.part_size, min((number + 1) * self.part_size, self.num_pictures))


@dataclass(frozen=True, kw_only=True)
class PartRecord:
    """Facts about a finished part."""

    file: str
    first: int
    num_rows: int
    num_unreadable: int
    bytes: int
    sha256: str
    input: str
    """Hash of the names, sizes and times of its pictures."""


def default_part_size(num_pictures: int) -> int:
    """Choose the number of pictures per part, by the number of pictures alone: every process chooses the same."""
    even = -(-num_pictures // PARTS_OF_SMALL_JOBS)
    rounded = -(-even // LEAST_PER_PART) * LEAST_PER_PART
    return max(LEAST_PER_PART, min(MOST_PER_PART, rounded))


def part_file(number: int) -> str:
    """Return the name of a part."""
    return f"part-{number:05d}.parquet"


def record_file(number: int) -> str:
    """Return the name of a part's record."""
    return f"{RECORDS}/part-{number:05d}.json"


def input_hash(source: Source, rows: Iterable[int]) -> str:
    """Hash the facts that show changed pictures without reading them: names, sizes, and times of files."""
    digest = hashlib.blake2b(digest_size=16)
    for index in rows:
        path = source.path(index)
        if path is None:
            facts = str(source.size(index))
        else:
            try:
                status = os.stat(path)  # noqa: PTH116 (called for every file)
                facts = f"{status.st_size} {status.st_mtime_ns}"
            except OSError:
                facts = "missing"
        digest.update(f"{source.name(index)}\0{facts}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


class PartFolder:
    """The parts of one job in a folder of this machine or at an address."""

    def __init__(self, folder: Folder, job: Job) -> None:
        self.folder, self.job = folder, job

    @classmethod
    def begin(cls, place: Place, job: Job, *, share: Share, is_overwriting: bool) -> "PartFolder":
        """Open the folder of a job that begins or continues; refuse one of another job.

        A process that overwrites removes the parts of its own share; all of another job only if it is alone.
        """
        folder = open_folder(place)
        parts, before = cls(folder, job), _read_job(folder)
        is_another = before is not None and before != _plain(job)
        if is_another and (not is_overwriting or share.count > 1):
            advice = _ADVICE if share.count == 1 else []
            raise ConfigError(_difference(folder, before or {}, _plain(job)), option="out", advice=advice)
        if is_another:
            _clear(folder)
        elif is_overwriting:
            for number in parts.finished(share.of(job.num_parts)):
                parts.forget(number)
        if before is None or is_another:
            with folder.writing(JOB) as file:
                file.write(_json(_plain(job)))
        return parts

    @classmethod
    def open(cls, place: Place) -> "PartFolder":
        """Open the folder of an earlier job."""
        folder = open_folder(place)
        before = _read_job(folder)
        if before is None:
            raise DataError(f"{printable(folder.address)} holds no parts: there is no {JOB} in it")
        try:
            return cls(folder, Job(**before))
        except TypeError as error:
            raise DataError(f"{printable(folder.address)}/{JOB} is not the record of a job") from error

    def finished(self, numbers: Iterable[int] | None = None) -> dict[int, PartRecord]:
        """Return the records of finished parts by number: of these parts, or of all."""
        names = set(self.folder.names(RECORDS))
        asked = range(self.job.num_parts) if numbers is None else numbers
        there = [number for number in asked if _base(record_file(number)) in names]
        records = in_order(self.record, there, num_workers=_READERS)
        return {number: record for number, record in zip(there, records, strict=True) if record is not None}

    def missing(self) -> list[int]:
        """Return the numbers of the parts without a record."""
        names = set(self.folder.names(RECORDS))
        return [number for number in range(self.job.num_parts) if _base(record_file(number)) not in names]

    def record(self, number: int) -> PartRecord | None:
        """Return the record of a part; None if it is not finished."""
        data = self.folder.read(record_file(number))
        if data is None:
            return None
        try:
            return PartRecord(**parse_json(data))
        except (ValueError, TypeError) as error:
            raise DataError(
                f"{printable(self.folder.address)}/{record_file(number)} is damaged; remove it, and the part is "
                "computed again"
            ) from error

    def finish(self, number: int, record: PartRecord) -> None:
        """Record that a part is complete."""
        with self.folder.writing(record_file(number)) as file:
            file.write(_json(asdict(record)))

    def forget(self, number: int) -> None:
        """Remove the record of a part that will be computed again."""
        self.folder.remove(record_file(number))
        self.folder.remove(MANIFEST)

    def remove_leftovers(self, share: Share) -> None:
        """Remove half-written files of a killed process: of the parts of a share and, if it is alone, of the rest."""
        if not isinstance(self.folder, LocalFolder):
            return
        own = [name(number) for number in share.of(self.job.num_parts) for name in (part_file, record_file)]
        self.folder.remove_leftovers_of([*own, *((JOB, MANIFEST) if share.count == 1 else ())])

    def write_manifest(self, records: dict[int, PartRecord]) -> str | None:
        """Join the records of all parts into the manifest; None if a part is missing."""
        if len(records) < self.job.num_parts:
            return None
        ordered = [records[number] for number in range(self.job.num_parts)]
        manifest = {
            "job": _plain(self.job),
            "num_rows": sum(record.num_rows for record in ordered),
            "num_unreadable": sum(record.num_unreadable for record in ordered),
            "bytes": sum(record.bytes for record in ordered),
            "parts": [asdict(record) for record in ordered],
        }
        with self.folder.writing(MANIFEST) as file:
            file.write(_json(manifest))
        return f"{self.folder.address}/{MANIFEST}"


_ADVICE = [TryOption("overwrite", "to compute everything again", True)]


def _base(name: str) -> str:
    return name.rpartition("/")[2]


def _plain(job: Job) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(
        json.dumps(asdict(job))
    )  # lists instead of tuples, as it is read again
    return plain


def _json(values: dict[str, Any]) -> bytes:
    return json.dumps(values, indent=1).encode() + b"\n"


def _read_job(folder: Folder) -> dict[str, Any] | None:
    data = folder.read(JOB)
    if data is None:
        return None
    try:
        before: dict[str, Any] = parse_json(data)
    except ValueError as error:
        raise DataError(f"{printable(folder.address)}/{JOB} is damaged; remove the folder") from error
    return before


def _difference(folder: Folder, before: dict[str, Any], now: dict[str, Any]) -> str:
    """Describe how the job of a folder differs from this one."""
    key = next(key for key in {**now, **before} if before.get(key) != now.get(key))
    was, is_now = before.get(key), now.get(key)
    values = f": {was} there, {is_now} now" if isinstance(was, int | str) and key != "weights" else ""
    return f"{printable(folder.address)} holds parts of another job; it differs in the {_WORDS.get(key, key)}{values}"


def _clear(folder: Folder) -> None:
    """Remove the record of a job first, then its parts: after an interruption, remaining parts belong to no job."""
    folder.remove(JOB)
    folder.remove(MANIFEST)
    for name in _parts_in(folder.names(RECORDS), ".json"):
        folder.remove(f"{RECORDS}/{name}")
    for name in _parts_in(folder.names(), ".parquet"):
        folder.remove(name)


def _parts_in(names: Iterable[str], suffix: str) -> Iterator[str]:
    return (name for name in names if name.startswith("part-") and name.endswith(suffix))
