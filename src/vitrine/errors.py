"""The exception tree: what a user can get wrong, one class a kind. Nothing else lives here."""


class VitrineError(Exception):
    """Say in one sentence what was wrong, what was given and what would do.

    The command line prints the sentence without a traceback and exits with `exit_code`.
    """

    exit_code = 2


class ConfigError(VitrineError):
    """A setting does not make sense, alone or beside another."""


class DataError(VitrineError):
    """A data set or an image cannot be read as asked."""


class ImageSizeError(DataError):
    """An image says that it is larger than what is accepted, so it was not unpacked."""


class CheckpointError(VitrineError):
    """Weights cannot be read, written or fitted to the model."""


class MissingExtraError(VitrineError):
    """An optional dependency is needed and not installed."""

    def __init__(self, package: str, *, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package}, which is not installed; "
            f"install it with: pip install 'vitrine[{extra}]'"
        )


class TrainingError(VitrineError):
    """Training cannot go on: the loss is no longer a number, say."""

    exit_code = 3


class RepeatedError(VitrineError):
    """The first of several processes failed and tells the user; the others end with its exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code
