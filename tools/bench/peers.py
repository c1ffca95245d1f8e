# SPDX-License-Identifier: Apache-2.0
"""What Weft is measured against: iperf3 over a veth pair, ucx_perftest over TCP, and the bare programs beside this file.

Each function makes one run and returns one figure.
"""
import csv
import json
import os
import subprocess

from harness.process import Failure, Process, new_port, wait_listening

SECONDS = 2


def run_json(argv):
    result = subprocess.run(argv, stdout=subprocess.PIPE, check=True, text=True, timeout=120)
    return json.loads(result.stdout)


class Iperf:
    """TCP between two network namespaces over a veth pair; over loopback where namespaces are not allowed."""

    def __init__(self):
        self.namespace = f"weftbench{os.getpid()}"
        self.address, self.wrap = "127.0.0.1", []
        self.place = "loopback (no network namespaces allowed here)"

    def __enter__(self):
        link = ["link", "add", "weftbench0", "type", "veth", "peer", "name", "weftbench1", "netns", self.namespace]
        steps = [["netns", "add", self.namespace], link, ["addr", "add", "10.213.77.1/30", "dev", "weftbench0"],
                 ["link", "set", "weftbench0", "up"],
                 ["-n", self.namespace, "addr", "add", "10.213.77.2/30", "dev", "weftbench1"],
                 ["-n", self.namespace, "link", "set", "weftbench1", "up"],
                 ["-n", self.namespace, "link", "set", "lo", "up"]]
        for step in steps:
            if subprocess.run(["ip", *step], stderr=subprocess.DEVNULL, check=False).returncode:
                self.remove()
                return self
        self.address, self.wrap = "10.213.77.2", ["ip", "netns", "exec", self.namespace]
        self.place = "a veth pair"
        return self

    def remove(self):
        for step in (["link", "del", "weftbench0"], ["netns", "del", self.namespace]):
            subprocess.run(["ip", *step], stderr=subprocess.DEVNULL, check=False)

    def __exit__(self, *_):
        if self.wrap:
            self.remove()

    def bytes_per_second(self):
        port = new_port()
        server = Process([*self.wrap, "iperf3", "-s", "-1", "-p", port, "--forceflush"])
        server.wait_output("listening", 10)  # its port may be in another namespace's tables
        client = Process(["iperf3", "-c", self.address, "-p", port, "-t", SECONDS, "-J"])
        try:
            report = json.loads(client.wait(30).expect_exit(0).stdout)
            return report["end"]["sum_received"]["bits_per_second"] / 8
        finally:
            server.stop()
            client.stop()


def ucx(test, size, iterations):
    """ucx_perftest's CSV row over TCP on loopback, as a dictionary of floats."""
    env = dict(os.environ, UCX_TLS="tcp", UCX_NET_DEVICES="lo")
    port = new_port()
    server = Process(["ucx_perftest", "-p", port], env=env)
    wait_listening(port, server)
    client = Process(["ucx_perftest", "localhost", "-p", port, "-t", test, "-s", size, "-n", iterations, "-f", "-v"],
                     env=env)
    try:
        client.wait(120).expect_exit(0)
        lines = [line for line in client.stdout.splitlines() if "," in line]
        rows = list(csv.DictReader(lines))
        if not rows:
            raise Failure(f"no figures: {client.describe()}")
        return {key: float(value) for key, value in rows[-1].items()}
    finally:
        server.stop()
        client.stop()


def ucx_bytes_per_second():
    return ucx("tag_bw", 65536, 20000)["overall_bw"] * (1 << 20)


def ucx_latency_us():
    return ucx("tag_lat", 8, 20000)["50.0_percentile_lat"]


def ucx_messages_per_second():
    return ucx("tag_bw", 8, 100000)["overall_mr"]


class Bare:
    """The programs of this folder, from the build folder."""

    def __init__(self, build):
        self.folder = os.path.join(build, "tools", "bench")

    def bytes_per_second(self):
        return run_json([os.path.join(self.folder, "bare_port_bench"), "4096", "1000000"])["bytes_per_s"]

    def frames_per_second(self):
        return run_json([os.path.join(self.folder, "bare_port_bench"), "64", "5000000"])["frames_per_s"]

    def turn_us(self):
        return run_json([os.path.join(self.folder, "flag_ring_bench"), "3", "50000"])["p50_us"]
