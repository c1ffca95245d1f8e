# SPDX-License-Identifier: Apache-2.0
"""Deaths, stops and loss: who is told, when, and that nobody else notices."""
import os
import signal
import time

from harness.pair import CROSS, SAME, expect_stream_ok, stream_pair, stream_pid, stream_report
from harness.process import Failure, wait_until
from harness.report import Case

RETRY_EXCEEDED = 12  # IBV_WC_RETRY_EXC_ERR
TIMEOUT_EXPONENT = 12
RETRIES = 7
MOST_PAUSE = 1.0


def retry_window(exponent=TIMEOUT_EXPONENT, retries=RETRIES):
    """Bounds of a peer's death as its partner sees it (IBTA Vol 1, 9.7.6.1.3: a timer may run 1 to 4 times T)."""
    base = 4.096e-6 * (1 << exponent) * (retries + 1)
    return base, 4 * base + 1.0


def expect_retry_exceeded(client, killed_at, window, grace=0.0):
    report = stream_report(client)
    if report["code"] != RETRY_EXCEEDED:
        raise Failure(f"status {report['status']}, expected transport retry counter exceeded")
    took = report["error_at"] - killed_at
    if not window[0] - grace <= took <= window[1]:
        raise Failure(f"the error came after {took:.3f} s, expected {window[0]:.3f} to {window[1]:.3f} s")


def kill_peer(hosts, events=False, exponent=TIMEOUT_EXPONENT, fork_child=False):
    """kill -9 of the receiving program."""
    def run(context):
        flags = ["--seconds", "60", "--timeout", exponent, "--retry", RETRIES] + (["--events"] if events else [])
        bystanders = stream_pair(context, CROSS, options=["--seconds", "6"])
        victims = stream_pair(context, hosts, options=flags, server_options=["--fork-child"] if fork_child else [])
        os.kill(stream_pid(victims[0]), signal.SIGKILL)
        killed_at = time.monotonic()
        window = retry_window(exponent)
        victims[1].wait(window[1] + 10).expect_exit(3)
        # The last ACK came a little before the kill: the timer may have started then.
        expect_retry_exceeded(victims[1], killed_at, window, grace=0.05)
        expect_stream_ok(*bystanders, max_gap=MOST_PAUSE)
    return run


def kill_sender(context):
    """kill -9 of the sending program: the receiver learns nothing from RC; its host goes on serving others."""
    bystanders = stream_pair(context, ("h1", "h0"), options=["--seconds", "4"])
    server, client = stream_pair(context, options=["--seconds", "60"])
    os.kill(stream_pid(client), signal.SIGKILL)
    server.wait(20)
    if server.popen.returncode < 0 or stream_report(server)["mismatches"]:
        raise Failure(f"the receiver crashed or got wrong data: {server.describe()}")
    expect_stream_ok(*bystanders, max_gap=MOST_PAUSE)


def stop_and_continue(events):
    """SIGSTOP of a receiver: its sender waits (patient timers), others do not, and all goes on after SIGCONT."""
    def run(context):
        flags = ["--seconds", "7", "--timeout", TIMEOUT_EXPONENT, "--retry", RETRIES] + (["--events"] if events else [])
        bystanders = stream_pair(context, CROSS, options=["--seconds", "7"])
        server, client = stream_pair(context, CROSS, options=flags)
        os.kill(stream_pid(server), signal.SIGSTOP)
        try:
            time.sleep(4)  # the stimulus itself: many times the whole retry budget
            if not client.running():
                raise Failure(f"the sender did not wait for a stopped receiver: {client.describe()}")
        finally:
            os.kill(stream_pid(server), signal.SIGCONT)
        sent, _ = expect_stream_ok(server, client)
        if sent["max_gap"] < 2:
            raise Failure(f"the sender never paused ({sent['max_gap']:.3f} s): was the receiver stopped at all?")
        expect_stream_ok(*bystanders, max_gap=MOST_PAUSE)
    return run


def stop_sender(context):
    bystanders = stream_pair(context, ("h1", "h0"), options=["--seconds", "5"])
    server, client = stream_pair(context, options=["--seconds", "5"])
    os.kill(stream_pid(client), signal.SIGSTOP)
    time.sleep(2.5)
    os.kill(stream_pid(client), signal.SIGCONT)
    expect_stream_ok(server, client)
    expect_stream_ok(*bystanders, max_gap=MOST_PAUSE)


def abrupt_exit(side):
    """_exit right after the last completion, no clean-up: the other side still gets all of it."""
    def run(context):
        for _ in range(5):
            abrupt = dict(server_options=["--abrupt"]) if side == "receiver" else dict(client_options=["--abrupt"])
            server, client = stream_pair(context, options=["--count", "200", "--timeout", TIMEOUT_EXPONENT], **abrupt)
            client.wait(30).expect_exit(0)
            server.wait(30).expect_exit(0)
    return run


