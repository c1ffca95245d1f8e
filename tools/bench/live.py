# SPDX-License-Identifier: Apache-2.0
"""The live fabric's own figures: perftest between h0 and h1, and what an idle fabric costs."""
import os
import re
import statistics
import time

from harness.fabric import Fabric
from harness.pair import result_rows, run_tool

IDLE_SECONDS = 10
TICK = os.sysconf("SC_CLK_TCK")


class Live:
    def __init__(self, build):
        self.weft = os.path.join(build, "tools", "weft")
        self.programs = os.path.join(build, "tests", "interop")
        self.fabric = Fabric(self.weft).up()

    def close(self):
        self.fabric.down()

    def _row(self, argv):
        _, client = run_tool(self.fabric, argv, timeout=180)
        return result_rows(client.stdout)[-1]

    def bytes_per_second(self):
        row = self._row(["ib_write_bw", "-F", "-m", "4096", "-s", "65536", "-n", "50000"])
        return row[2][1] * (1 << 20)

    def messages_per_second(self):
        row = self._row(["ib_write_bw", "-F", "-m", "4096", "-s", "8", "-n", "500000", "-N"])
        return row[2][2] * 1e6

    def latency_us(self):
        """t_typical: the median half round trip."""
        return self._row(["ib_send_lat", "-F", "-m", "4096", "-s", "8", "-n", "20000"])[2][2]

    def write_latency_us(self):
        """ib_write_lat spins on memory and never polls: the other way a program waits."""
        return self._row(["ib_write_lat", "-F", "-m", "4096", "-s", "8", "-n", "5000"])[2][2]


def cpu_ticks(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def smaps(pid):
    """[(mapping's name, PSS in bytes)…]"""
    rows, name = [], ""
    with open(f"/proc/{pid}/smaps", encoding="utf-8") as file:
        for line in file:
            header = re.match(r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \d+\s*(.*)$", line)
            if header:
                name = header.group(1)
            elif line.startswith("Pss:"):
                rows.append((name, int(line.split()[1]) * 1024))
    return rows


def port_memory(pid):
    """What being attached adds: libweft and the memory it shares with the daemon."""
    return sum(size for name, size in smaps(pid) if "libweft" in name or "memfd:" in name)


def idle(build):
    """A fabric with two attached, blocked programs: (share of a core, PSS added per attached process)."""
    live = Live(build)
    try:
        fabric = live.fabric
        tool = os.path.join(live.programs, "process_life")
        sleepers = [fabric.start(host, [tool, "blocked"]) for host in ("h0", "h1")]
        for sleeper in sleepers:
            sleeper.wait_output("blocked", 20)
        programs = [sleeper.program_pid("process_life") for sleeper in sleepers]
        pids = programs + [fabric.daemon_pid()]
        before = sum(map(cpu_ticks, pids))
        time.sleep(IDLE_SECONDS)  # the measurement itself
        share = (sum(map(cpu_ticks, pids)) - before) / TICK / IDLE_SECONDS
        memory = statistics.mean(map(port_memory, programs))
        daemon = sum(size for _, size in smaps(fabric.daemon_pid()))
        for sleeper in sleepers:
            sleeper.stop()
        return share, memory, daemon
    finally:
        live.close()


def up_seconds(build):
    fabric = Fabric(os.path.join(build, "tools", "weft"))
    try:
        return fabric.up().up_seconds
    finally:
        fabric.down()
