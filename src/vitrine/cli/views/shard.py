"""How `vitrine shard` shows the shards that it wrote."""

from collections.abc import Iterator

from vitrine.cli.lines import Line, Next, Wrote
from vitrine.jobs.shard import ShardResult
from vitrine.spelling import counted


def lines(result: ShardResult) -> Iterator[Line]:
    """Show images and shards by split."""
    for split, images in result.images.items():
        yield f"{split}: {counted(images, 'image')} in {counted(result.shards[split], 'shard')}"
    yield Wrote(result.out, f"{result.bytes / 1e6:.1f} MB with shards.json, checksums and indexes")
    yield Next("check", (result.out,))