def daemon_death(events):
    """kill -9 of the daemon: every program gets an error completion and DEVICE_FATAL, and `weft up` works again."""
    def run(context):
        with context.make_fabric() as fabric:
            flags = ["--seconds", "60"] + (["--events"] if events else [])
            pairs = [stream_pair(context, hosts, options=flags, fabric=fabric) for hosts in (CROSS, SAME)]
            fabric.kill_daemon()
            for server, client in pairs:
                client.wait(20)
                if client.popen.returncode != 3:
                    raise Failure(f"exit code {client.popen.returncode}, expected 3: {client.describe()}")
                report = stream_report(client)
                if not report["fatal_event"] or report["code"] == 0:
                    raise Failure(f"no IBV_EVENT_DEVICE_FATAL or no error completion: {report}")
                server.wait(20)
                if server.popen.returncode not in (3, 4):
                    raise Failure(f"the receiver crashed: {server.describe()}")
            fabric.up()
            expect_stream_ok(*stream_pair(context, options=["--count", "500"], fabric=fabric))
    return run


def lossy(drop, events=False):
    """A seeded drop on every link: go-back-N and the retry timer bring everything across."""
    def run(context):
        with context.make_fabric(["--drop", drop, "--seed", "7"]) as fabric:
            flags = ["--count", "1500", "--size", "16000", "--timeout", "10"] + (["--events"] if events else [])
            expect_stream_ok(*stream_pair(context, options=flags, fabric=fabric), timeout=90)
    return run


def forced_icrc(context):
    with context.make_fabric(["--force-icrc"]) as fabric:
        for size in (1, 33, 4096, 100001):
            pair = stream_pair(context, options=["--count", "200", "--size", size], fabric=fabric)
            expect_stream_ok(*pair)


def many_pairs(context):
    """Sixteen pairs at once, eight across and eight within a host, on however few cores."""
    pairs = [stream_pair(context, hosts, options=["--seconds", "3", "--size", "2000"])
             for _ in range(8) for hosts in (CROSS, SAME)]
    for pair in pairs:
        expect_stream_ok(*pair, timeout=60)


def ports_are_returned(context):
    """Programs come and go; afterwards the daemon holds no more descriptors than before."""
    fabric = context.shared_fabric()

    def descriptors():
        return len(os.listdir(f"/proc/{fabric.daemon_pid()}/fd"))
    for _ in range(2):
        fabric.start("h0", [context.program("process_life"), "exchange"]).wait(20).expect_exit(0)
    before = descriptors()
    for _ in range(20):
        fabric.start("h0", [context.program("process_life"), "exchange"]).wait(20).expect_exit(0)
    wait_until(lambda: descriptors() <= before + 8, 5, lambda: f"{before} descriptors before, {descriptors()} after")


def cases():
    ci = ("ci", "full", "faults")
    yield Case("faults/kill-receiver", kill_peer(CROSS), ci, 60)
    yield Case("faults/kill-receiver/events", kill_peer(CROSS, events=True), ci, 60)
    yield Case("faults/kill-receiver/same-host", kill_peer(SAME), ci, 60)
    yield Case("faults/kill-receiver/default-timeout", kill_peer(CROSS, exponent=14), ("full", "faults"), 60)
    yield Case("faults/kill-receiver/its-child-lives", kill_peer(CROSS, fork_child=True), ci, 60)
    yield Case("faults/kill-sender", kill_sender, ci, 60)
    yield Case("faults/stop-receiver", stop_and_continue(False), ci, 60)
    yield Case("faults/stop-receiver/events", stop_and_continue(True), ("full", "faults"), 60)
    yield Case("faults/stop-sender", stop_sender, ci, 60)
    yield Case("faults/exit-after-last-receive", abrupt_exit("receiver"), ci, 90)
    yield Case("faults/exit-after-last-send", abrupt_exit("sender"), ci, 90)
    yield Case("faults/daemon-killed", daemon_death(False), ci + ("user",), 90)
    yield Case("faults/daemon-killed/events", daemon_death(True), ci, 90)
    yield Case("faults/drop-1%", lossy("1%"), ci, 120)
    yield Case("faults/drop-1%/events", lossy("1%", events=True), ("full", "faults"), 120)
    yield Case("faults/drop-10%", lossy("10%"), ("full", "faults"), 120)
    yield Case("faults/forced-icrc", forced_icrc, ci, 60)
    yield Case("faults/many-pairs", many_pairs, ci, 90)
    yield Case("faults/descriptors-are-returned", ports_are_returned, ci, 120)
