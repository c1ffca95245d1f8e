# SPDX-License-Identifier: Apache-2.0
"""Stops and deaths in the middle of something: a READ, a receiver of datagrams, the wait after an RNR NAK.

The victim's peers wait and go on, or learn of the death; whoever shares its host or the switch does not notice."""
import os
import re
import signal
import time

from harness.pair import CROSS, expect_stream_ok, start_pair, stream_pair
from harness.process import Failure
from harness.report import Case

MOST_PAUSE = 1.0
STOP_SECONDS = 1.5  # over the stall time, and many times the retry budget of the victims' peers
BEFORE_SECONDS = 0.7


def bystanders(context, seconds):
    """Traffic of others: on the victim's host, and between the same two hosts the other way round."""
    return [stream_pair(context, hosts, options=["--seconds", str(seconds)]) for hosts in (("h1", "h1"), ("h1", "h0"))]


def expect_undisturbed(pairs):
    for pair in pairs:
        expect_stream_ok(*pair, max_gap=MOST_PAUSE)


def perftest(context, tool, *options):
    argv = [tool, "-m", "1024", "-u", "12", "-D", "3", "-s", "4096", *options]
    return start_pair(context.shared_fabric(), lambda port: argv + ["-p", str(port)],
                      lambda port, host: argv + ["-p", str(port), host], CROSS)


def stop_for_a_while(pid):
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(STOP_SECONDS)  # the stimulus itself
    finally:
        os.kill(pid, signal.SIGCONT)


def stop_read_requester(context):
    others = bystanders(context, 4)
    server, client = perftest(context, "ib_read_bw")
    pid = client.program_pid("ib_read_bw")
    time.sleep(BEFORE_SECONDS)  # a READ is under way
    stop_for_a_while(pid)
    client.wait(30).expect_exit(0)
    server.wait(30).expect_exit(0)
    expect_undisturbed(others)


def stop_read_responder(context):
    """Its requester asks again and again, longer than its whole retry budget, and goes on."""
    others = bystanders(context, 4)
    server, client = perftest(context, "ib_read_bw")
    pid = server.program_pid("ib_read_bw")
    time.sleep(BEFORE_SECONDS)
    stop_for_a_while(pid)
    client.wait(30).expect_exit(0)
    server.wait(30).expect_exit(0)
    expect_undisturbed(others)


def stop_datagram_receiver(context):
    """Nobody waits for a UD receiver: what it does not take is dropped, its sender goes on sending."""
    others = [stream_pair(context, hosts, options=["--seconds", "4"]) for hosts in (("h0", "h0"), ("h1", "h0"))]
    server, client = perftest(context, "ib_send_bw", "-c", "UD", "-s", "1024")
    pid = server.program_pid("ib_send_bw")
    time.sleep(BEFORE_SECONDS)
    stop_for_a_while(pid)
    client.wait(30).expect_exit(0)
    expect_undisturbed(others)


def kill_reader(context):
    others = bystanders(context, 3)
    server, client = perftest(context, "ib_read_bw")
    pid = client.program_pid("ib_read_bw")
    time.sleep(BEFORE_SECONDS)
    os.kill(pid, signal.SIGKILL)
    client.wait(10)
    server.wait(30)  # perftest's server sees the end of the TCP connection
    if server.popen.returncode < 0:
        raise Failure(f"the responder crashed: {server.describe()}")
    expect_undisturbed(others)


def rnr_pair(context):
    tool = context.program("rnr_wait")
    server, client = start_pair(context.shared_fabric(), lambda port: [tool, "server", str(port)],
                                lambda port, host: [tool, "client", host, str(port)], CROSS)
    server.wait_output("ready", 20)
    client.wait_output("waiting", 20)
    return server, client


def pid_of(process):
    return int(re.search(r"(?:ready|waiting) (\d+)", process.stdout).group(1))


def rnr_wait_goes_on(context):
    """rnr_retry 7 is for ever: a receive that comes late, after a stop of the waiting side, is still filled."""
    server, client = rnr_pair(context)
    stop_for_a_while(pid_of(client))
    if not client.running():
        raise Failure(f"it did not wait: {client.describe()}")
    os.kill(pid_of(server), signal.SIGUSR1)
    client.wait(20).expect_exit(0)
    server.wait(20).expect_exit(0)
    if "received" not in server.stdout:
        raise Failure(f"wrong bytes: {server.describe()}")


def kill_in_rnr_wait(context):
    others = bystanders(context, 2)
    server, client = rnr_pair(context)
    os.kill(pid_of(client), signal.SIGKILL)
    client.wait(10)
    server.wait(20).expect_exit(5)
    expect_undisturbed(others)


def kill_the_one_waited_for(context):
    """The receiver that never posted dies: the sender's wait ends with an error, not never."""
    server, client = rnr_pair(context)
    os.kill(pid_of(server), signal.SIGKILL)
    server.wait(10)
    client.wait(20).expect_exit(12)  # IBV_WC_RETRY_EXC_ERR


def cases():
    ci = ("ci", "full", "faults")
    for run in (stop_read_requester, stop_read_responder, stop_datagram_receiver, kill_reader, rnr_wait_goes_on, kill_in_rnr_wait,
                kill_the_one_waited_for):
        tags = ci if run not in (stop_read_responder,) else ("full", "faults")
        yield Case("stops/" + run.__name__.replace("_", "-"), run, tags, 60)
