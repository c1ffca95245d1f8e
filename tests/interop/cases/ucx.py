# SPDX-License-Identifier: Apache-2.0
"""UCX: its verbs transports over the NIC, and what it chooses by itself. It decides by the boot id and the host's name
whether shared memory is possible, and by devices and interfaces what else is."""
import re
import shutil

from harness.pair import CROSS, SAME
from harness.process import Failure, Skip, listening_at, wait_until
from harness.report import Case

PORT = 13337
SIZE, COUNT = 65536, 500


def sent_bytes(fabric):
    return sum(m["value"] for m in fabric.show("metrics") if m["name"] == "nic_tx_bytes")


def perftest(fabric, hosts, test, size, count, env):
    """Runs a pair; returns what crossed the NICs meanwhile."""
    if not shutil.which("ucx_perftest"):
        raise Skip("no ucx_perftest")
    at = next(host["loopback"] for host in fabric.show("hosts")["hosts"] if host["name"] == hosts[0])
    tool = ["ucx_perftest", "-t", test, "-s", str(size), "-n", str(count), "-w", "10"]
    before = sent_bytes(fabric)
    server = fabric.start(hosts[0], tool, env=env)
    wait_until(lambda: listening_at(at, PORT) or not server.running(), 20, lambda: f"no server: {server.describe()}")
    client = fabric.start(hosts[1], tool + [hosts[0]], env=env)
    client.wait(60).expect_exit(0)
    server.wait(20).expect_exit(0)
    for process in (client, server):
        if re.search(r"UCX +(ERROR|WARN|FATAL)", process.stdout + process.stderr):
            raise Failure(f"UCX complains: {process.describe(30)}")
    if not re.search(rf"^Final: +{count} ", client.stdout, re.M):
        raise Failure(f"no result: {client.describe()}")
    return sent_bytes(fabric) - before


def over_nic(test, size, count, env=None):
    def run(context):
        crossed = perftest(context.shared_fabric(), CROSS, test, size, count, env or {})
        if crossed < size * count:
            raise Failure(f"{crossed} bytes crossed the NICs, the test sent {size * count}")
    return run


def within_one_host(context):
    """Messages small enough to be copied; large ones UCX spreads over everything that moves bytes, the NIC among them."""
    crossed = perftest(context.shared_fabric(), SAME, "tag_bw", 4096, 2000, {})
    if crossed > 4096 * 2000 // 10:
        raise Failure(f"{crossed} bytes crossed the NIC between two programs of one host")


def cases():
    ci = ("ci", "full", "ucx")
    yield Case("ucx/rc_verbs-latency", over_nic("tag_lat", 8, 1000, {"UCX_TLS": "rc_verbs,ud_verbs:aux"}), ci)
    yield Case("ucx/rc_verbs-bandwidth", over_nic("tag_bw", SIZE, COUNT, {"UCX_TLS": "rc_verbs,ud_verbs:aux"}), ci)
    yield Case("ucx/rc_verbs-put", over_nic("ucp_put_bw", SIZE, COUNT, {"UCX_TLS": "rc_verbs,ud_verbs:aux"}), ci)
    yield Case("ucx/rc_verbs-get", over_nic("ucp_get", SIZE, COUNT, {"UCX_TLS": "rc_verbs,ud_verbs:aux"}), ci)
    yield Case("ucx/rc_verbs-atomics", over_nic("ucp_fadd", 8, 1000, {"UCX_TLS": "rc_verbs,ud_verbs:aux"}), ci)
    yield Case("ucx/ud_verbs-latency", over_nic("tag_lat", 8, 1000, {"UCX_TLS": "ud_verbs"}), ci)
    yield Case("ucx/ud_verbs-bandwidth", over_nic("tag_bw", SIZE, COUNT, {"UCX_TLS": "ud_verbs"}), ci)
    yield Case("ucx/by-itself-between-hosts", over_nic("tag_bw", SIZE, COUNT), ci)
    yield Case("ucx/by-itself-within-a-host", within_one_host, ci)
