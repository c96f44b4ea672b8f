"""A daemon for each test. `TOKLAT` names its program; `cargo test -p toklat --test programs python` sets it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def wait_for(what, it):
    """What `it` returns, once that is true; within a minute."""
    deadline = time.monotonic() + 60
    while not (found := it()):
        assert time.monotonic() < deadline, f"not within a minute: {what}"
        time.sleep(0.01)
    return found


def frame(number, length=60):
    head = b"\xff" * 6 + bytes([2, 0, 0, 0, 0, 1]) + b"\x88\xb5" + number.to_bytes(4, "big")
    return head.ljust(length, bytes([number % 251]))


def take(port, count):
    """Copies of the next `count` frames."""
    frames = []
    while len(frames) < count:
        assert port.wait(60), f"{len(frames)} of {count} frames came"
        with port.receive(count - len(frames)) as batch:
            frames += batch.copies()
    return frames


class Daemon:
    def __init__(self, directory):
        self.environment = os.environ | {"TOKLAT_DIR": str(directory)}
        self.program = os.environ.get("TOKLAT", "toklat")
        self.process = None
        self.programs = []
        self.start()

    def start(self):
        self.process = subprocess.Popen([self.program, "daemon"], env=self.environment, stdin=subprocess.DEVNULL)
        wait_for("daemon", lambda: self.toklat("switch", "show", "--json") is not None)

    def stop(self):
        self.process.terminate()
        self.process.wait(60)

    def toklat(self, *args):
        done = subprocess.run([self.program, *args], env=self.environment, capture_output=True, text=True, check=False)
        return done.stdout if done.returncode == 0 else None

    def data_process(self, switch):
        def pid():
            shown = json.loads(self.toklat("switch", "show", switch, "--json") or "{}")
            shown = shown[0] if isinstance(shown, list) else shown
            return shown.get("pid")

        return wait_for("data process", pid)

    def kill_data_process(self, switch):
        """Kills it; returns when another one runs."""
        old = self.data_process(switch)
        os.kill(old, signal.SIGKILL)
        wait_for("another data process", lambda: self.data_process(switch) != old)

    def example(self, name, *args):
        command = [sys.executable, "-u", str(EXAMPLES / name), *args]
        program = subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE, text=True)
        self.programs.append(program)
        return program

    def has_port(self, name):
        return self.toklat("port", "show", name) is not None


@pytest.fixture
def daemon(tmp_path, monkeypatch):
    monkeypatch.setenv("TOKLAT_DIR", str(tmp_path))
    daemon = Daemon(tmp_path)
    yield daemon
    for program in daemon.programs:
        program.kill()
        program.wait()
    daemon.stop()
