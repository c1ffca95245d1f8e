# SPDX-License-Identifier: Apache-2.0
"""perftest's options that are no axes of perftest.py's matrix: one table, a line for each thing that a NIC can get wrong.

A line: tool, transport, keyword arguments of Run. Lines with only=full are left out of CI.
"""
from harness.pair import CROSS, SAME

from .perftest import Run

OLD = ["--use_old_post_send"]
FETCH_ADD, CMP_SWAP = ["-A", "FETCH_AND_ADD"], ["-A", "CMP_AND_SWAP"]
ATOMIC_SIZE = 8


def atomics():
    for kind in (FETCH_ADD, CMP_SWAP):
        for hosts in (CROSS, SAME):
            yield "ib_atomic_bw", "RC", dict(extra=kind, hosts=hosts)
            yield "ib_atomic_lat", "RC", dict(extra=kind, hosts=hosts)
        yield "ib_atomic_bw", "RC", dict(extra=kind, qps=16)
        yield "ib_atomic_bw", "RC", dict(extra=kind, events=True)
        yield "ib_atomic_lat", "RC", dict(extra=kind, events=True)
        yield "ib_atomic_bw", "RC", dict(extra=kind + ["-b"])
        yield "ib_atomic_bw", "RC", dict(extra=kind + OLD)
        yield "ib_atomic_lat", "RC", dict(extra=kind + OLD)
        yield "ib_atomic_bw", "RC", dict(extra=kind + ["-l", "4"])
        yield "ib_atomic_bw", "RC", dict(extra=kind + ["-o", "1"])
        yield "ib_atomic_bw", "RC", dict(extra=kind, iterations=None, only="full")
        yield "ib_atomic_lat", "RC", dict(extra=kind, iterations=None, only="full")


def posting():
    """The old call, lists of work requests, the depth of the queues, how many a completion stands for."""
    for tool in ("ib_send_bw", "ib_write_bw", "ib_read_bw", "ib_send_lat", "ib_write_lat", "ib_read_lat"):
        yield tool, "RC", dict(extra=OLD, size=65536)
        yield tool, "RC", dict(extra=OLD, size="all", only="full")
    for tool, transport in (("ib_send_bw", "UC"), ("ib_write_bw", "UC"), ("ib_send_lat", "UC")):
        yield tool, transport, dict(extra=OLD, size=5000)
    yield "ib_send_bw", "UD", dict(extra=OLD, size=1024)
    yield "ib_send_lat", "UD", dict(extra=OLD, size=1)
    for tool in ("ib_send_bw", "ib_write_bw", "ib_read_bw"):
        for length in (2, 20):
            yield tool, "RC", dict(extra=["-l", str(length)], size=4097)
        yield tool, "RC", dict(extra=["-l", "4"] + OLD, size=4097)
        yield tool, "RC", dict(extra=["-l", "4"], qps=16, size=1, only="full")
    yield "ib_send_bw", "RC", dict(extra=["-l", "4", "--recv_post_list", "4"], size=1024)
    yield "ib_send_bw", "UC", dict(extra=["-l", "4"], size=1024)
    yield "ib_send_bw", "UD", dict(extra=["-l", "4"], size=1024)
    for tool in ("ib_send_bw", "ib_write_bw", "ib_read_bw"):
        for depth in (1, 3, 1024):
            yield tool, "RC", dict(extra=["-t", str(depth)], size=1025)
        yield tool, "RC", dict(extra=["-Q", "1"], size=64)
    for depth in (16, 4096):
        yield "ib_send_bw", "RC", dict(extra=["-r", str(depth)], size=65536)
    yield "ib_send_bw", "UD", dict(extra=["-r", "4096"], size=64)
    yield "ib_send_lat", "RC", dict(extra=["-r", "1"], size=64)


