import threading
import time

import pytest

from vitrine.runtime.threads import in_order


def test_results_come_in_order_and_few_are_on_their_way():
    lock, state = threading.Lock(), {"ahead": 0, "most": 0}

    def slow(number: int) -> int:
        with lock:
            state["ahead"] += 1
            state["most"] = max(state["most"], state["ahead"])
        time.sleep(0.001 * (number % 3))
        return number

    taken = []
    for number in in_order(slow, range(200), num_workers=3):
        taken.append(number)
        with lock:
            state["ahead"] -= 1
    assert taken == list(range(200))
    assert state["most"] <= 3 * 16 + 1


def test_an_error_arrives_at_its_place_and_the_threads_end():
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        for number in in_order(lambda number: 1 // (5 - number), range(10**9), num_workers=2):
            last = number
    assert last == 1
    assert threading.active_count() == before
