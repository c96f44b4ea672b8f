"""Answers each frame: `python echo.py vale0:echo`."""

import sys

import toklat


def answer(frame: memoryview) -> bytes:
    """The frame, with the addresses exchanged."""
    copy = bytes(frame)
    return copy[6:12] + copy[:6] + copy[12:]


def main(name: str) -> None:
    with toklat.Port(name) as port:
        while port.wait():
            with port.receive(256) as batch:
                port.send(answer(frame) for frame in batch if len(frame) >= 14)


if __name__ == "__main__":
    main(sys.argv[1])