def both_ways():
    for tool in ("ib_send_bw", "ib_write_bw", "ib_read_bw"):
        yield tool, "RC", dict(extra=["-b"], size=65536)
        yield tool, "RC", dict(extra=["-b"], size=65536, hosts=SAME)
        yield tool, "RC", dict(extra=["-b"], size=4097, qps=16)
        yield tool, "RC", dict(extra=["-b"], size="all", only="full")
    yield "ib_send_bw", "RC", dict(extra=["-b"], size=65536, events=True)
    yield "ib_read_bw", "RC", dict(extra=["-b"], size=65536, events=True)
    yield "ib_send_bw", "UC", dict(extra=["-b"], size=5000)
    yield "ib_write_bw", "UC", dict(extra=["-b"], size=5000)
    yield "ib_send_bw", "UD", dict(extra=["-b"], size=1024)
    for tool in ("ib_send_bw", "ib_write_bw", "ib_read_bw"):
        yield tool, "RC", dict(extra=["--reversed"], size=65536)


def small_data():
    """Inline at both ends of its range, and what goes to a GID or a queue of its own."""
    for size, limit in ((1, 1), (64, 64), (236, 236), (65, 64)):
        for tool in ("ib_send_lat", "ib_write_lat", "ib_send_bw", "ib_write_bw"):
            if tool.endswith("bw") and size not in (1, 64):
                continue
            yield tool, "RC", dict(extra=["-I", str(limit)], size=size)
    yield "ib_send_lat", "RC", dict(extra=["-I", "64"] + OLD, size=64)
    yield "ib_send_lat", "UD", dict(extra=["-I", "64"], size=64)
    yield "ib_write_lat", "UC", dict(extra=["-I", "64"], size=64)
    yield "ib_send_lat", "RC", dict(extra=["--inline_recv", "0"], size=64)
    for index in ("0", "1"):
        for tool in ("ib_write_bw", "ib_read_lat"):
            yield tool, "RC", dict(extra=["-x", index], size=65536)
    yield "ib_send_bw", "UD", dict(extra=["-x", "0"], size=1024)


def reading():
    for outstanding in (1, 2, 16):
        yield "ib_read_bw", "RC", dict(extra=["-o", str(outstanding)], size=65536)
    yield "ib_read_lat", "RC", dict(extra=["-o", "1"], size=65536)
    yield "ib_read_bw", "RC", dict(events=True, size=65536)
    yield "ib_read_lat", "RC", dict(events=True, size=1)
    yield "ib_read_lat", "RC", dict(events=True, size=65536, hosts=SAME)


def shared_queues():
    """--use-srq on both sides; perftest offers it where something is received."""
    for tool in ("ib_send_bw", "ib_send_lat"):
        for transport, size in (("RC", 65536), ("UD", 1024)):
            yield tool, transport, dict(extra=["--use-srq"], size=1)
            yield tool, transport, dict(extra=["--use-srq"], size=size)
            yield tool, transport, dict(extra=["--use-srq"], size=size, events=True)
        yield tool, "RC", dict(extra=["--use-srq"], size=1025, hosts=SAME)
        yield tool, "RC", dict(extra=["--use-srq"], size="all", only="full")
    yield "ib_send_bw", "RC", dict(extra=["--use-srq"], qps=16, size=4096)
    yield "ib_send_bw", "RC", dict(extra=["--use-srq", "-b"], size=4096)
    yield "ib_send_bw", "RC", dict(extra=["--use-srq"] + OLD, size=4096)


def addressing():
    """Traffic class, service level, hop limit: what a switch looks at must not change what arrives."""
    for extra in (["--tclass", "104"], ["-S", "3"], ["-u", "10"], ["--retry_count", "0"]):
        yield "ib_write_bw", "RC", dict(extra=extra, size=65536)
    yield "ib_send_bw", "UD", dict(extra=["--tclass", "104"], size=1024)
    yield "ib_write_bw", "RC", dict(extra=["--mr_per_qp"], qps=16, size=4096)
    yield "ib_send_bw", "RC", dict(extra=["--perform_warm_up"], size=4096)


def cases():
    for group in (atomics, posting, both_ways, small_data, reading, shared_queues, addressing):
        for tool, transport, words in group():
            only = words.pop("only", None)
            words = {"mtu": 1024, "size": ATOMIC_SIZE if "atomic" in tool else "all", **words}
            yield Run(tool, transport, **words).case("perftest", "options", "full", *([] if only else ["ci"]))
