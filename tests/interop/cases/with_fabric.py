# SPDX-License-Identifier: Apache-2.0
"""`weft with`: a private fabric around one command, as launchers of tests use it."""
import os
import signal

from harness.process import Failure, Process, wait_until
from harness.report import Case


class With:
    """Starts `weft with` in a run folder of its own; at the end nothing may be left there."""

    def __init__(self, context):
        self.fabric = context.make_fabric()  # its folder and its user; it is never up
        self.weft = context.weft

    def start(self, *words):
        env = dict(self.fabric.env, PATH=os.path.dirname(self.weft) + ":" + self.fabric.env["PATH"])
        return Process(self.fabric.as_user([self.weft, "with", *words]), env=env)

    def left(self):
        folder = os.path.join(self.fabric.base, "weft")
        return os.listdir(folder) if os.path.exists(folder) else []

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        left = self.left()
        self.fabric.down()
        if left and kind is None:
            raise Failure(f"left behind: {left}")


def exit_code(context):
    with With(context) as private:
        process = private.start("--", "sh", "-c", "ibv_devinfo >/dev/null && echo only this && exit 7").wait(20)
        process.expect_exit(7).expect_quiet()
        if process.stdout != "only this\n":
            raise Failure(f"stdout is not the command's alone: {process.describe()}")
        private.start("--", "/no/such/program").wait(20).expect_exit(127)
        private.start("--hosts", "0", "--", "true").wait(20).expect_exit(2)
        private.start().wait(20).expect_exit(2)


def nested(context):
    """Inside, the other verbs mean this fabric."""
    script = ("weft run h2 -- ibv_rc_pingpong -g 1 -c -p 19650 >&2 & server=$!; "
              "until weft show qps | grep -q h2; do :; done; "
              "ibv_rc_pingpong -g 1 -c -p 19650 h2 && wait $server")
    with With(context) as private:
        private.start("--hosts", "3", "--", "sh", "-c", script).wait(30).expect_exit(0)


def side_by_side(context):
    with With(context) as private:
        for process in [private.start("--", "ibv_devinfo") for _ in range(6)]:
            process.wait(30).expect_exit(0)
            if "rxe0" not in process.stdout:
                raise Failure(process.describe())


def killed(context):
    """kill -9 of `weft with` ends the command and the fabric."""
    with With(context) as private:
        process = private.start("--", context.program("process_life"), "blocked").wait_output("blocked", 20)
        program = process.program_pid("process_life")
        launcher = process.pid if not private.fabric.user else process.program_pid("weft")
        os.kill(launcher, signal.SIGKILL)
        wait_until(lambda: not os.path.exists(f"/proc/{program}") and not private.left(), 10,
                   lambda: f"still there: {private.left()}")


def interrupted(context):
    """SIGTERM goes to the command; the fabric ends after it."""
    with With(context) as private:
        process = private.start("--", "sh", "-c", "trap 'echo told; exit 3' TERM; echo ready; while :; do sleep 0.01; done")
        process.wait_output("ready", 20)
        os.kill(process.pid, signal.SIGTERM)
        process.wait(10).expect_exit(3)
        if "told" not in process.stdout:
            raise Failure(process.describe())


def cases():
    for run in (exit_code, nested, side_by_side, killed, interrupted):
        tags = ("ci", "full", "daemon") + (("user",) if run in (exit_code, nested) else ())
        yield Case("with/" + run.__name__.replace("_", "-"), run, tags, 60)
