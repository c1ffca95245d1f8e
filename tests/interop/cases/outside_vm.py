# SPDX-License-Identifier: Apache-2.0
"""Linux's own soft-RoCE, in a virtual machine on the tap port, talks to an emulated host: both roles, both MTUs, and loss."""
import os
import re
import socket

from cases.outside import metric, scenario, topology
from harness import vm as machine
from harness.netns import NetworkNamespace, ip
from harness.process import Failure, new_port, wait_listening, wait_until
from harness.report import Case

TOOLS = (["ib_send_bw", "-s", "10000"], ["ib_write_bw", "-s", "10000"], ["ib_read_bw", "-s", "10000"], ["ib_atomic_bw"],
         ["ib_send_bw", "-c", "UD", "-s", "1000"])
SLOW = ["-u", "18", "-n", "20", "-t", "8", "-x", "1", "-F"]  # the machine is emulated: a second per timeout
SHELL = """while true; do
  nc 192.168.76.2 PORT </dev/null >/tmp/word || exit 9
  [ "$(cat /tmp/word)" = end ] && exit 0
  sh /tmp/word
done
"""


class Machine:
    """The virtual machine as a shell: one command after another, its output on the console."""

    def __init__(self, files, tap, forward):
        self.port = new_port()
        self.listener = socket.create_server(("127.0.0.1", self.port))
        self.listener.settimeout(60)
        self.commands = 0
        self.process = machine.start(files, "198.18.0.100/15", tap, SHELL.replace("PORT", str(self.port)), forward)

    @property
    def console(self):
        return self.process.stdout.replace("\r", "")

    def called(self):
        """It asks for its next command when the last one has ended."""
        try:
            return self.listener.accept()[0]
        except TimeoutError:
            raise Failure(f"the virtual machine asks for nothing; the console ends:\n{self.console[-2000:]}") from None

    def tell(self, command):
        """Starts a command; its number."""
        self.commands += 1
        with self.called() as connection:
            connection.sendall(f"{command}; echo \"== done {self.commands} $?\"\n".encode())
        return self.commands

    def wait_line(self, start, timeout):
        """A whole line that starts so: the console comes in pieces."""
        wait_until(lambda: re.search(f"^{start}.*\n", self.console, re.M) or not self.process.running(), timeout,
                   lambda: f"no '{start}' within {timeout} s; the console ends:\n{self.console[-2000:]}")

    def wait(self, number, timeout=60):
        self.wait_line(f"== done {number} ", timeout)
        if f"== done {number} 0\n" not in self.console:
            raise Failure(f"command {number} failed in the virtual machine:\n{self.console[-2500:]}")

    def end(self):
        with self.called() as connection:
            connection.sendall(b"end")
        self.process.wait(30)
        machine.expect_exit(self.process)


def machine_is_client(fabric, vm, argv):
    port = new_port()
    server = fabric.start("h0", [*argv, "-p", port])
    wait_listening(port, server)
    vm.wait(vm.tell(" ".join([*argv, "-p", str(port), "192.168.76.2"])))
    server.wait(30).expect_exit(0)


def machine_is_server(fabric, vm, argv, port):
    words = " ".join([*argv, "-p", str(port)])
    number = vm.tell(f"{words} & pid=$!; until netstat -ltn | grep -q :{port}; do sleep 0.1; done; echo == listening {port} {vm.commands}; wait $pid")
    vm.wait_line(f"== listening {port} {number - 1}", 30)
    client = fabric.start("h1", [*argv, "-p", port, "localhost"])
    client.wait(60).expect_exit(0)
    vm.wait(number)


def wire_up(fabric):
    """The fabric's tap and the machine's on one bridge, as a cable."""
    ip("link", "set", "weft-t0", "master", "weft-br")
    ip("link", "set", "weft-t0", "up")
    wait_until(lambda: metric(fabric, "outside_link_up") == 1, 5, lambda: "the tap does not come up")


def run_cells(fabric, vm, tools, mtus, forward, failures):
    for mtu in mtus:
        for tool in tools:
            argv = [*tool, "-m", str(mtu), *SLOW]
            for role in ("client", "server"):
                try:
                    if role == "client":
                        machine_is_client(fabric, vm, argv)
                    else:
                        machine_is_server(fabric, vm, argv, forward)
                except Failure as failure:
                    failures.append(f"{' '.join(tool)} MTU {mtu}, the virtual machine as {role}: {failure}")
                    return  # its shell may still be in the command that failed


def soft_roce(context):
    """One boot serves all: twenty cells without loss, eight with one percent on the fabric's links."""
    files = machine.build(os.path.join(context.programs, "soft-roce-vm"))
    with NetworkNamespace():
        forward = new_port()
        ip("link", "add", "weft-br", "mtu", "9000", "type", "bridge")
        ip("tuntap", "add", "dev", "weft-q0", "mode", "tap")
        for words in (("weft-q0", "mtu", "9000"), ("weft-q0", "master", "weft-br"), ("weft-q0", "up"), ("weft-br", "up")):
            ip("link", "set", *words)
        vm = Machine(files, "weft-q0", [forward])
        failures = []
        # Lost datagrams stay lost, and perftest would wait for them: with loss only the reliable transport.
        for options, tools, mtus in (([], TOOLS, (1024, 4096)), (["--drop", "1%", "--seed", "3"], TOOLS[:4], (4096,))):
            fabric = context.make_fabric(["--shared-tcp", *options])
            fabric.options.append(scenario(fabric.base, "vm.yaml", topology("{tap: weft-t0, attach: s0, rate: 10G}")))
            with fabric:
                wire_up(fabric)
                run_cells(fabric, vm, tools, mtus, forward, failures)
                if metric(fabric, "outside_drops", reason="bad_icrc"):
                    failures.append("soft-RoCE's frames had a bad ICRC")
        if failures:
            raise Failure(f"{len(failures)} of 28 cells failed; the first: {failures[0]}\nall: " +
                          "; ".join(text.split(":")[0] for text in failures))
        vm.end()


def cases():
    yield Case("outside/vm/soft-roce", soft_roce, ("full", "vm"), 600)
