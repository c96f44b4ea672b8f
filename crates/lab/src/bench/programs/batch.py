"""batch.py SEND RECEIVE SECONDS: Mpps from one port to another in batches of 256, both in one thread on core 0.

The sender writes a header into each frame of 64 bytes, the receiver sums one byte of each. Prints one number.
"""

import os
import sys
import time

import numpy as np
import toklat

COUNT, LENGTH, COLUMN = 256, 64, 11
TO, FROM = bytes.fromhex("020000000002"), bytes.fromhex("020000000001")
HEADER = np.frombuffer(TO + FROM + b"\x88\xb5", np.uint8)
PLACES = np.arange(len(HEADER))


def send(port):
    try:
        slots = port.reserve(COUNT)
    except toklat.Full:
        return
    with slots:
        memory, offsets = np.asarray(slots.memory), np.asarray(slots.offsets)
        memory[offsets[:, None] + PLACES] = HEADER
        slots.commit(LENGTH)


def take(port):
    """Returns how many frames arrived, and the sum of the column."""
    with port.receive(COUNT) as batch:
        if not len(batch):
            return 0, 0
        memory, offsets = np.asarray(batch.memory), np.asarray(batch.offsets)
        return len(batch), int(memory[offsets + COLUMN].sum())


def main(sender, receiver, seconds):
    os.sched_setaffinity(0, [0])
    with toklat.Port(sender) as a, toklat.Port(receiver) as b:
        # The switch learns where the receiver is; its frame is flooded to the sender.
        b.send([(FROM + TO + b"\x88\xb5").ljust(60, b"\0")])
        assert a.wait(10)
        a.receive(COUNT).release()
        start, begin, frames, total = time.monotonic(), None, 0, 0
        while True:  # The first fifth warms up.
            for _ in range(16):
                send(a)
                came, column = take(b)
                frames += came
                total += column
            end = time.monotonic()
            assert total == frames * HEADER[COLUMN]
            if begin is None and end - start > seconds / 5:
                begin, frames, total = end, 0, 0
            elif begin is not None and end - start > seconds:
                break
    print(frames / (end - begin) / 1e6)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
