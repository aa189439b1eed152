"""Accepting connections when descriptors have run out."""

import errno
import os
import socket

import pytest

from vitrine.serving.connections import ACCEPTED_PER_TURN, ListeningSocket, free_descriptors
from vitrine.serving.server import bind


@pytest.fixture
def listening():
    with bind("127.0.0.1", 0) as opened:
        opened.setblocking(False)
        yield opened


@pytest.fixture
def exhausted(monkeypatch):
    """Let `accept` fail as the system's does while no descriptor is free but the reserved one."""
    original = socket.socket.accept

    def accept(self):
        if self._reserve is not None:
            raise OSError(errno.EMFILE, "Too many open files")
        return original(self)

    monkeypatch.setattr(socket.socket, "accept", accept)


def client_of(listening):
    return socket.create_connection(listening.getsockname(), timeout=5)


def test_the_protocol_is_named_so_that_answers_are_sent_at_once(listening):
    assert listening.proto == socket.IPPROTO_TCP
    with client_of(listening):
        accepted, _ = listening.accept()
        assert accepted.proto == socket.IPPROTO_TCP
        accepted.close()


def test_the_reserved_descriptor_accepts_while_others_are_closed(listening, exhausted):
    closed = []
    listening.on_exhausted = lambda: closed.append(1) or 1
    with client_of(listening):
        accepted, _ = listening.accept()
        accepted.close()
    assert closed == [1]
    with pytest.raises(BlockingIOError):  # takes a reserve again
        listening._accept_with_reserve(has_closed_others=True)
    assert listening._reserve is not None


def test_where_nothing_can_be_closed_the_new_connection_is(listening, exhausted):
    with client_of(listening) as client:
        with pytest.raises(BlockingIOError):
            listening.accept()
        assert client.recv(1) == b""
    assert listening._reserve is not None


def test_after_a_few_connections_the_event_loop_takes_its_turn(listening):
    clients = [client_of(listening) for _ in range(ACCEPTED_PER_TURN + 1)]
    accepted = [listening.accept()[0] for _ in range(ACCEPTED_PER_TURN)]
    with pytest.raises(BlockingIOError):
        listening.accept()
    accepted.append(listening.accept()[0])
    for each in (*clients, *accepted):
        each.close()


def test_free_descriptors_are_counted():
    before = free_descriptors()
    opened = os.open(os.devnull, os.O_RDONLY)
    assert before - free_descriptors() == 1
    os.close(opened)


def test_a_closed_socket_gives_its_reserve_back():
    before = free_descriptors()
    ListeningSocket(socket.AF_INET).close()
    assert free_descriptors() == before
