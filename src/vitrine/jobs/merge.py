"""The work behind `vitrine merge`: check that every part of a job is there, and join their records."""

import hashlib
from dataclasses import dataclass

from vitrine.batch.parts import PartFolder, PartRecord
from vitrine.runtime.places import Place
from vitrine.runtime.progress import track
from vitrine.runtime.result import Result
from vitrine.runtime.threads import in_order

# Missing parts that are listed; the rest is counted.
MOST_LISTED = 20
_READERS = 8


@dataclass(frozen=True, kw_only=True, repr=False)
class MergeResult(Result):
    """The parts that exist, and the manifest that joins them."""

    folder: str
    num_parts: int
    num_pictures: int
    num_unreadable: int
    bytes: int
    missing: tuple[int, ...]
    """The first few parts that are not finished."""
    num_missing: int
    damaged: tuple[str, ...]
    """Parts whose file is gone, or has another size or, if verified, another checksum than recorded."""
    is_verified: bool
    manifest: str | None
    """None if anything is missing or damaged."""

    @property
    def exit_code(self) -> int:
        """1 if a part is missing or damaged."""
        return int(self.manifest is None)


def merge_parts(folder: Place, *, is_verifying: bool) -> MergeResult:
    """Check all parts of a job; write the manifest if every one is there."""
    parts = PartFolder.open(folder)
    records, missing = parts.finished(), parts.missing()

    def is_good(record: PartRecord) -> bool:
        if is_verifying:
            data = parts.folder.read(record.file)
            return data is not None and hashlib.sha256(data).hexdigest() == record.sha256
        return parts.folder.size(record.file) == record.bytes

    checked = in_order(is_good, records.values(), num_workers=_READERS)
    pairs = zip(records.values(), track(checked, "Checking parts", total=len(records)), strict=True)
    damaged = tuple(record.file for record, good in pairs if not good)
    return MergeResult(
        folder=parts.folder.address,
        num_parts=parts.job.num_parts,
        num_pictures=sum(record.num_rows for record in records.values()),
        num_unreadable=sum(record.num_unreadable for record in records.values()),
        bytes=sum(record.bytes for record in records.values()),
        missing=tuple(missing[:MOST_LISTED]),
        num_missing=len(missing),
        damaged=damaged,
        is_verified=is_verifying,
        manifest=None if missing or damaged else parts.write_manifest(records),
    )
