"""Objective: frames arrive as they were sent, no view points to nothing, errors come by kind, restarts are survived."""

import ast
import asyncio
import gc
import select
import threading
from pathlib import Path

import numpy as np
import pytest
import toklat
from conftest import frame, take, wait_for


def pair(**options):
    return toklat.Port("vale0:a", **options), toklat.Port("vale0:b", **options)


def test_frames_arrive_whole_and_in_order(daemon):
    a, b = pair()
    sent = [frame(i, 60 + i) for i in range(500)]
    assert a.send(sent) == 500
    assert take(b, 500) == sent
    assert a.send(bytearray(frame(i)) for i in range(3)) == 3
    assert take(b, 3) == [frame(i) for i in range(3)]


def test_views_lie_where_the_frames_lie(daemon):
    a, b = pair()
    a.send([frame(i) for i in range(64)])
    column = []
    while len(column) < 64:
        assert b.wait(60)
        with b.receive(64) as batch:
            column += check_views(batch, len(column))
    assert column == list(range(64))


def check_views(batch, first):
    """Compares the views of a batch whose first frame has this number; returns one byte of each frame."""
    memory, offsets = np.asarray(batch.memory), np.asarray(batch.offsets)
    assert len(batch) == len(offsets) > 0 and list(batch.lengths) == [60] * len(batch)
    view = np.asarray(batch[0])
    assert view.__array_interface__["data"][0] == memory.__array_interface__["data"][0] + offsets[0]
    assert not view.flags.writeable and batch[0].readonly and batch.memory.readonly
    assert bytes(batch[-1]) == frame(first + len(batch) - 1)
    assert [bytes(each) for each in batch] == batch.copies()
    with pytest.raises(IndexError):
        batch[len(batch)]
    with pytest.raises(TypeError):
        batch[0][0] = 1
    return memory[offsets + 17].tolist()


def test_slots_are_filled_in_place(daemon):
    a, b = pair()
    with a.reserve(32) as slots:
        assert len(slots) == 32 and slots.capacity >= 1514
        np.asarray(slots[0])[:60] = np.frombuffer(frame(7), np.uint8)
        memory, offsets = np.asarray(slots.memory), np.asarray(slots.offsets)
        memory[offsets[1:, None] + np.arange(60)] = np.frombuffer(frame(8), np.uint8)
        for wrong in (0, slots.capacity + 1, [60] * 33, [60, 0]):
            with pytest.raises(ValueError):
                slots.commit(wrong)
        assert slots.commit(np.full(32, 60)) == 32
        with pytest.raises(toklat.Released):
            slots.commit(60)
    assert take(b, 32) == [frame(7)] + [frame(8)] * 31
    with a.reserve(4):
        pass  # not committed: not sent
    a.send([frame(9)])
    assert take(b, 1) == [frame(9)]


def test_a_view_that_outlives_batch_and_port_is_still_mapped(daemon):
    a, b = pair()
    a.send([frame(1)])
    assert b.wait(60)
    batch = b.receive()
    view, array, memory = batch[0], np.asarray(batch[0]), batch.memory
    batch.release()
    batch.release()
    assert batch.released
    for use in (lambda: batch[0], batch.copies, lambda: batch.memory, lambda: batch.offsets):
        with pytest.raises(toklat.Released):
            use()
    b.close()
    a.close()
    del batch, a, b
    gc.collect()
    assert len(bytes(view)) == 60 and int(array.sum()) >= 0 and len(bytes(memory)) == len(memory)


def test_a_lent_batch_keeps_its_frames_from_being_taken_back(daemon):
    a, b = pair(slots=16)
    a.send([frame(i) for i in range(4)])
    assert b.wait(60)
    batch = b.receive(1)
    for call in (b.receive, b.flush, lambda: b.wait(0)):
        with pytest.raises(toklat.Lent):
            call()
    # More than the ring holds: none of them may land in the frame that is lent.
    assert b.send([frame(99)]) == 1
    for _ in range(8):
        a.send([frame(50 + i) for i in range(8)])
        a.wait(60, read=False, write=True)
    assert bytes(batch[0]) == frame(0)
    slots = a.reserve(2)
    for call in (lambda: a.send([frame(1)]), lambda: a.reserve(1)):
        with pytest.raises(toklat.Lent):
            call()
    del slots
    a.send([frame(1)])
    batch.release()
    assert frame(99) in take(a, 1)


def test_a_batch_that_was_forgotten_gives_its_frames_back(daemon):
    a, b = pair(slots=16)
    for number in range(100):
        a.send([frame(number)])
        assert b.wait(60)
        assert bytes(b.receive(1)[0]) == frame(number)
        gc.collect()


def test_a_frame_of_several_slots_is_joined(daemon):
    left, right = toklat.Port("vale0:x{1"), toklat.Port("vale0:x}1")
    long = bytes(range(250)) * 30
    assert left.send([long]) == 1
    assert right.wait(60)
    with right.receive() as batch:
        assert bytes(batch[0]) == long and batch.copies() == [long]
        assert batch.lengths[0] < len(long)


