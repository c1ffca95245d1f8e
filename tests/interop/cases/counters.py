# SPDX-License-Identifier: Apache-2.0
"""Counters: the files of sysfs tell the moment, agree with `weft show metrics`, and survive the programs they count."""
import os
import signal

from harness.pair import expect_stream_ok, run_tool, stream_pair
from harness.process import Failure, wait_until
from harness.report import Case

FOLDER = "/sys/class/infiniband/rxe0/ports/1"
RXE = ("sent_pkts", "rcvd_pkts", "duplicate_request", "out_of_seq_request", "rcvd_rnr_err", "send_rnr_err", "rcvd_seq_err",
       "ack_deferred", "retry_exceeded_err", "retry_rnr_exceeded_err", "completer_retry_err", "send_err", "link_downed",
       "rdma_sends", "rdma_recvs")
MLX5 = ("duplicate_request", "out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err",
        "implied_nak_seq_err", "out_of_buffer", "req_cqe_error", "req_cqe_flush_error", "req_remote_access_errors",
        "req_remote_invalid_request", "resp_cqe_error", "resp_cqe_flush_error", "resp_local_length_error",
        "resp_remote_access_errors", "rx_write_requests", "rx_read_requests", "rx_atomic_requests", "rx_icrc_encapsulated")


def read_all(fabric, host, names, folder="hw_counters"):
    paths = [f"{FOLDER}/{folder}/{name}" for name in names]
    process = fabric.start(host, ["cat", *paths]).wait(20).expect_exit(0)
    return dict(zip(names, map(int, process.stdout.split())))


def metric(fabric, name, host):
    return sum(m["value"] for m in fabric.show("metrics") if m["name"] == name and m["labels"].get("host") == host)


def fresh(context):
    """Every name is there and 0 before anything has happened."""
    with context.make_fabric() as fabric:
        for names in (RXE, MLX5):
            values = read_all(fabric, "h0", names)
            if len(values) != len(set(names)) or any(values.values()):
                raise Failure(f"a fresh NIC counts: {values}")
        names = ("port_xmit_data", "port_rcv_data", "port_xmit_packets", "port_rcv_packets", "unicast_xmit_packets",
                 "multicast_rcv_packets", "link_downed", "port_xmit_wait", "symbol_error")
        if any(read_all(fabric, "h1", names, "counters").values()):
            raise Failure("a fresh port counts")


def live(context):
    """The files move while the program runs, for readers that stream, that open, and that never attach."""
    with context.make_fabric() as fabric:
        server, client = stream_pair(context, fabric=fabric, client_options=["--seconds", "3"])
        first = read_all(fabric, "h0", RXE)
        wait_until(lambda: read_all(fabric, "h0", RXE)["rcvd_pkts"] > first["rcvd_pkts"], 5, lambda: "rcvd_pkts stands still")
        code = f"print(open('{FOLDER}/hw_counters/sent_pkts').read())"
        one = int(fabric.start("h0", ["python3", "-c", code]).wait(20).expect_exit(0).stdout)
        if one < first["sent_pkts"]:
            raise Failure("an earlier value than before")
        expect_stream_ok(server, client)
        last = {host: read_all(fabric, host, RXE) for host in ("h0", "h1")}
        for host, other in (("h0", "h1"), ("h1", "h0")):
            if last[host]["sent_pkts"] != last[other]["rcvd_pkts"] or last[host]["sent_pkts"] == 0:
                raise Failure(f"sent and received differ: {last}")
            ports = read_all(fabric, host, ("port_xmit_packets", "port_rcv_packets"), "counters")
            if ports["port_xmit_packets"] != last[host]["sent_pkts"] or metric(fabric, "sent_pkts", host) != last[host]["sent_pkts"]:
                raise Failure(f"{host}: {ports}, {last[host]}")


def perftest_counters(context):
    """perftest's own reader, which looks the path up first."""
    fabric = context.shared_fabric()
    names = "counters/port_xmit_data,hw_counters/sent_pkts,hw_counters/rx_write_requests"
    server, client = run_tool(fabric, ["ib_write_bw", "-x", "1", "-n", "100", "-s", "4096", "-F", f"--report-counters={names}"])
    for name in ("port_xmit_data", "sent_pkts", "rx_write_requests"):
        if name not in client.stdout:
            raise Failure(f"no {name} in perftest's table: {client.describe()}")
    del server


def loss(context):
    """With frames dropped on the links: what was lost and what was repeated fit together."""
    with context.make_fabric(["--drop", "1%", "--seed", "3"]) as fabric:
        run_tool(fabric, ["ib_write_bw", "-x", "1", "-n", "1000", "-s", "16384", "-F", "-u", "10"], timeout=60)
        drops = sum(m["value"] for m in fabric.show("metrics") if m["name"] == "link_drops")
        hw = {host: read_all(fabric, host, RXE + MLX5) for host in ("h0", "h1")}
        crossed = {host: read_all(fabric, host, ("port_xmit_packets", "port_rcv_packets"), "counters") for host in ("h0", "h1")}
        sent = sum(c["port_xmit_packets"] for c in crossed.values())
        got = sum(c["port_rcv_packets"] for c in crossed.values())
        if drops == 0 or sent - got != drops:
            raise Failure(f"{sent} sent, {got} received, {drops} dropped")
        client, server = hw["h1"], hw["h0"]
        if server["out_of_sequence"] == 0 or client["packet_seq_err"] == 0:
            raise Failure(f"losses left no trace: {hw}")
        if client["completer_retry_err"] > client["packet_seq_err"] + client["local_ack_timeout_err"] + client["implied_nak_seq_err"]:
            raise Failure(f"more retries than reasons: {client}")
        if server["out_of_sequence"] != server["out_of_seq_request"] or client["packet_seq_err"] != client["rcvd_seq_err"]:
            raise Failure(f"two names of one thing differ: {hw}")


def killed(context):
    """What a program counted stays when it is killed."""
    with context.make_fabric() as fabric:
        server, client = stream_pair(context, fabric=fabric, client_options=["--seconds", "20"])
        wait_until(lambda: read_all(fabric, "h1", RXE)["sent_pkts"] > 100, 10, lambda: "nothing sent")
        before = read_all(fabric, "h1", RXE)
        for host in fabric.show("hosts")["hosts"]:
            for process in host["processes"]:
                os.kill(process["pid"], signal.SIGKILL)
        client.wait(20)
        server.wait(20)
        after = read_all(fabric, "h1", RXE)
        if after["sent_pkts"] < before["sent_pkts"] or after["sent_pkts"] != metric(fabric, "sent_pkts", "h1"):
            raise Failure(f"before {before}, after {after}")


def cases():
    ci = ("ci", "full", "counters")
    yield Case("counters/fresh", fresh, ci)
    yield Case("counters/live", live, ci + ("user",))
    yield Case("counters/perftest", perftest_counters, ci)
    yield Case("counters/loss", loss, ci)
    yield Case("counters/killed", killed, ci)
