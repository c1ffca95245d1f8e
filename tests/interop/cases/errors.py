# SPDX-License-Identifier: Apache-2.0
"""Every completion status and asynchronous event by its natural cause (programs/errors.c), legal use at its edges
(programs/edges.c), the life of a QP as a program sees it (programs/states.c), threads that share QPs (programs/threads.c)
and forks with registered memory (programs/fork_memory.c)."""
import os
import signal
import subprocess
import time

from harness.pair import CROSS, expect_stream_ok, stream_pair, stream_pid, stream_report
from harness.process import Failure
from harness.report import Case

PROGRAMS = {
    "errors": ("loc-len", "loc-len-uc", "loc-len-ud", "loc-qp-op", "loc-qp-op-uc", "loc-qp-op-ud", "loc-prot", "loc-prot-uc",
               "loc-prot-ud", "wr-flush", "rem-inv-req-right", "rem-inv-req-reads", "rem-inv-req-mtu",
               "rem-inv-req-receive", "rem-access-write", "rem-access-read", "rem-access-rkey", "rem-access-right",
               "rem-access-max-mr", "rem-op", "retry-exc", "rnr-retry-exc", "comm-est", "comm-est-uc", "sq-drained"),
    "edges": ("mtu-256", "mtu-512", "mtu-1024", "mtu-2048", "mtu-4096", "mixed-mtu", "inline", "inline-extended",
              "write-imm", "zero-length", "sge-lists"),
    "states": ("posting", "bad-second", "drained", "reuse", "flush-asleep", "destroyed", "destroyed-flushed",
               "destroyed-among-others", "nobody", "rnr"),
    "threads": ("write", "read", "send", "churn"),
    "fork_memory": ("plain", "fork-init"),
}
# Nobody but the NIC's own thread drives these.
INLINE_OFF = (("errors", "rem-access-write"), ("errors", "rem-op"), ("errors", "loc-prot-ud"), ("errors", "retry-exc"),
              ("states", "drained"), ("states", "reuse"), ("states", "flush-asleep"), ("states", "destroyed"),
              ("states", "destroyed-among-others"), ("edges", "inline"),
              ("threads", "write"), ("threads", "send"))
STRICT = ("--strict-timers",)
RETRY_EXCEEDED = 12  # IBV_WC_RETRY_EXC_ERR


def run_program(program, case, env=None):
    def run(context):
        process = context.shared_fabric().start("h0", [context.program(program), case], env=env)
        process.wait(40).expect_exit(0).expect_quiet()
    return run


def run_strict(program, names):
    """Under strict timers the same, and what only they make exact."""
    def run(context):
        with context.make_fabric(STRICT) as fabric:
            for name in names:
                fabric.start("h0", [context.program(program), name]).wait(40).expect_exit(0).expect_quiet()
    return run


def lists_agree(context):
    for program, known in PROGRAMS.items():
        listed = subprocess.run([context.program(program), "--list"], stdout=subprocess.PIPE, check=True, text=True)
        if set(listed.stdout.split()) != set(known):
            raise Failure(f"{program} has {sorted(set(listed.stdout.split()) ^ set(known))} on one side only")


def stopped_peer_strict(context):
    """SIGSTOP of a receiver for longer than its peer's retry time: with strict timers that is the end of the connection
    (with patient ones the sender waits: faults/stop…)."""
    with context.make_fabric(STRICT) as fabric:
        flags = ["--seconds", "20", "--timeout", "10", "--retry", "3"]  # 4 ms, four transmissions
        server, client = stream_pair(context, CROSS, options=flags, fabric=fabric)
        os.kill(stream_pid(server), signal.SIGSTOP)
        stopped_at = time.monotonic()
        try:
            client.wait(10)
        finally:
            os.kill(stream_pid(server), signal.SIGCONT)
        report = stream_report(client)
        if client.popen.returncode != 3 or report["code"] != RETRY_EXCEEDED:
            raise Failure(f"expected transport retry counter exceeded: {client.describe()}")
        if time.monotonic() - stopped_at > 3:
            raise Failure("the error took seconds")
        server.wait(20)
        if server.popen.returncode < 0:
            raise Failure(f"the receiver crashed: {server.describe()}")
        expect_stream_ok(*stream_pair(context, CROSS, options=["--count", "200"], fabric=fabric))


def killed_peer_ipv6(context):
    """A death is told by IPv4 address, whichever GID the connection was made with: here the link-local ones."""
    server, client = stream_pair(context, CROSS, options=["--seconds", "30", "--timeout", "10", "--retry", "3",
                                                          "--gid-index", "0"])
    os.kill(stream_pid(server), signal.SIGKILL)
    client.wait(10).expect_exit(3)
    if stream_report(client)["code"] != RETRY_EXCEEDED:
        raise Failure(f"expected transport retry counter exceeded: {client.describe()}")


def cases():
    ci = ("ci", "full", "errors")
    yield Case("errors/lists-agree", lists_agree, ci)
    for program, names in PROGRAMS.items():
        for name in names:
            yield Case(f"{program}/{name}", run_program(program, name), ci)
    for program, name in INLINE_OFF:
        yield Case(f"{program}/{name}/inline-off", run_program(program, name, {"WEFT_INLINE": "0"}), ci)
    yield Case("states/strict", run_strict("states", ("rnr", "drained")), ci)
    yield Case("errors/strict", run_strict("errors", ("retry-exc", "rnr-retry-exc", "rem-access-read")), ci)
    yield Case("faults/kill-receiver-link-local", killed_peer_ipv6, ci)
    yield Case("faults/stop-receiver-strict", stopped_peer_strict, ci)
