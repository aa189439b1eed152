"""Runs that are kept at an address: begun, resumed and published; and shared by machines without a common disk."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vitrine.errors import ConfigError, VitrineError
from vitrine.runtime.launch import launched
from vitrine.runtime.processes import Processes, anyone, on_first_process, wait_for_all
from vitrine.runtime.remote_run import begin_remote_run, discard_remote_run, fetch_run, publish_run
from vitrine.runtime.run_address import address_of, read_state, root_of, working_folder
from vitrine.runtime.run_folder import RunFolder


def begin_at_address(address: str, *, may_replace: bool, processes: Processes) -> RunFolder:
    """Begin a run at an address; every machine has a working folder of its own."""
    on_first_process(lambda: str(begin_remote_run(address, may_replace=may_replace)), processes)
    folder = RunFolder(working_folder(address))
    folder.path.mkdir(parents=True, exist_ok=True)
    return folder


def resume_at_address(address: str) -> RunFolder:
    """Fetch a run to continue it; the process that trained it before can no longer write there."""
    return RunFolder(fetch_run(address, takes_over=launched().rank == 0))


@contextmanager
def published(folder: RunFolder, processes: Processes) -> Iterator[None]:
    """Publish what the block has written, also where it fails; nothing for a run that is kept on this machine."""
    try:
        yield
    except BaseException:
        if processes.is_first:
            with suppress(VitrineError):  # the first error is the one to report
                if folder.is_run:
                    publish_run(folder.path)
                else:
                    discard_remote_run(folder.path)
        raise
    on_first_process(lambda: publish_run(folder.path, is_final=True), processes)


def share_run(folder: RunFolder, processes: Processes) -> None:
    """Copy the files of the first process to the working folders of other machines."""
    address = on_first_process(lambda: address_of(folder.path), processes)
    if address is None or processes.world_size == 1:
        return
    on_first_process(lambda: publish_run(folder.path), processes)
    if not processes.is_first:
        fetch_run(_address_of_run(address, folder.path))
    wait_for_all(processes)


def require_common_folder(folder: RunFolder, processes: Processes) -> None:
    """Refuse to divide checkpoints among machines without a common disk: the first one uploads them."""
    own = root_of(folder.path)
    state = None if own is None else read_state(own)
    token = on_first_process(lambda: None if state is None else state.token, processes)
    if anyone(token is not None and (state is None or state.token != token), processes):
        raise ConfigError(
            "several machines that train a run at an address need a common disk for it; set VITRINE_CACHE to a "
            "folder on it, or leave this out",
            option="shard",
        )


def _address_of_run(address: str, path: Path) -> str:
    """Return the address of the whole run; a sweep's attempts and folds lie two folders below it."""
    whole = path.parent.parent if path.parent.name in {"sweep", "folds"} else path
    return address if whole == path else address.rsplit("/", 2)[0]
