#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The switch pipeline beside DPDK's own forwarder, in one run.

    tools/bench/pipeline.py [--build build] [--seconds 3]

  null ports     NICs and switch between ports that copy nothing   |  testpmd, io forwarding between two net_null ports
  process ports  sender, daemon, receiver; lossless, with an ACK   |  testpmd txonly, io forwarding, rxonly over memif;
                 for each frame                                    |  lossy, no protocol

Prints Markdown rows. The comparison is of cost, not of function: testpmd looks at no header. Three busy pollers share
the machine in the memif case, as testpmd cannot sleep or yield.
"""
import argparse
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time


def switch_bench(build, seconds, *case):
    program = os.path.join(build, "tools/bench/switch_bench")
    out = subprocess.run([program, "--seconds", str(seconds), *case], capture_output=True, text=True, timeout=120,
                         check=True).stdout
    return float(re.search(r"([\d.]+) M frames/s", out).group(1))


class Testpmd:
    """One dpdk-testpmd that forwards until stopped; its received frames a second."""

    def __init__(self, folder, name, devices, *arguments):
        self.log = open(os.path.join(folder, name + ".txt"), "w+", encoding="utf-8", errors="replace")
        processors = ",".join(str(n) for n in sorted(os.sched_getaffinity(0)))
        command = ["dpdk-testpmd", "--no-huge", "--no-pci", "--no-telemetry", "-m", "256",
                   "--lcores", f"0@({processors}),1@({processors})", "--file-prefix", name]
        for device in devices:
            command += ["--vdev", device]
        command += ["--", "--nb-cores=1", "--auto-start", "--stats-period=1", "--total-num-mbufs=8192", *arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
                                        env=dict(os.environ, RUNTIME_DIRECTORY=folder))

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def received_per_second(self):
        """Of all ports together, median over the seconds after the first."""
        self.log.seek(0)
        rounds, current = [], 0
        for line in self.log:
            if line.startswith("Port statistics"):
                rounds.append(current)
                current = 0
            found = re.search(r"Rx-pps:\s+(\d+)", line)
            if found:
                current += int(found.group(1))
        rounds = [r for r in rounds[2:] if r > 0]
        if not rounds:
            raise RuntimeError("testpmd received nothing; see " + self.log.name)
        return statistics.median(rounds)


def testpmd_null(folder, seconds):
    pmd = Testpmd(folder, "null", ["net_null0,size=64", "net_null1,size=64"], "--forward-mode=io", "--tx-first")
    time.sleep(seconds + 3)
    pmd.stop()
    return pmd.received_per_second()


def testpmd_memif(folder, seconds, size):
    def device(number, role, link):
        socket = os.path.join(folder, f"memif{link}.sock")
        return f"net_memif{number},role={role},id={link},socket={socket},socket-abstract=no"

    switch = Testpmd(folder, "switch", [device(0, "server", 0), device(1, "server", 1)], "--forward-mode=io")
    for link in (0, 1):
        path = os.path.join(folder, f"memif{link}.sock")
        for _ in range(100):
            if os.path.exists(path):
                break
            time.sleep(0.1)
    receiver = Testpmd(folder, "receiver", [device(0, "client", 1)], "--forward-mode=rxonly")
    sender = Testpmd(folder, "sender", [device(0, "client", 0)], "--forward-mode=txonly", f"--txpkts={size}")
    time.sleep(seconds + 4)
    for pmd in (sender, receiver, switch):
        pmd.stop()
    return receiver.received_per_second()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("--build", default=os.path.join(here, "..", "..", "build"))
    parser.add_argument("--seconds", type=int, default=3)
    options = parser.parse_args()
    print("| pipeline | weft | testpmd |")
    print("|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="weft-testpmd-") as folder:
        rows = [("null ports, 64 B", ("null", "64"), lambda: testpmd_null(folder, options.seconds)),
                ("process ports, 64 B payload", ("stream", "64"),
                 lambda: testpmd_memif(folder, options.seconds, 64 + 58)),
                ("process ports, 2 KiB", ("stream", "2000"),
                 lambda: testpmd_memif(folder, options.seconds, 2000 + 58))]
        for title, case, peer in rows:
            ours = switch_bench(options.build, options.seconds, *case)
            try:
                theirs = f"{peer() / 1e6:.2f} M frames/s"
            except (OSError, RuntimeError) as error:
                theirs = f"failed: {error}"
            print(f"| {title} | {ours:.2f} M frames/s | {theirs} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
