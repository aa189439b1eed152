"""What the server accepts, holds and waits for: every bound in one record."""

from dataclasses import dataclass

from vitrine.errors import ConfigError

MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds of one server; nothing that a client sends can make it hold more."""

    upload_bytes: int = 16 * MIB
    """Of one picture as it is sent."""
    pixels: int = 50_000_000
    """Of one JPEG, which is decoded at a part of its size."""
    waiting: int = 256
    """Requests that are being answered or wait for it; one more is told to come back."""
    held_bytes: int = 256 * MIB
    """Of all uploads together that are in memory at a time."""
    header_bytes: int = 16 * 1024
    read_seconds: float = 20.0
    """For the whole of a request to arrive."""
    answer_seconds: float = 60.0
    """From then until its answer."""
    target_seconds: float = 0.5
    """The latency aimed at: no batch is larger than what is computed within half of it."""
    batch: int = 32
    """Most pictures in one batch, whatever the target allows."""
    connections: int = 1024

    @property
    def whole_pixels(self) -> int:
        """Of one picture of any other kind than JPEG: it is unpacked whole, at up to 20 bytes a pixel."""
        return self.pixels // 2

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise ConfigError(f"{name} must be above 0, got {value}")
        if self.held_bytes < self.upload_bytes:
            raise ConfigError(
                f"held_bytes must hold at least one upload of {self.upload_bytes} bytes, got {self.held_bytes}"
            )
