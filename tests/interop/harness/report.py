# SPDX-License-Identifier: Apache-2.0
"""Cases, their registry, and the line that each of them prints."""
import signal
import sys
import time

from .process import Failure, Process, Skip


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
        print(f"{verdict:4} {self.prefix}{name}  {seconds:.2f} s{note}", file=self.stream, flush=True)

    def summary(self):
        if self.skipped:
            print(f"{self.skipped} skipped", file=self.stream)
        print(f"{self.passed} passed, {self.failed} failed", file=self.stream, flush=True)
        return 1 if self.failed or not self.passed else 0
