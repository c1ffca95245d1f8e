# SPDX-License-Identifier: Apache-2.0
"""Memory windows, invalidation, atomics and the rights of memory: two programs, one case each."""
import subprocess

from harness.process import Failure
from harness.report import Case

WINDOWS = ("type1", "type2", "beyond", "before", "no-write", "no-read", "no-atomic", "bad-remote-invalidate",
           "bad-local-invalidate", "bind-error", "order", "limits", "unsupported")
RIGHTS = ("atomics", "atomic-misaligned", "atomic-write", "atomic-write-misaligned", "read-only-target",
          "read-only-receive", "read-only-atomic", "other-domain-lkey", "other-domain-rkey", "iova", "largest")
PROGRAMS = (("memory_windows", WINDOWS, ("type1", "type2", "order", "bind-error")),
            ("memory_rights", RIGHTS, ("atomics", "atomic-write")))


def run(program, name, env=None):
    def case(context):
        process = context.shared_fabric().start("h0", [context.program(program), name], env=env)
        process.wait(60).expect_exit(0).expect_quiet()
    return case


def lists_agree(context):
    """The programs' own lists and this file's must not drift apart."""
    for program, names, _ in PROGRAMS:
        listed = subprocess.run([context.program(program), "--list"], stdout=subprocess.PIPE, check=True, text=True)
        if set(listed.stdout.split()) != set(names):
            raise Failure(f"{program} has {sorted(set(listed.stdout.split()) ^ set(names))} on one side only")


def cases():
    ci = ("ci", "full", "programs")
    yield Case("memory/lists-agree", lists_agree, ci)
    for program, names, inline_off in PROGRAMS:
        for name in names:
            yield Case("memory/" + name, run(program, name), ci)
        for name in inline_off:
            yield Case(f"memory/{name}/inline-off", run(program, name, {"WEFT_INLINE": "0"}), ci)
