"""`vitrine shard`: write a data set as indexed tar shards."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from annotated_doc import Doc

from vitrine.commands import documented
from vitrine.commands.arguments import as_path
from vitrine.errors import ConfigError

if TYPE_CHECKING:
    from vitrine.jobs.shard import ShardResult


@documented
def shard(
    data: Annotated[str | Path, Doc("Data set: folder, file, name of a built-in data set, or URL")],
    out: Annotated[Path | str, Doc("Folder for the shards, outside the data set")],
    *,
    shard_megabytes: Annotated[int, Doc("Approximate size of one shard in MB")] = 256,
    overwrite: Annotated[bool, Doc("Replace the shards in OUT")] = False,
) -> "ShardResult":
    """Write a data set as indexed tar shards with checksums; run again to continue after an interruption."""
    if shard_megabytes < 1:
        raise ConfigError(f"must be at least 1, got {shard_megabytes}", option="shard_megabytes")

    from vitrine.jobs.shard import shard_data

    return shard_data(str(data), as_path(out), shard_bytes=shard_megabytes * 2**20, is_overwriting=overwrite)