def test_errors_come_by_kind(daemon):
    with pytest.raises(toklat.InvalidName):
        toklat.Port("nothing")
    with pytest.raises(toklat.NoSwitch):
        toklat.Port("vale9:a", existing=True)
    with pytest.raises(toklat.NoDaemon):
        toklat.Port("vale0:a", directory="/nonexistent")
    with pytest.raises(ValueError):
        toklat.Port("vale0:a", monitor="all")
    with toklat.Port("vale0:a", slots=16) as port:
        with pytest.raises(toklat.AlreadyOpen):
            toklat.Port("vale0:a")
        for wrong in ([b""], [bytes(port.max_frame + 1)]):
            with pytest.raises(ValueError):
                port.send(wrong)
        for wrong in (b"bytes", [7], [np.zeros(4, np.uint16)]):
            with pytest.raises((TypeError, BufferError)):
                port.send(wrong)
        with pytest.raises(ValueError):
            port.wait(-1)
        with pytest.raises(ValueError):
            port.receive(queue=3)
    assert port.closed
    for use in (port.receive, port.flush, port.fileno, port.reopen):
        with pytest.raises(toklat.Released):
            use()


def test_a_full_ring_takes_what_fits(daemon):
    # Nobody reads the other end of a pipe.
    left, _right = toklat.Port("vale0:x{2", slots=16), toklat.Port("vale0:x}2", slots=16)
    sent = left.send([frame(i) for i in range(40)])
    assert 0 < sent < 40
    assert left.send([frame(1)]) == 0
    with pytest.raises(toklat.Full):
        left.reserve(1)
    assert not left.wait(0.01, read=False, write=True)


def test_a_monitor_gets_copies(daemon):
    a, b = pair()
    monitor = toklat.Port("vale0:a", monitor="sent")
    a.send([frame(3)])
    assert take(monitor, 1) == take(b, 1) == [frame(3)]


def test_waiting_leaves_the_interpreter_to_other_threads(daemon):
    a, b = pair()
    came = []
    waiter = threading.Thread(target=lambda: came.extend(take(b, 1)))
    waiter.start()

    def is_busy():
        try:
            return b.closed
        except toklat.Busy:
            return True

    # This thread runs while the other waits, and is told so.
    wait_for("the other thread waits", is_busy)
    a.send([frame(4)])
    waiter.join(60)
    assert came == [frame(4)]


def test_select_and_asyncio_wait_for_frames(daemon):
    a, b = pair()
    assert not b.arm()
    assert select.select([b], [], [], 0)[0] == []
    a.send([frame(5)])
    assert select.select([b], [], [], 60)[0] == [b]
    b.disarm()
    assert take(b, 1) == [frame(5)]

    async def both():
        waiting = asyncio.ensure_future(toklat.ready(b))
        await asyncio.sleep(0)
        assert not waiting.done()
        a.send([frame(6)])
        await asyncio.wait_for(waiting, 60)

    asyncio.run(both())
    assert take(b, 1) == [frame(6)]


def test_a_restart_of_the_data_process_is_survived(daemon):
    daemon.toklat("switch", "add", "vale0")
    a, b = pair()
    a.send([frame(1)])
    assert take(b, 1) == [frame(1)]
    daemon.kill_data_process("vale0")

    def arrives():
        a.send([frame(2)])
        if not b.wait(0.2):
            return False
        with b.receive() as batch:
            return frame(2) in batch.copies()

    wait_for("a frame through the new data process", arrives)


def test_after_the_daemons_end_the_port_is_gone_and_reopens(daemon):
    a, b = pair()
    a.send([frame(1)])
    assert b.wait(60)
    batch = b.receive()
    view = batch[0]
    daemon.stop()

    def is_gone():
        try:
            a.wait(0.1)
        except toklat.Gone:
            return True

    wait_for("Gone", is_gone)
    with pytest.raises(toklat.NoDaemon):
        b.reopen()
    assert batch.released and len(bytes(view)) == 60
    daemon.start()
    for port in (a, b):
        port.reopen()
    a.send([frame(2)])
    assert take(b, 1) == [frame(2)]


def test_the_stubs_name_what_there_is():
    stubs = ast.parse(Path(toklat.__file__).with_name("__init__.pyi").read_text())
    classes = {node.name: node for node in stubs.body if isinstance(node, ast.ClassDef)}
    functions = {node.name for node in stubs.body if isinstance(node, ast.AsyncFunctionDef)}
    assert classes.keys() | functions == set(toklat.__all__)
    for name, node in classes.items():
        real = getattr(toklat, name)
        stubbed = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
        missing = {part for part in stubbed - {"__iter__"} if not hasattr(real, part)}
        unnamed = {part for part in vars(real) if not part.startswith("_")} - stubbed
        assert not missing and not unnamed, (name, missing, unnamed)
        bases = [base.id for base in node.bases]
        assert not bases or bases == [base.__name__ for base in real.__bases__]
    assert Path(toklat.__file__).with_name("py.typed").exists()


def test_the_other_end_of_a_pipe_may_change_a_frame_under_its_view(daemon):
    left, right = toklat.Port("vale0:x{3"), toklat.Port("vale0:x}3")
    left.send([frame(1)])
    assert right.wait(60)
    with right.receive() as batch, left.reserve(1) as slots:
        view, copy = batch[0], bytes(batch[0])
        # Both map one region; what was copied stays.
        slots.memory[batch.offsets[0] + 20] = 0xEE
        assert view[20] == 0xEE and copy == frame(1)
