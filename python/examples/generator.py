"""Sends frames, and counts the answers: `python generator.py vale0:generator 1000`."""

import sys

import toklat

MINE, ALL = bytes.fromhex("020000000001"), b"\xff" * 6
FRAME = (ALL + MINE + b"\x88\xb5").ljust(60, b"\0")


def send(port: toklat.Port, count: int) -> int:
    """Fills up to `count` free slots in place; returns how many frames were sent."""
    with port.reserve(min(count, 256)) as slots:
        for slot in slots:
            slot[: len(FRAME)] = FRAME
        return slots.commit(len(FRAME))


def main(name: str, count: int) -> None:
    sent = answers = 0
    with toklat.Port(name) as port:
        while sent < count:
            if port.wait(1.0, read=False, write=True):
                sent += send(port, count - sent)
            with port.receive(256) as batch:
                answers += len(batch)
        while answers < sent and port.wait(1.0):
            with port.receive(256) as batch:
                answers += len(batch)
    print(f"{sent} sent, {answers} answered")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
