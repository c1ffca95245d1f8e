# SPDX-License-Identifier: Apache-2.0
"""Shared receive queues, completion queues, their events and limits: programs/shared_receive.c and
programs/completion_queues.c, and ibv_srq_pingpong."""
import subprocess

from harness.pair import CROSS, SAME, run_tool
from harness.process import Failure
from harness.report import Case

PROGRAMS = {
    "shared_receive": ("limit-once", "last-request", "not-ready", "in-use", "limits", "extended", "resize-under-load",
                       "destroy-accounts"),
    "completion_queues": ("overrun", "resize-pending", "resize-under-load", "arm-race", "solicited", "destroy-waits",
                          "shared-channel", "limits", "post-receive", "write-immediate", "extended-drain"),
}
# Limits need no traffic; the others once more with nobody but the NIC's thread to drive it.
INLINE_OFF = {(program, case) for program, cases in PROGRAMS.items() for case in cases if case not in ("limits", "extended")}


def run_program(program, case, env=None):
    def run(context):
        process = context.shared_fabric().start("h0", [context.program(program), case], env=env)
        process.wait(40).expect_exit(0).expect_quiet()
    return run


def lists_agree(context):
    for program, known in PROGRAMS.items():
        listed = subprocess.run([context.program(program), "--list"], stdout=subprocess.PIPE, check=True, text=True)
        if set(listed.stdout.split()) != set(known):
            raise Failure(f"{program} has {sorted(set(listed.stdout.split()) ^ set(known))} on one side only")


def srq_pingpong(options, hosts, env=None):
    def run(context):
        argv = ["ibv_srq_pingpong", "-g", "1", "-c", *options]
        for process in run_tool(context.shared_fabric(), argv, hosts, 60, env):
            if "bytes in" not in process.stdout:
                raise Failure(f"reported nothing: {process.describe()}")
    return run


def cases():
    ci = ("ci", "full", "queues")
    yield Case("queues/lists-agree", lists_agree, ci)
    for program, names in PROGRAMS.items():
        for name in names:
            yield Case(f"queues/{program}/{name}", run_program(program, name), ci)
            if (program, name) in INLINE_OFF:
                yield Case(f"queues/{program}/{name}/inline-off", run_program(program, name, {"WEFT_INLINE": "0"}), ci)
    for hosts in (CROSS, SAME):
        for options in (("-n", "200"), ("-n", "200", "-e"), ("-n", "50", "-s", "20000", "-m", "256", "-q", "4")):
            name = "pingpong/ibv_srq_pingpong-" + "-".join(word.lstrip("-") for word in options)
            yield Case(name + ("/same-host" if hosts == SAME else ""), srq_pingpong(options, hosts), ci)
    for options in (("-n", "100"), ("-n", "100", "-e")):
        name = "pingpong/ibv_srq_pingpong-" + "-".join(word.lstrip("-") for word in options)
        yield Case(name + "/inline-off", srq_pingpong(options, CROSS, {"WEFT_INLINE": "0"}), ci)
