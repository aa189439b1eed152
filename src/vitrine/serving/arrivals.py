"""Models whose runs had no weights when serving began: opened by themselves once the weights are there.

One thread looks at a few files every other second and opens nothing unless they changed, so a run that never gets
that far costs nothing, and weights that cannot be read are tried again only when the run has written others.
"""

import contextvars
import threading
from collections.abc import Callable, Sequence

from vitrine.runtime.progress import notice
from vitrine.serving.hosting import Hosted
from vitrine.serving.opening import Seat

EVERY_SECONDS = 2.0


class Arrivals:
    """A thread that waits for weights, hands each model over and ends with the last one."""

    def __init__(self, awaited: Sequence[Seat], *, on_arrival: Callable[[Seat, Hosted], None]) -> None:
        self.awaited = tuple(awaited)
        self.on_arrival = on_arrival
        self._stamps: dict[str, object] = {}
        self._stopping = threading.Event()
        # Within this context, so that remarks reach whoever listens to the server.
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._watch,), name="arrivals", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Wait for nothing any more; what is being opened is opened first."""
        self._stopping.set()
        self._thread.join()

    def _watch(self) -> None:
        while self.awaited and not self._stopping.wait(EVERY_SECONDS):
            for seat in self.awaited:
                self._look(seat)

    def _look(self, seat: Seat) -> None:
        """Open the model if its run has written weights since the last look."""
        assert seat.run is not None  # only runs can be without weights
        # Before reading, so that what is written meanwhile is seen next time.
        stamp = seat.run.weights_stamp()
        if stamp == self._stamps.get(seat.name, ()):
            return
        self._stamps[seat.name] = stamp
        try:
            hosted = seat.open()
            if hosted is None or self._stopping.is_set():
                return
            self.on_arrival(seat, hosted)
        except Exception as error:
            # Whatever it is (no memory beside the training, say), the next weights may do.
            notice(f"The weights of {seat.name} cannot be served: {error}")
            return
        self.awaited = tuple(other for other in self.awaited if other is not seat)
        notice(f"{seat.name} has its first weights and answers from now on")
