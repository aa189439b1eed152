"""Signals while a run trains."""

import signal
import threading

import pytest

from vitrine.training.stopping import saving_on_signals


class Run:
    wants_to_stop = False


def test_an_ignored_signal_stays_ignored_and_a_second_interrupt_stops_at_once() -> None:
    run, before = Run(), signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with pytest.raises(KeyboardInterrupt), saving_on_signals(run):
            signal.raise_signal(signal.SIGHUP)
            assert not run.wants_to_stop
            signal.raise_signal(signal.SIGINT)
            assert run.wants_to_stop
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_run_outside_the_main_thread_works_without_signals() -> None:
    reached = []

    def work() -> None:
        with saving_on_signals(Run()):
            reached.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert reached
