# SPDX-License-Identifier: Apache-2.0
"""Cases, their registry, and the line that each of them prints."""
import os
import signal
import sys
import time

from .process import Failure, Process, Skip, use_ports


class Case:
    """run(context) raises Failure or Skip. tags select; a case with own_fabric leaves the shared one alone."""

    def __init__(self, name, run, tags, timeout=60):
        self.name, self.run, self.tags, self.timeout = name, run, frozenset(tags), timeout


class Context:
    """What a case gets: the shared fabric, how to make another, and where things are."""

    def __init__(self, weft, programs, make_fabric, source):
        self.weft, self.programs, self.make_fabric, self.source = weft, programs, make_fabric, source
        self.fabric = None

    def shared_fabric(self):
        if self.fabric is not None and not self.fabric.daemon_running():
            self.close()
        if self.fabric is None:
            self.fabric = self.make_fabric().up()
        return self.fabric

    def program(self, name):
        return f"{self.programs}/{name}"

    def close(self):
        if self.fabric is not None:
            self.fabric.down()
            self.fabric = None


class CaseTimeout(BaseException):
    pass


def _on_alarm(_number, _frame):
    raise CaseTimeout()


class Runner:
    def __init__(self, context, prefix="", stream=sys.stdout):
        self.context, self.prefix, self.stream = context, prefix, stream
        self.passed = self.failed = self.skipped = 0
        self.stop_early = False

    def run(self, cases):
        signal.signal(signal.SIGALRM, _on_alarm)
        for case in cases:
            began = time.monotonic()
            verdict, text = self.run_one(case)
            self.line(verdict, case.name, time.monotonic() - began, text)
            if self.stop_early and self.failed:
                break

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped

    def run_in_lanes(self, cases, lanes, make_context):
        """Cases that mostly wait, several at a time: every lane is a process with a fabric of its own."""
        children = []
        for lane in range(min(lanes, len(cases))):
            read_end, write_end = os.pipe()
            sys.stdout.flush()
            pid = os.fork()
            if pid == 0:
                os._exit(self.lane(lane, lanes, cases[lane::lanes], make_context, write_end, read_end))
            os.close(write_end)
            children.append((pid, os.fdopen(read_end, encoding="utf-8")))
        for pid, results in children:
            counts = results.read().split()
            os.waitpid(pid, 0)
            if len(counts) == 3:
                self.passed, self.failed, self.skipped = (a + int(b) for a, b in
                                                          zip((self.passed, self.failed, self.skipped), counts))
            else:
                self.failed += 1
                print(f"FAIL {self.prefix}a lane of cases died", file=self.stream, flush=True)

    def lane(self, lane, lanes, cases, make_context, write_end, read_end):
        os.close(read_end)
        Process.live.clear()
        use_ports(lane, lanes)
        runner = Runner(make_context(), self.prefix, self.stream)
        runner.stop_early = self.stop_early
        try:
            runner.run(cases)
        finally:
            Process.stop_all()
            runner.context.close()
        os.write(write_end, f"{runner.passed} {runner.failed} {runner.skipped}".encode())
        return 0

    def run_one(self, case):
        signal.alarm(int(case.timeout) + 1)
        try:
            case.run(self.context)
            fabric = self.context.fabric
            if fabric is not None and not fabric.daemon_running():
                raise Failure("the daemon died; its log ends:\n" + fabric.log_tail())
            return "ok", ""
        except Skip as reason:
            return "skip", str(reason)
        except Failure as reason:
            return "FAIL", str(reason)
        except CaseTimeout:
            return "FAIL", f"over its limit of {case.timeout:g} s"
        except Exception as error:  # the harness's own fault is a failure of the case, not of the run
            return "FAIL", f"{type(error).__name__}: {error}"
        finally:
            signal.alarm(0)
            Process.stop_all()

    def line(self, verdict, name, seconds, text):
        self.passed += verdict == "ok"
        self.failed += verdict == "FAIL"
        self.skipped += verdict == "skip"
        note = f"  {text}" if text else ""
        # One write, so that the lines of several lanes do not mix.
        self.stream.write(f"{verdict:4} {self.prefix}{name}  {seconds:.2f} s{note}\n")
        self.stream.flush()

    def summary(self):
        if self.skipped:
            print(f"{self.skipped} skipped", file=self.stream)
        print(f"{self.passed} passed, {self.failed} failed", file=self.stream, flush=True)
        return 1 if self.failed or not self.passed else 0
