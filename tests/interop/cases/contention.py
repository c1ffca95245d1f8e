# SPDX-License-Identifier: Apache-2.0
"""Several processes at one counter: each addition is there exactly once, whatever is lost on the way."""
import os
import tempfile

from harness.report import Case

CLIENTS = 5
COUNT = 400


def contended(drop=None):
    """Clients on two hosts, the counters on one of them."""
    def run(context):
        def go(fabric):
            handle, path = tempfile.mkstemp(prefix="weft-meet-", dir="/tmp")
            os.close(handle)
            try:
                argv = [context.program("contended_atomics"), path, str(CLIENTS), str(COUNT)]
                programs = [fabric.start("h0", argv + ["server"])]
                programs += [fabric.start(f"h{i % 2}", argv + [str(i)]) for i in range(CLIENTS)]
                for program in programs:
                    program.wait(60).expect_exit(0).expect_quiet()
            finally:
                os.unlink(path)
        if drop is None:
            go(context.shared_fabric())
        else:
            with context.make_fabric(["--drop", drop, "--seed", "5"]) as fabric:
                go(fabric)
    return run


def cases():
    ci = ("ci", "full", "faults")
    yield Case("contention/atomics", contended(), ci, 90)
    yield Case("contention/atomics/drop-1%", contended("1%"), ci, 90)
