"""The work behind `vitrine shard`: open a data set and write its splits as shards."""

from dataclasses import dataclass
from pathlib import Path

from vitrine.data.sources.opening import is_loose, open_kind, open_loose
from vitrine.data.sources.shard_writing import write_shards
from vitrine.data.sources.source import ALL
from vitrine.runtime.result import Result


@dataclass(frozen=True, kw_only=True, repr=False)
class ShardResult(Result):
    """How many images and shards were written, and where."""

    out: Path
    images: dict[str, int]
    shards: dict[str, int]
    bytes: int


def shard_data(data: str, out: Path, *, shard_bytes: int, is_overwriting: bool) -> ShardResult:
    """Write every split of a data set, or a folder of photos, as shards into `out`; complete ones are kept."""
    splits = {ALL: open_loose(data)} if is_loose(data) else open_kind(data)
    written = write_shards(splits, out, shard_bytes=shard_bytes, overwrite=is_overwriting)
    return ShardResult(
        out=out,
        images={split: sum(shard.count for shard in shards) for split, shards in written.items()},
        shards={split: len(shards) for split, shards in written.items()},
        bytes=sum(shard.bytes for shards in written.values() for shard in shards),
    )
