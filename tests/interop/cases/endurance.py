# SPDX-License-Identifier: Apache-2.0
"""Much of everything: loss for a long time, many starts and stops, many processes. Short in CI, long with --full."""
import json
import os
import signal
import time

from harness.pair import expect_stream_ok
from harness.process import Failure, new_port, wait_listening, wait_until
from harness.report import Case

TIMEOUT_EXPONENT, TRANSMISSIONS = 10, 8
# A machine with two busy cores stops a program for this long now and then; loss has nothing to do with it.
SCHEDULING = 0.5


def processor_time(pid):
    """Seconds of every thread of a process, by its id; none when the process is gone."""
    ticks, times = os.sysconf("SC_CLK_TCK"), {}
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/stat", encoding="ascii") as file:
                fields = file.read().rsplit(")", 1)[1].split()
            times[thread] = (int(fields[11]) + int(fields[12])) / ticks
    except (FileNotFoundError, ProcessLookupError):
        pass
    return times


def counters_agree(fabric):
    """What went into the links came out of them or was dropped there, and the switch made nothing up."""
    def broken():
        links, ports = {row["name"]: row for row in fabric.show("links")}, fabric.show("ports")
        for port in ports:
            host = port["peer"].split()[0]
            into, out = links[f"{host}->s0"], links[f"s0->{host}"]
            if into["packets"] != port["rx_packets"]:
                return f"{into} and {port}"
            if out["packets"] + out["drops"] != port["tx_packets"]:
                return f"{out} and {port}"
        if sum(port["rx_packets"] for port in ports) != sum(port["tx_packets"] + port["drops"] for port in ports):
            return f"the switch took in and gave out: {ports}"
        if not all(row["drops"] for row in links.values()):
            return f"a link without a loss: {list(links.values())}"
        return None
    # Frames of the last moment may still be on their way when the programs have ended.
    wait_until(lambda: broken() is None, 5, lambda: f"counters do not add up: {broken()}")


def writes_under_loss(seconds):
    """5 % of the frames of either direction are lost (two links a way): all data right, nothing later than it may be."""
    def run(context):
        with context.make_fabric(["--drop", "2.5%", "--seed", "11"]) as fabric:
            began, before = time.monotonic(), processor_time(fabric.daemon_pid())
            programs = [fabric.start(host, [context.program("lossy_writes"), str(seconds), str(TIMEOUT_EXPONENT)])
                        for host in ("h0", "h1")]
            for program in programs:
                program.wait(seconds + 60).expect_exit(0).expect_quiet()
            elapsed = time.monotonic() - began
            used = processor_time(fabric.daemon_pid())
            busiest = max(used[thread] - before.get(thread, 0) for thread in used)
            if sum(used.values()) - sum(before.values()) > 1.1 * elapsed:
                raise Failure(f"the daemon took {sum(used.values()):.1f} s of processor in {elapsed:.1f} s ({busiest:.1f})")
            for program in programs:
                report = json.loads(program.stdout.splitlines()[-1])
                allowed = 50 * report["round_trip"] + TRANSMISSIONS * 4 * 4.096e-6 * 2 ** TIMEOUT_EXPONENT + SCHEDULING
                if report["longest"] > allowed:
                    raise Failure(f"a message took {report['longest']:.3f} s, allowed {allowed:.3f}: {report}")
                if report["messages"] < 100 * seconds:
                    raise Failure(f"hardly anything came across: {report}")
            counters_agree(fabric)
    return run


def weft_memory(pids):
    """Shared memory of ours that a process still maps or holds open."""
    found = []
    for pid in pids:
        try:
            for fd in os.listdir(f"/proc/{pid}/fd"):
                target = os.readlink(f"/proc/{pid}/fd/{fd}")
                if "memfd:weft" in target:
                    found.append(f"{pid} holds {target}")
            with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as maps:
                found += [f"{pid} maps {line.split()[-2]}" for line in maps if "memfd:weft" in line]
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            pass
    return found


