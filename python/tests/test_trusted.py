"""Objective: on a trusted switch, programs forward what they send, in all their threads and in processes that they fork."""

import os
import signal
import threading

import pytest
import toklat
from conftest import frame, take


@pytest.fixture
def pair(daemon):
    """Two ports of a trusted switch whose data process is stopped: it cannot have forwarded a frame."""
    assert daemon.toklat("switch", "add", "vale9", "--trusted") is not None
    ports = toklat.Port("vale9:a"), toklat.Port("vale9:b")
    process = daemon.data_process("vale9")
    os.kill(process, signal.SIGSTOP)
    yield ports
    os.kill(process, signal.SIGCONT)
    for port in ports:
        port.close()


def test_what_is_sent_has_arrived(pair):
    a, b = pair
    for number in range(100):
        for sender, receiver in ((a, b), (b, a)):
            assert sender.send([frame(number)]) == 1
            # Nothing is waited for.
            with receiver.receive() as batch:
                assert batch.copies() == [frame(number)]
    with a.reserve(32) as slots:
        for slot in slots:
            slot[:60] = frame(7)
        slots.commit(60)
    with b.receive() as batch:
        assert batch.copies() == [frame(7)] * 32


def test_a_thread_that_waits_is_woken(pair):
    a, b = pair
    echoed = threading.Thread(target=lambda: [b.send(take(b, 1)) for _ in range(100)])
    echoed.start()
    for number in range(100):
        a.send([frame(number)])
        assert take(a, 1) == [frame(number)]
    echoed.join(60)
    assert not echoed.is_alive()


def test_a_process_that_was_forked_forwards_too(pair):
    a, b = pair
    a.send([frame(1)])
    child = os.fork()
    if child == 0:
        sent = 0
        try:
            sent = a.send([frame(2), frame(3)])
        finally:
            os._exit(0 if sent == 2 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert take(b, 3) == [frame(1), frame(2), frame(3)]
