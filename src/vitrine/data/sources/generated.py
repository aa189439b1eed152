"""Rendered pictures by address: `generated:shapes?size=32&count=5000&label=shape&seed=0`."""

from urllib.parse import parse_qsl

from vitrine.data.generated import FACTORS, GeneratedSource
from vitrine.data.source import Source
from vitrine.errors import ConfigError
from vitrine.spelling import near_match

PREFIX = "generated:"
_OPTIONS = ("size", "count", "label", "seed", "val", "test", "noise")


def recognises(address: str) -> bool:
    """Take addresses that begin with `generated:`."""
    return address.startswith(PREFIX)


def open_all(address: str) -> dict[str, Source]:
    """Make `train` of `count` pictures, `val` and `test` of a fifth as many, none the same."""
    kind, _, query = address.removeprefix(PREFIX).partition("?")
    if kind != "shapes":
        raise ConfigError(f"there are no generated pictures called {kind!r}; generated:shapes can be had")
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name in options:
        if name not in _OPTIONS:
            close = near_match(name, _OPTIONS)
            hint = f"did you mean {close}?" if close else f"there are {', '.join(_OPTIONS)}"
            raise ConfigError(f"generated:shapes has no option {name!r}; {hint}")
    count = _number(options, "count", 5000)
    counts = {
        "train": count,
        "val": _number(options, "val", max(1, count // 5)),
        "test": _number(options, "test", max(1, count // 5)),
    }
    label = options.get("label", "shape")
    labels = tuple(label.split(","))
    for name in labels:
        if name not in FACTORS:
            raise ConfigError(f"generated:shapes has no label {name!r}; there are {', '.join(FACTORS)}")
    splits: dict[str, Source] = {}
    start = 0
    for split, length in counts.items():
        if length:
            splits[split] = GeneratedSource(
                count=length,
                size=_number(options, "size", 32),
                label=label,
                seed=_number(options, "seed", 0),
                start=start,
                noise=_number(options, "noise", 8),
                address=address,
                prefix=f"{split}/",
            )
        # Far apart, so that a larger train set keeps the same val and test.
        start += 2**40
    return splits


def _number(options: dict[str, str], name: str, default: int) -> int:
    text = options.get(name, str(default))
    if not text.isdecimal():
        raise ConfigError(f"{name} must be a whole number, got {text!r}")
    return int(text)
