# SPDX-License-Identifier: Apache-2.0
"""`weft up`, `down` and what happens around them: second starts, leftovers, foreign folders, several fabrics, the demo."""
import json
import os
import signal
import subprocess
import time

from harness.pair import expect_stream_ok, stream_pair
from harness.process import Failure, Process, Skip, wait_until
from harness.report import Case

UP_LIMIT = 1.0


def expect_one_line(process, *words):
    """Refused: a non-zero exit and one line that names the matter."""
    if process.popen.returncode == 0:
        raise Failure(f"succeeded: {process.describe()}")
    if process.popen.returncode < 0:
        raise Failure(f"crashed: {process.describe()}")
    lines = [line for line in process.stderr.splitlines() if line.strip()]
    if len(lines) != 1 or not all(word in lines[0] for word in words):
        raise Failure(f"expected one line with {words} on stderr, got {lines}")


def up_is_quick(context):
    """Medians of five: usable within a second, by the clock of whoever types the command."""
    times = []
    for _ in range(5):
        with context.make_fabric() as fabric:
            times.append(fabric.up_seconds)
            fabric.start("h0", ["ibv_devices"]).wait(10).expect_exit(0)
    if sorted(times)[2] > UP_LIMIT:
        raise Failure(f"weft up took {sorted(times)[2]:.2f} s (median)")


def second_up(context):
    fabric = context.shared_fabric()
    expect_one_line(fabric.call("up"), fabric.name)
    fabric.start("h0", ["ibv_devices"]).wait(10).expect_exit(0)


def nothing_there(context):
    fabric = context.make_fabric()
    try:
        expect_one_line(fabric.call("run", "h0", "--", "true"), "weft up")
        expect_one_line(fabric.call("show", "hosts"), "weft up")
        expect_one_line(fabric.call("down"), fabric.name)
    finally:
        fabric.down()


def unknown_host(context):
    expect_one_line(context.shared_fabric().call("run", "h9", "--", "true"), "h9", "h0")


def down_leaves_nothing(context):
    with context.make_fabric() as fabric:
        folder = fabric.run_folder
        sleeper = fabric.start("h0", [context.program("process_life"), "blocked"])
        sleeper.wait_output("blocked", 20)
        fabric.call("down").expect_exit(0)
        if os.path.exists(folder) or fabric.daemon_running():
            raise Failure(f"left behind: {os.listdir(folder) if os.path.exists(folder) else 'a daemon'}")
        # Its device is gone: the blocked program is told and ends.
        sleeper.wait(20)
        if sleeper.popen.returncode < 0:
            raise Failure(f"crashed: {sleeper.describe()}")


def leftovers(context):
    """kill -9 of the daemon: the next `weft up` needs no help."""
    with context.make_fabric() as fabric:
        for _ in range(3):
            fabric.kill_daemon()
            fabric.up()
        expect_stream_ok(*stream_pair(context, options=["--count", "100"], fabric=fabric))


def foreground(context):
    """--foreground stays, and Ctrl-C leaves nothing behind."""
    fabric = context.make_fabric()
    try:
        process = Process(fabric.weft_argv("up", "--foreground"), env=fabric.env)
        socket = fabric.attach_path("h1")
        wait_until(lambda: os.path.exists(socket) or not process.running(), 20, process.describe)
        fabric.start("h0", ["ibv_devices"]).wait(10).expect_exit(0)
        os.kill(fabric.daemon_pid(), signal.SIGINT)
        process.wait(10)
        if os.path.exists(fabric.run_folder):
            raise Failure(f"left behind: {os.listdir(fabric.run_folder)}")
    finally:
        fabric.down()


def side_by_side(context):
    """Two fabrics of one user do not see each other."""
    with context.make_fabric() as one, context.make_fabric() as other:
        pairs = [stream_pair(context, options=["--count", "300"], fabric=fabric) for fabric in (one, other)]
        for pair in pairs:
            expect_stream_ok(*pair)
        one.call("down").expect_exit(0)
        expect_stream_ok(*stream_pair(context, options=["--count", "100"], fabric=other))


def foreign_folder(context):
    """A run folder that belongs to somebody else is refused, not used."""
    if os.geteuid() != 0:
        raise Skip("needs root to make a folder of another user")
    fabric = context.make_fabric(user="nobody")
    try:
        os.makedirs(os.path.join(fabric.base, "weft"), mode=0o755)  # root's
        expect_one_line(fabric.call("up"), "weft")
    finally:
        fabric.down()


