# SPDX-License-Identifier: Apache-2.0
"""Ports that go down and come up: who hears of it, what is lost meanwhile, what goes on afterwards."""
from harness.pair import expect_stream_ok, stream_pair
from harness.process import Failure, wait_until
from harness.report import Case

STATE = "/sys/class/infiniband/rxe0/ports/1/state"
ACTIVE, DOWN = 4, 1


def flap(fabric, place="h0"):
    fabric.call("port", place, "down").expect_exit(0)
    fabric.call("port", place, "up").expect_exit(0)


def sysfs_state(fabric, host):
    return fabric.start(host, ["cat", STATE]).wait(20).stdout.strip()


def events(context):
    """Every context of every process of the host hears all of it, in order, with the port's number; another host nothing."""
    with context.make_fabric() as fabric:
        watchers = [fabric.start("h0", [context.program("port_events"), "3", str(n)]) for n in (1, 3)]
        other = fabric.start("h1", [context.program("port_events"), "1"])
        for process in watchers + [other]:
            process.wait_output(f"ready {ACTIVE}", 20)
        fabric.call("port", "h0", "down").expect_exit(0)
        for process in watchers:
            process.wait_output(f"0 port error 1 {DOWN}", 10)
        if sysfs_state(fabric, "h0") != "1: DOWN" or sysfs_state(fabric, "h1") != "4: ACTIVE":
            raise Failure("sysfs says otherwise")
        fabric.call("port", "h0", "up").expect_exit(0)
        for process, contexts in zip(watchers, (1, 3)):
            process.wait(20).expect_exit(0)
            for n in range(contexts):
                heard = [line.split(" ", 1)[1] for line in process.stdout.splitlines() if line.startswith(f"{n} ")]
                wanted = ["port error 1", "port active 1", "GID table change 1"]
                if [line.rsplit(" ", 1)[0].lower() for line in heard] != [line.lower() for line in wanted]:
                    raise Failure(f"context {n} heard {heard}")
        if "port" in other.stdout.replace("ready", ""):
            raise Failure(f"the other host heard {other.stdout}")
        other.stop()
        downed = fabric.start("h0", ["cat", STATE.replace("state", "counters/link_downed")]).wait(20).stdout.strip()
        if downed != "1":
            raise Failure(f"link_downed is {downed}")


def asyncwatch(context):
    with context.make_fabric() as fabric:
        watcher = fabric.start("h1", ["stdbuf", "-oL", "ibv_asyncwatch"])
        watcher.wait_output("async event FD", 20)
        flap(fabric, "h1")
        for text in ("PORT_ERR (10), port 1", "PORT_ACTIVE (9), port 1", "GID_CHANGE (18), port 1"):
            wait_until(lambda: text in watcher.stdout, 10, lambda: f"no '{text}': {watcher.describe()}")
        watcher.stop()


def late(context):
    """A program that starts while the port is down sees it so."""
    with context.make_fabric() as fabric:
        fabric.call("port", "h0", "down").expect_exit(0)
        process = fabric.start("h0", [context.program("port_events"), "2"])
        process.wait_output(f"ready {DOWN}", 20)
        fabric.call("port", "h0/0", "up").expect_exit(0)
        process.wait(20).expect_exit(0)


def traffic(context):
    """A short outage costs time, not data."""
    with context.make_fabric() as fabric:
        server, client = stream_pair(context, fabric=fabric, client_options=["--seconds", "2"])
        flap(fabric)
        expect_stream_ok(server, client)


def refused(context):
    fabric = context.shared_fabric()
    for place in ("h9", "h0/7", "s0"):
        process = fabric.call("port", place, "down")
        if process.popen.returncode == 0 or "there is no NIC" not in process.stderr:
            raise Failure(process.describe())


def cases():
    ci = ("ci", "full", "ports")
    yield Case("ports/events", events, ci)
    yield Case("ports/asyncwatch", asyncwatch, ci)
    yield Case("ports/late", late, ci)
    yield Case("ports/traffic", traffic, ci)
    yield Case("ports/refused", refused, ci)
