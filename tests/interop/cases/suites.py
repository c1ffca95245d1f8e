# SPDX-License-Identifier: Apache-2.0
"""Other people's programs that judge a NIC: qperf and ibv_asyncwatch."""
import re

from harness.pair import CROSS, SAME, start_pair
from harness.process import Failure, wait_until
from harness.report import Case

# qperf opens its device anew for every test and runs each for a second. The verifications fail by themselves when a
# value is not what it must be.
QPERF_VERIFY = ("ver_rc_compare_swap", "ver_rc_fetch_add")
QPERF_SOME = QPERF_VERIFY + ("rc_bw", "rc_lat", "uc_bw", "ud_lat", "rc_rdma_read_bw", "rc_rdma_write_lat", "rc_fetch_add_mr")
QPERF_ALL = QPERF_VERIFY + (
    "rc_bw", "rc_bi_bw", "rc_lat", "uc_bw", "uc_bi_bw", "uc_lat", "ud_bw", "ud_bi_bw", "ud_lat", "rc_rdma_read_bw",
    "rc_rdma_read_lat", "rc_rdma_write_bw", "rc_rdma_write_lat", "rc_rdma_write_poll_lat", "uc_rdma_write_bw",
    "uc_rdma_write_lat", "uc_rdma_write_poll_lat", "rc_compare_swap_mr", "rc_fetch_add_mr")
DEVICE_FATAL = "fatal"


def address_of(fabric, host):
    for row in fabric.show("hosts")["hosts"]:
        if row["name"] == host:
            return row["nics"][0]["ipv4"] if "nics" in row else row["ipv4"]
    raise Failure(f"no host {host} in {fabric.show('hosts')}")


def qperf(tests, options=(), hosts=CROSS, env=None):
    """One server, one client with all the tests. qperf knows LIDs only: roce_address.c gives its addresses a GRH."""
    def run(context):
        fabric = context.shared_fabric()
        shim = context.program("libroce_address.so")
        common = {"LD_PRELOAD": shim, **(env or {})}
        # The server learns nothing about its client, so it is told by the environment too.
        server, client = start_pair(
            fabric, lambda port: ["qperf", "-lp", str(port)],
            lambda port, host: ["qperf", "-lp", str(port), "-t", "1", *options, host, *tests], hosts, common,
            server_env={"ROCE_PEER": address_of(fabric, hosts[1])}, client_env={"ROCE_PEER": address_of(fabric, hosts[0])})
        client.wait(90).expect_exit(0).expect_quiet()
        for test in tests:
            if not re.search(rf"^{test}:$", client.stdout, re.MULTILINE):
                raise Failure(f"{test} reported nothing: {client.describe()}")
        figures = re.findall(r"^ +(?:bw|latency|msg_rate|send_bw) += +([\d.]+)", client.stdout, re.MULTILINE)
        if len(figures) < len(tests) or any(float(figure) <= 0 for figure in figures):
            raise Failure(f"{len(figures)} figures for {len(tests)} tests: {client.describe(60)}")
        server.stop()
    return run


def asyncwatch(context):
    """It sleeps on the asynchronous events, and prints the one that the daemon's death is."""
    with context.make_fabric() as fabric:
        # Its output goes to a file, and it does not flush.
        watch = fabric.start("h0", ["stdbuf", "-oL", "ibv_asyncwatch", "-d", "rxe0"])
        wait_until(lambda: fabric.show("hosts")["hosts"][0]["processes"] or not watch.running(), 20, watch.describe)
        fabric.kill_daemon()
        wait_until(lambda: DEVICE_FATAL in watch.stdout.lower() or not watch.running(), 10, watch.describe)
        if DEVICE_FATAL not in watch.stdout.lower():
            raise Failure(f"no fatal event: {watch.describe()}")


def cases():
    ci, full = ("ci", "full", "suites"), ("full", "suites")
    yield Case("qperf/some", qperf(QPERF_SOME), ci, 120)
    yield Case("qperf/verify/same-host", qperf(QPERF_VERIFY, hosts=SAME), ci, 120)
    yield Case("qperf/verify/inline-off", qperf(QPERF_VERIFY, env={"WEFT_INLINE": "0"}), ci, 120)
    yield Case("qperf/all", qperf(QPERF_ALL), full, 120)
    yield Case("qperf/all/same-host", qperf(QPERF_ALL, hosts=SAME), full, 120)
    yield Case("qperf/all/polling", qperf(QPERF_ALL, ["-cp1"]), full, 120)
    yield Case("asyncwatch/daemon-killed", asyncwatch, ci)
