"""Objective: the examples do what they say."""

import toklat
from conftest import wait_for

import pytest


def test_each_frame_of_the_generator_is_echoed(daemon):
    daemon.example("echo.py", "vale0:echo")
    wait_for("echo", lambda: daemon.has_port("vale0:echo"))
    generator = daemon.example("generator.py", "vale0:generator", "1000")
    told, _ = generator.communicate(timeout=120)
    assert told == "1000 sent, 1000 answered\n"


def test_scapy_answers_arp_on_a_port(daemon):
    layers = pytest.importorskip("scapy.layers.l2")
    bridge = daemon.example("scapy_bridge.py", "vale0:scapy", "10.0.0.9")
    wait_for("scapy", lambda: daemon.has_port("vale0:scapy"))
    mine = "02:00:00:00:00:05"
    with toklat.Port("vale0:asks") as port:
        asked = layers.Ether(src=mine, dst="ff:ff:ff:ff:ff:ff") / layers.ARP(hwsrc=mine, psrc="10.0.0.5", pdst="10.0.0.9")
        port.send([bytes(asked)])
        assert port.wait(60)
        with port.receive(1) as batch:
            answer = layers.Ether(batch.copies()[0])
    assert answer[layers.ARP].op == 2 and answer[layers.ARP].psrc == "10.0.0.9" and answer.dst == mine
    assert "who has 10.0.0.9" in bridge.stdout.readline()
