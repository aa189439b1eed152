"""Worker processes that fill batches in shared memory; they see the arrays of the source there, too."""

import itertools
import multiprocessing
import os
import pickle
import queue
import weakref
from typing import Any

import numpy as np
import torch

from vitrine.data.loading.filling import Notes, Task, fill, one_thread
from vitrine.data.preparing.annotated_view import AnyView
from vitrine.data.sources.source import Source
from vitrine.errors import DataError

# Seconds without an answer before checking that the processes are alive, or the one that started them.
_PATIENCE_SECONDS = 5.0


class ProcessWorkers:
    """Processes that write into a ring of shared batches; results are copies."""

    def __init__(self, source: Source, view: AnyView, *, num_workers: int, num_slots: int, rows: int) -> None:
        # Not fork: threads and CUDA do not survive it.
        context = multiprocessing.get_context("spawn")
        shape = (num_slots, rows, *view.shape)
        self._slots = torch.empty(shape, dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]
        self._free = list(range(num_slots))
        # Not a SimpleQueue: it blocks a writer when the pipe is full, forever if no reader is left.
        self._tasks: Any = context.Queue()
        self._done: Any = context.Queue()
        self._tickets: dict[int, ProcessTicket] = {}
        self._next = 0
        shared = _Shared(source)
        self._processes = [
            context.Process(
                target=_serve,
                args=(shared, view, self._slots, self._tasks, self._done),
                daemon=True,
                name=f"vitrine-data-{number}",
            )
            for number in range(num_workers)
        ]
        for process in self._processes:
            process.start()
        self._closer = weakref.finalize(self, _stop, self._processes, self._tasks)

    def start(self, shape: tuple[int, ...], tasks: list[Task], *, pin_memory: bool) -> "ProcessTicket":
        """Start filling a batch of `shape` in a free slot."""
        while not self._free:
            self._receive()
        ticket = ProcessTicket(
            self,
            number=self._next,
            slot=self._free.pop(),
            rows=shape[0],
            left=len(tasks),
            pin_memory=pin_memory,
        )
        self._tickets[self._next] = ticket
        self._next += 1
        for task in tasks:
            self._tasks.put((ticket.number, ticket.slot, task))
        return ticket

    def close(self) -> None:
        """Stop the processes."""
        self._closer()

    def _receive(self) -> None:
        """Receive one answer, or detect that a process has died."""
        while True:
            try:
                number, notes = self._done.get(timeout=_PATIENCE_SECONDS)
                break
            except queue.Empty:
                dead = [process for process in self._processes if not process.is_alive()]
                if dead:
                    raise DataError(
                        f"a data worker process ended with code {dead[0].exitcode}, most likely out of "
                        "memory; use fewer workers or worker_kind='threads'"
                    ) from None
        ticket = self._tickets[number]
        ticket.left -= 1
        ticket.notes.add(notes)
        if ticket.left == 0:
            del self._tickets[number]
            if ticket.is_abandoned:
                self._free.append(ticket.slot)


class ProcessTicket:
    """One batch that processes are filling."""

    def __init__(
        self, workers: ProcessWorkers, *, number: int, slot: int, rows: int, left: int, pin_memory: bool
    ) -> None:
        self.workers, self.number, self.slot = workers, number, slot
        self.rows, self.left, self.pin_memory = rows, left, pin_memory
        self.notes = Notes()
        self.is_abandoned = False

    def result(self) -> tuple[torch.Tensor, Notes]:
        """Wait for the batch; return a copy of it."""
        while self.left:
            self.workers._receive()
        filled = self.workers._slots[self.slot, : self.rows]
        images = torch.empty(filled.shape, dtype=torch.uint8, pin_memory=self.pin_memory)
        # The other cores belong to the workers; a parallel copy would wait for them.
        with one_thread():
            images.copy_(filled)
        self.workers._free.append(self.slot)
        return images, self.notes

    def abandon(self) -> None:
        """Give the slot back as soon as nobody writes to it."""
        self.is_abandoned = True
        if self.left == 0:
            self.workers._free.append(self.slot)


class _Shared:
    """A source whose arrays all processes see in one piece of shared memory, however many images it lists."""

    def __init__(self, source: Source) -> None:
        buffers: list[pickle.PickleBuffer] = []
        self._pickled = pickle.dumps(source, protocol=5, buffer_callback=buffers.append)
        arrays = [np.frombuffer(buffer.raw(), dtype=np.uint8) for buffer in buffers]
        self._ends = np.cumsum([0, *map(len, arrays)])
        self._memory = torch.empty(int(self._ends[-1]), dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]
        whole = self._memory.numpy()
        for start, array in zip(self._ends[:-1], arrays, strict=True):
            whole[start : start + len(array)] = array

    def source(self) -> Source:
        """Return the source; its arrays are views of the shared memory."""
        whole = memoryview(self._memory.numpy())
        pieces = [whole[start:end] for start, end in itertools.pairwise(self._ends.tolist())]
        source: Source = pickle.loads(self._pickled, buffers=pieces)
        return source


def _serve(shared: _Shared, view: AnyView, slots: torch.Tensor, tasks: Any, done: Any) -> None:
    """Fill rows in a separate process until it is stopped, or the process that started it is gone."""
    torch.set_num_threads(1)
    source = shared.source()
    parent = multiprocessing.parent_process()
    try:
        while True:
            try:
                message = tasks.get(timeout=_PATIENCE_SECONDS)
            except queue.Empty:
                if parent is not None and not parent.is_alive():  # killed: nobody will stop this one
                    os._exit(1)
                continue
            if message is None:
                break
            number, slot, task = message
            done.put((number, fill(slots[slot], task, source=source, view=view)))
    except KeyboardInterrupt:
        pass  # the parent receives it too, and reports it


def _stop(processes: list[Any], tasks: Any) -> None:
    for _ in processes:
        tasks.put(None)
    for process in processes:
        process.join(timeout=2)
        if process.is_alive():
            process.terminate()
            process.join()
    tasks.cancel_join_thread()  # do not wait for tasks that nobody reads
    tasks.close()
