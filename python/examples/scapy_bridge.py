"""scapy on a port: prints what arrives, and answers ARP: `python scapy_bridge.py vale0:scapy 10.0.0.9`."""

import sys

import toklat
from scapy.data import MTU
from scapy.layers.l2 import ARP, Ether
from scapy.supersocket import SuperSocket

MINE = "02:00:00:00:00:09"


class PortSocket(SuperSocket):
    """A port as one of scapy's sockets: for `sniff(opened_socket=...)`, `srp(..., opened_socket=...)` and bridges."""

    desc = "toklat port"

    def __init__(self, name: str) -> None:
        self.port = toklat.Port(name)
        self.closed = False

    def fileno(self) -> int:
        return self.port.fileno()

    def send(self, packet: Ether) -> int:
        frame = bytes(packet)
        while self.port.send([frame]) == 0:
            self.port.wait(read=False, write=True)
        return len(frame)

    def recv(self, x: int = MTU, **options: object) -> Ether | None:
        with self.port.receive(1) as batch:
            frames = batch.copies()
        return Ether(frames[0][:x]) if frames else None

    @staticmethod
    def select(sockets: list[SuperSocket], remain: float | None = None) -> list[SuperSocket]:
        # Waits for the first: scapy asks for one socket at a time, or several of other kinds.
        port = next(socket.port for socket in sockets if isinstance(socket, PortSocket))
        port.wait(remain)
        return [s for s in sockets if not isinstance(s, PortSocket) or s.port.wait(0)]

    def close(self) -> None:
        self.closed = True
        self.port.close()


def main(name: str, address: str) -> None:
    socket = PortSocket(name)
    while True:
        socket.port.wait()
        packet = socket.recv()
        if packet is None:
            continue
        print(packet.summary(), flush=True)
        if ARP in packet and packet[ARP].op == 1 and packet[ARP].pdst == address:
            asked = packet[ARP]
            answer = ARP(op=2, hwsrc=MINE, psrc=address, hwdst=asked.hwsrc, pdst=asked.psrc)
            socket.send(Ether(src=MINE, dst=asked.hwsrc) / answer)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
