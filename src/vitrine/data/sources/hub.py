"""Sets on the Hugging Face hub, `hub:uoft-cs/cifar10`: the network is used only when asked like this."""

from urllib.parse import parse_qsl

from vitrine.data.source import Source

PREFIX = "hub:"


def recognises(address: str) -> bool:
    """Take addresses that begin with `hub:`."""
    return address.startswith(PREFIX)


def open_all(address: str) -> dict[str, Source]:
    """Bring the set's Parquet files to the local cache and open them; `?config=NAME&label=NAME` if need be."""
    from vitrine.data.hub import fetch_dataset
    from vitrine.data.sources import parquet

    place, mark, query = address.removeprefix(PREFIX).partition("?")
    repository, _, revision = place.partition("@")
    config = dict(parse_qsl(query)).get("config")
    folder = fetch_dataset(repository, revision=revision or "main", config=config)
    splits = parquet.open_all(f"{folder}{mark}{query}")
    for source in splits.values():
        source.address = address
    return splits