def processes():
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


def starts_and_stops(times):
    """With programs attached each time; ended by `down`, by SIGTERM and by SIGKILL in turn."""
    def run(context):
        shared_before = set(os.listdir("/dev/shm"))
        fabric = context.make_fabric()
        ours = set()
        try:
            for turn in range(times):
                fabric.up()
                ours.add(fabric.daemon_pid())
                blocked = [fabric.start(host, [context.program("process_life"), "blocked"]) for host in ("h0", "h1")]
                for program in blocked:
                    program.wait_output("blocked", 20)
                if turn % 3 == 0:
                    fabric.call("down").expect_exit(0)
                elif turn % 3 == 1:
                    pid = fabric.daemon_pid()
                    os.kill(pid, signal.SIGTERM)
                    wait_until(lambda: not fabric.daemon_running(), 10, lambda: "the daemon survives SIGTERM")
                else:
                    fabric.kill_daemon()
                for program in blocked:
                    program.wait(20)
                    if program.popen.returncode < 0:
                        raise Failure(f"turn {turn}: crashed: {program.describe()}")
            if times % 3 == 0:  # the last turn left a dead daemon's folder, which the next start cleans
                fabric.up()
                fabric.call("down").expect_exit(0)
            if os.path.exists(fabric.run_folder):
                raise Failure(f"left in the run folder: {os.listdir(fabric.run_folder)}")
            left = set(os.listdir("/dev/shm")) - shared_before
            if any("weft" in name or fabric.name in name or "rte" in name for name in left):
                raise Failure(f"left in /dev/shm: {sorted(left)}")
            held = [text for text in weft_memory(processes()) if int(text.split()[0]) in ours]
            if held or any(fabric.name in cmdline(pid) for pid in processes() - {os.getpid()}):
                raise Failure(f"left behind: {held}, {[cmdline(pid) for pid in processes() if fabric.name in cmdline(pid)]}")
        finally:
            fabric.down()
    return run


def cmdline(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().replace(b"\0", b" ").decode("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def many_processes(pairs, seconds):
    """64 attached processes on 8 hosts, every host with both ends of streams, within and across."""
    def run(context):
        with context.make_fabric(hosts=8) as fabric:
            tool, running = context.program("stream"), []
            # All at once: each takes a while to start, and all of them must be there together.
            for number in range(pairs):
                hosts, port = (f"h{number % 8}", f"h{(number * 3 + 1) % 8}"), new_port()
                options = [str(port), "--seconds", str(seconds), "--size", str(1000 + number * 137)]
                options += ["--events"] if number % 4 == 0 else []
                server = fabric.start(hosts[0], [tool, "server", *options])
                running.append([hosts, port, options, server])
            for pair in running:
                hosts, port, options, server = pair
                wait_listening(port, server, 60)
                pair.append(fabric.start(hosts[1], [tool, "client", hosts[0], *options]))
            for *_, server, client in running:
                server.wait_output("ready", 60)
                client.wait_output("ready", 60)
            attached = sum(len(host["processes"]) for host in fabric.show("hosts")["hosts"])
            if attached != 2 * pairs:
                raise Failure(f"{attached} processes attached, expected {2 * pairs}")
            for *_, server, client in running:
                expect_stream_ok(server, client, timeout=120)
            wait_until(lambda: not any(host["processes"] for host in fabric.show("hosts")["hosts"]), 10,
                       lambda: f"still listed: {fabric.show('hosts')}")
    return run


def cases():
    ci, full = ("ci", "full", "endurance"), ("full", "endurance")
    yield Case("endurance/writes-under-loss", writes_under_loss(5), ci, 120)
    yield Case("endurance/writes-under-loss/long", writes_under_loss(30), full, 180)
    yield Case("endurance/starts-and-stops", starts_and_stops(9), ci, 120)
    yield Case("endurance/starts-and-stops/hundred", starts_and_stops(100), full, 400)
    yield Case("endurance/64-processes", many_processes(32, 8), ci, 240)
