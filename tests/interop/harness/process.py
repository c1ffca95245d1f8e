# SPDX-License-Identifier: Apache-2.0
"""Processes under test: started in a session of their own, output kept in files, every wait bounded.

    server = Process(["weft", "run", "h0", "--", "ib_write_bw", "-p", "21000"])
    wait_listening(21000, server)
    server.wait(30).expect_exit(0)

Output goes to files, not pipes: a program that prints a lot never blocks on us. `stop()` ends the whole session.
"""
import os
import random
import signal
import subprocess
import sys
import tempfile
import time


class Failure(Exception):
    """What a case found wrong, in words."""


class Skip(Exception):
    """Why a case cannot run on this machine."""


class Process:
    live = []  # so that an interrupted run leaves nothing behind

    def __init__(self, argv, env=None, cwd=None, text=True):
        self.argv = [str(a) for a in argv]
        self.out_file = tempfile.TemporaryFile()
        self.err_file = tempfile.TemporaryFile()
        self.popen = subprocess.Popen(self.argv, stdin=subprocess.DEVNULL, stdout=self.out_file, stderr=self.err_file,
                                      env=env, cwd=cwd, start_new_session=True)
        self.started = time.monotonic()
        Process.live.append(self)

    @staticmethod
    def read(file):
        # pread: the child shares this file's position; moving it would garble what the child writes next.
        return os.pread(file.fileno(), 64 << 20, 0).decode("utf-8", "replace")

    @property
    def stdout(self):
        return self.read(self.out_file)

    @property
    def stderr(self):
        return self.read(self.err_file)

    @property
    def pid(self):
        return self.popen.pid

    def command(self):
        return " ".join(self.argv)

    def running(self):
        return self.popen.poll() is None

    def wait(self, timeout):
        try:
            self.popen.wait(timeout)
        except subprocess.TimeoutExpired:
            self.stop()
            raise Failure(f"still running after {timeout:g} s: {self.describe()}") from None
        return self

    def wait_output(self, text, timeout):
        """Until stdout contains the text; a program that ends before is a failure."""
        wait_until(lambda: text in self.stdout or not self.running(), timeout,
                   lambda: f"no '{text}' within {timeout:g} s: {self.describe()}")
        if text not in self.stdout:
            raise Failure(f"ended without '{text}': {self.describe()}")
        return self

    def expect_exit(self, code):
        got = self.popen.returncode
        if got != code:
            raise Failure(f"exit code {got}, expected {code}: {self.describe()}")
        return self

    def expect_quiet(self):
        """Neither the program nor libweft complained."""
        lines = [line for line in self.stderr.splitlines() if line.strip() and not benign(line)]
        if lines:
            raise Failure(f"unexpected on stderr: {lines[0]} … {self.describe()}")
        return self

    def describe(self, most=12):
        tail = [line for line in (self.stdout + "\n" + self.stderr).splitlines() if line.strip()][-most:]
        return self.command() + "".join("\n        | " + line for line in tail)

    def program_pid(self, comm):
        """The process called `comm` below this one (`weft run` stays in between)."""
        found = None

        def look():
            nonlocal found
            found = find_descendant(self.pid, comm)
            return found is not None
        wait_until(look, 10, lambda: f"no process {comm} below {self.describe()}")
        return found

    def stop(self):
        if self in Process.live:
            Process.live.remove(self)
        try:
            os.killpg(self.popen.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.wait()

    @classmethod
    def stop_all(cls):
        for process in list(cls.live):
            process.stop()


def benign(line):
    """What perftest says on machines whose clock varies, or about its own defaults."""
    return any(word in line for word in ("Conflicting CPU frequency", "Max msg size in UD", "Changing to this MTU",
                                         "Requested mtu is higher", "CPU Frequency",
                                         "Device not recognized to implement inline"))


def find_descendant(pid, comm):
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8") as file:
            if file.read().strip() == comm[:15]:
                return pid
        children = []
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", encoding="utf-8") as file:
                children += [int(child) for child in file.read().split()]
    except (FileNotFoundError, ProcessLookupError):
        return None
    for child in children:
        found = find_descendant(child, comm)
        if found is not None:
            return found
    return None


def wait_until(condition, timeout, describe):
    """Polls a condition that nothing announces; 2 ms steps, bounded."""
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            raise Failure(describe())
        time.sleep(0.002)


def listening(port):
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table, encoding="ascii") as file:
                for line in file.readlines()[1:]:
                    fields = line.split()
                    if fields[3] == "0A" and int(fields[1].rsplit(":", 1)[1], 16) == port:
                        return True
        except FileNotFoundError:
            pass
    return False


def listening_at(address, port):
    """Does somebody listen at exactly this IPv4 address, by a socket of either family?"""
    word = "".join(f"{int(byte):02X}" for byte in reversed(address.split("."))) if sys.byteorder == "little" else \
        "".join(f"{int(byte):02X}" for byte in address.split("."))
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table, encoding="ascii") as file:
                for line in file.readlines()[1:]:
                    place, state = line.split()[1], line.split()[3]
                    if state == "0A" and place.endswith(f"{word}:{port:04X}"):
                        return True
        except FileNotFoundError:
            pass
    return False


def wait_listening(port, server, timeout=20):
    wait_until(lambda: listening(port) or not server.running(), timeout,
               lambda: f"nobody listens on {port}: {server.describe()}")
    if not server.running() and not listening(port):
        raise Failure(f"server ended before it listened (exit code {server.popen.returncode}): {server.describe()}")


_next_port = 20000 + random.SystemRandom().randrange(0, 9000)


def use_ports(lane, lanes):
    """Of several runners at a time each takes ports from its own part of the range."""
    global _next_port
    _next_port = 20000 + lane * (12000 // lanes) + _next_port % (6000 // lanes)


def new_port():
    """A TCP port of its own for every pair, so that no pair waits for another's TIME_WAIT."""
    global _next_port
    while True:
        _next_port = 20000 + (_next_port - 19999) % 12000
        if not listening(_next_port):
            return _next_port
