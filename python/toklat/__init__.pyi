"""Ports of toklat's switches.

A port is of one thread at a time; another one gets `Busy`. Frames lie in memory that the program shares with the
switch, and in a pipe with the other end: **another party may change the bytes under a view at any time**. Copy what you
check (``bytes(frame)``), and use the copy.
"""

from collections.abc import Iterable, Iterator
from os import PathLike
from types import TracebackType
from typing import Literal, Self, SupportsIndex

from typing_extensions import Buffer

__version__: str

class Error(Exception):
    """What the library raises; every other exception here is one."""

class OpenError(Error):
    """The port could not be opened."""

class InvalidName(OpenError):
    """The name is not ``switch:port``."""

class NoDaemon(OpenError):
    """No daemon listens: start ``toklat daemon``, or set ``TOKLAT_DIR``."""

class Denied(OpenError):
    """The daemon's socket may not be used by this user."""

class Refused(OpenError):
    """The daemon refused; the message says why."""

class AlreadyOpen(Refused):
    """Another client has the port."""

class NoSwitch(Refused):
    """The switch, or the port to be monitored, does not exist."""

class Fault(Error):
    """The switch found something malformed in the rings: call `Port.reset`."""

class PeerFault(Error):
    """The other side broke the rings: close the port, and open it again."""

class Gone(Error):
    """The port was removed, or its daemon ended: call `Port.reopen`."""

class NotReset(Error):
    """The switch did not reset the port: close it, and open it again."""

class Full(Error):
    """`Port.reserve` found no free slot: call ``wait(read=False, write=True)``."""

class Busy(Error):
    """Another thread uses the port."""

class Lent(Error):
    """A batch or slots are lent, which the call would take back: release them first."""

class Released(Error):
    """The batch was released, or its port closed, reset or reopened."""

class Batch:
    """Received frames, oldest first, lent until `release` or the end of the ``with`` block.

    A view that is kept beyond that stays mapped, and never points to nothing. But its buffer is the switch's again:
    it shows what later frames leave there.
    """

    def __len__(self) -> int: ...
    def __getitem__(self, index: SupportsIndex, /) -> memoryview:
        """A read-only view of the frame; of several slots, a joined copy. Raises `Released`."""
    def __iter__(self) -> Iterator[memoryview]: ...
    def copies(self) -> list[bytes]:
        """Copies of all frames, to be kept."""
    @property
    def memory(self) -> memoryview:
        """All buffers of the port, read-only. With NumPy, ``memory[offsets + 12]`` is a column of the batch."""
    @property
    def offsets(self) -> memoryview:
        """Where each frame begins in `memory`: a copy, as 64-bit integers."""
    @property
    def lengths(self) -> memoryview:
        """Bytes of each frame at its offset: all, unless the frame has several slots. 64-bit integers."""
    @property
    def released(self) -> bool: ...
    def release(self) -> None:
        """Gives the frames back to the ring, and publishes what was sent. Raises as `Port.flush` does."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...

class Reserved:
    """Free slots, lent to be filled in place. At the end of the ``with`` block those not committed stay free."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: SupportsIndex, /) -> memoryview:
        """A writable view of a slot, of `capacity` bytes. What is written after `commit` may or may not be sent."""
    def __iter__(self) -> Iterator[memoryview]: ...
    @property
    def memory(self) -> memoryview:
        """All buffers of the port, writable."""
    @property
    def offsets(self) -> memoryview:
        """Where each slot begins in `memory`: a copy, as 64-bit integers."""
    @property
    def capacity(self) -> int:
        """Bytes that a slot takes."""
    def commit(self, lengths: SupportsIndex | Iterable[SupportsIndex], /) -> int:
        """Sends the slots, one frame each: of this length, or the first ones of these lengths.

        Returns how many. Raises `ValueError`, and sends nothing, if a length does not fit.
        """
    def release(self) -> None:
        """Gives the slots up without sending them."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...

class Port:
    """An open port. It closes at the end of the ``with`` block, or when it is collected.

    It survives a restart of the data process without a word; frames may be lost. After `Gone`, call `reopen`.
    """

    def __init__(
        self,
        name: str,
        *,
        slots: int = 1024,
        send_queues: int = 1,
        receive_queues: int = 1,
        monitor: Literal["sent", "received", "both"] | None = None,
        exclusive: bool = False,
        existing: bool = False,
        unlimited: bool = False,
        directory: str | PathLike[str] | None = None,
    ) -> None:
        """Opens ``switch:port``, or an end of a pipe (``switch:name{1``, ``switch:name}1``).

        slots: of every ring, 2 to 4,096. monitor: get copies of what the port's owner sends or receives instead.
        exclusive: ask for the port alone. existing: do not make a switch. unlimited: a new port has no limits but the
        switch's. directory: the daemon's, if not ``$TOKLAT_DIR``. Raises `OpenError`.
        """
    @property
    def name(self) -> str: ...
    @property
    def max_frame(self) -> int:
        """Bytes of the longest frame that can be sent."""
    @property
    def queues(self) -> tuple[int, int]:
        """Send and receive queues."""
    @property
    def slots(self) -> tuple[int, int]:
        """Slots of a send and of a receive ring."""
    @property
    def closed(self) -> bool: ...
    def receive(self, max: int = 64, *, queue: int = 0) -> Batch:
        """Up to `max` frames that are there; does not wait. Raises `Lent` while another batch is lent."""
    def send(self, frames: Iterable[Buffer], *, queue: int = 0) -> int:
        """Copies frames into free slots until there is no room, and publishes them. Returns how many.

        While a received batch is lent, its release publishes them. A frame of no bytes or more than `max_frame` is a
        `ValueError`; the frames before it are sent.
        """
    def reserve(self, count: int, *, queue: int = 0) -> Reserved:
        """Up to `count` free slots, to be filled without a copy. Raises `Full`."""
    def flush(self) -> None:
        """Publishes; `send`, `Reserved.commit` and `Batch.release` do it themselves."""
    def wait(self, timeout: float | None = None, *, read: bool = True, write: bool = False) -> bool:
        """Sleeps, without the interpreter's lock, until frames (or free slots) are there; False after `timeout` seconds."""
    def fileno(self) -> int:
        """The descriptor for select and asyncio: readable after `arm`. `reopen` changes it."""
    def arm(self, *, read: bool = True, write: bool = False) -> bool:
        """Has the descriptor become readable when something is there. True: something is there, do not wait."""
    def disarm(self) -> None:
        """Takes `arm` back, and empties the descriptor. Raises `Gone`."""
    def check(self) -> None:
        """Raises the error that the port is in, if it is in one."""
    def reset(self) -> None:
        """Brings the port out of its error state. What was in the rings is lost."""
    def reopen(self) -> None:
        """Opens the port again under its name, after `Gone`. Raises `OpenError`; then try again later."""
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...

async def ready(port: Port, *, read: bool = True, write: bool = False) -> None:
    """Flushes, then waits in an asyncio loop until frames (or free slots) are there. Raises `Gone`."""
