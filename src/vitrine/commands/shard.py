"""`vitrine shard`: a data set as indexed tar shards."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_doc import Doc

from vitrine.commands import documented
from vitrine.commands.arguments import as_path
from vitrine.spelling import counted


@dataclass(frozen=True, kw_only=True)
class ShardResult:
    """How many images and shards were written, and where."""

    out: Path
    images: dict[str, int]
    shards: dict[str, int]
    bytes: int

    def __str__(self) -> str:
        lines = [
            f"{split}: {counted(self.images[split], 'image')} in {counted(self.shards[split], 'shard')}"
            for split in self.images
        ]
        lines.append(f"Wrote {self.out} ({self.bytes / 1e6:.1f} MB) with shards.json, checksums and indexes")
        lines.append(f"Next: vitrine check {shlex.quote(str(self.out))}")
        return "\n".join(lines)


@documented
def shard(
    data: Annotated[str | Path, Doc("Data set: folder, file, name of a built-in data set, or URL")],
    out: Annotated[Path | str, Doc("Folder for the shards, outside the data set")],
    *,
    shard_megabytes: Annotated[int, Doc("Approximate size of one shard in MB")] = 256,
    overwrite: Annotated[bool, Doc("Replace the shards in OUT")] = False,
) -> ShardResult:
    """Write a data set as indexed tar shards with checksums; run again to continue after an interruption."""
    data, out = str(data), as_path(out)
    from vitrine.data.sources.opening import open_kind
    from vitrine.data.sources.shard_writing import write_shards

    splits = open_kind(data)
    written = write_shards(splits, out, shard_bytes=shard_megabytes * 2**20, overwrite=overwrite)
    return ShardResult(
        out=out,
        images={split: sum(item.count for item in shards) for split, shards in written.items()},
        shards={split: len(shards) for split, shards in written.items()},
        bytes=sum(item.bytes for shards in written.values() for item in shards),
    )