def many_hosts(context):
    with context.make_fabric(hosts=16) as fabric:
        expect_stream_ok(*stream_pair(context, ("h15", "h7"), options=["--count", "200"], fabric=fabric))
        process = fabric.call("show", "hosts").expect_exit(0)
        for host in ("h0", "h15", "198.18.0.16"):
            if host not in process.stdout:
                raise Failure(f"no {host}: {process.describe()}")


def show_is_json(context):
    fabric = context.shared_fabric()
    sleeper = fabric.start("h0", [context.program("process_life"), "blocked"])
    sleeper.wait_output("blocked", 20)
    for what in ("hosts", "ports", "metrics"):
        if not fabric.show(what):
            raise Failure(f"show {what} --json is empty with a program attached")
        if not fabric.call("show", what).expect_exit(0).stdout.strip():
            raise Failure(f"show {what} prints nothing")
    if str(sleeper.program_pid("process_life")) not in json.dumps(fabric.show("hosts")) + json.dumps(
            fabric.show("ports")):
        raise Failure("the attached program's pid is nowhere in show hosts or show ports")


def idle_costs_nothing(context):
    """A fabric with two attached, blocked programs: below 2 % of a core over five seconds, programs included."""
    with context.make_fabric() as fabric:
        sleepers = [fabric.start(host, [context.program("process_life"), "blocked"]) for host in ("h0", "h1")]
        for sleeper in sleepers:
            sleeper.wait_output("blocked", 20)
        pids = [fabric.daemon_pid()] + [sleeper.program_pid("process_life") for sleeper in sleepers]
        before, seconds = sum(map(cpu_seconds, pids)), 5.0
        time.sleep(seconds)  # the measurement itself
        share = (sum(map(cpu_seconds, pids)) - before) / seconds
        if share > 0.02:
            raise Failure(f"{share:.1%} of a core")


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def demo(context):
    fabric = context.make_fabric()
    try:
        began = time.monotonic()
        process = Process(fabric.as_user([context.weft, "demo"]), env=fabric.env).wait(60).expect_exit(0)
        if "h0" not in process.stdout or "h1" not in process.stdout:
            raise Failure(f"the demo shows nothing of its hosts: {process.describe()}")
        left = subprocess.run(["find", fabric.base, "-name", "daemon.pid"], stdout=subprocess.PIPE, check=True).stdout
        if left or time.monotonic() - began > 60:
            raise Failure("the demo left a daemon behind or took over a minute")
    finally:
        fabric.down()


def help_and_errors(context):
    fabric = context.shared_fabric()
    text = fabric.call("--help").expect_exit(0).stdout
    for verb in ("up", "run", "env", "show", "capture", "demo", "down"):
        if verb not in text:
            raise Failure(f"--help does not mention {verb}")
        fabric.call(verb, "--help").expect_exit(0)
    for words in (["no-such-verb"], ["up", "--no-such-option"], ["run"], ["show", "no-such-thing"]):
        process = fabric.call(*words)
        if process.popen.returncode <= 0 or not process.stderr.strip():
            raise Failure(f"not refused with a word: {process.describe()}")


def environment(context):
    """`weft env` gives a shell the same as `weft run`."""
    fabric = context.shared_fabric()
    script = f'eval "$({context.weft} --name {fabric.name} env h1)" && ibv_devinfo'
    process = Process(fabric.as_user(["sh", "-c", script]), env=fabric.env).wait(20).expect_exit(0)
    if "rxe0" not in process.stdout:
        raise Failure(f"no rxe0: {process.describe()}")


def cases():
    ci = ("ci", "full", "daemon")
    for run in (second_up, nothing_there, unknown_host, show_is_json, help_and_errors, environment):
        yield Case("weft/" + run.__name__.replace("_", "-"), run, ci + ("user",), 60)
    for run in (up_is_quick, down_leaves_nothing, leftovers, foreground, side_by_side, foreign_folder, many_hosts,
                idle_costs_nothing, demo):
        tags = ci + (("user",) if run in (demo, leftovers, down_leaves_nothing) else ())
        yield Case("weft/" + run.__name__.replace("_", "-"), run, tags, 90)
