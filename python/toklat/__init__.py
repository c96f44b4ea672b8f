"""Ports of toklat's switches. ``__init__.pyi`` beside this file documents every name."""

import asyncio as _asyncio

from ._toklat import (
    AlreadyOpen,
    Batch,
    Busy,
    Denied,
    Error,
    Fault,
    Full,
    Gone,
    InvalidName,
    Lent,
    NoDaemon,
    NoSwitch,
    NotReset,
    OpenError,
    PeerFault,
    Port,
    Refused,
    Released,
    Reserved,
    __VERSION__ as __version__,
)

__all__ = [
    "AlreadyOpen", "Batch", "Busy", "Denied", "Error", "Fault", "Full", "Gone", "InvalidName", "Lent", "NoDaemon",
    "NoSwitch", "NotReset", "OpenError", "PeerFault", "Port", "Refused", "Released", "Reserved", "ready",
]


async def ready(port, *, read=True, write=False):
    """Waits in an asyncio loop until something can be done with the port."""
    port.flush()
    loop = _asyncio.get_running_loop()
    while not port.arm(read=read, write=write):
        woken = loop.create_future()
        # The reader may be called once more before it is removed.
        loop.add_reader(port.fileno(), lambda woken=woken: woken.done() or woken.set_result(None))
        try:
            await woken
        finally:
            loop.remove_reader(port.fileno())
            port.disarm()
    port.disarm()
