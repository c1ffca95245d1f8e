# SPDX-License-Identifier: Apache-2.0
"""What single programs do to their memory, descriptors and children with live queue pairs, and programs that cannot
see the device at all."""
import os
import shutil
import subprocess

from harness.process import Failure, Skip
from harness.report import Case

LIFE_CASES = ("exchange", "exchange-events", "exchange-extended", "exchange-extended-events", "fork", "fork-stay",
              "fork-exec", "vfork", "vfork-close", "spawn", "system", "close-all", "close-range", "closefrom", "dup2",
              "signals", "reopen")
INLINE_OFF = ("exchange", "exchange-events", "fork-stay", "vfork")


def listed(context, program):
    return subprocess.run([context.program(program), "--list"], stdout=subprocess.PIPE, check=True, text=True).stdout


def run_program(program, case, env=None):
    def run(context):
        process = context.shared_fabric().start("h0", [context.program(program), case], env=env)
        process.wait(60).expect_exit(0).expect_quiet()
    return run


def lists_agree(context):
    """The programs' own lists and this file's must not drift apart."""
    life = set(listed(context, "process_life").split()) - {"blocked"}
    if life != set(LIFE_CASES):
        raise Failure(f"process_life has {sorted(life ^ set(LIFE_CASES))} on one side only")
    access = set(listed(context, "memory_access").split())
    if access != set(ACCESS_CASES):
        raise Failure(f"memory_access has {sorted(access ^ set(ACCESS_CASES))} on one side only")


ACCESS_CASES = ("bad-lkey", "bad-lkey-send", "bad-rkey-write", "bad-rkey-read", "beyond-local", "beyond-remote-write",
                "beyond-remote-read", "before-remote", "wrapping-remote", "no-remote-write", "no-remote-read",
                "deregistered-local", "deregistered-remote", "unmapped-local", "unmapped-local-read",
                "unmapped-remote-write", "unmapped-remote-read", "receive-too-short")


def python_child_processes(context):
    """Debian's Python vforks and closes descriptors in the parent's memory; the queue pairs must not notice."""
    script = os.path.join(context.source, "python_life.py")
    library = context.program("libverbs_pair.so")
    python = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else "python3"
    process = context.shared_fabric().start("h0", [python, script, library])
    process.wait(60).expect_exit(0).expect_quiet()


def exit_code_passes(context):
    fabric = context.shared_fabric()
    fabric.start("h0", ["sh", "-c", "exit 42"]).wait(20).expect_exit(42)
    killed = fabric.start("h0", ["sh", "-c", "kill -TERM $$"]).wait(20)
    if killed.popen.returncode not in (143, -15):
        raise Failure(f"exit code {killed.popen.returncode} for a program that SIGTERM ended")
    missing = fabric.start("h0", ["no-such-program-here"]).wait(20)
    if missing.popen.returncode not in (126, 127) or "no-such-program-here" not in missing.stderr:
        raise Failure(f"a missing program must be named, exit code 127: {missing.describe()}")


def stdout_untouched(context):
    process = context.shared_fabric().start("h0", ["printf", "a\\nb"]).wait(20).expect_exit(0)
    if process.stdout != "a\nb":
        raise Failure(f"stdout is {process.stdout!r}")


def expect_explanation(process, *words):
    """`weft run` says, in one line on stderr, why nothing was opened."""
    lines = [line for line in process.stderr.splitlines() if line.strip()]
    if len(lines) != 1 or not all(word in lines[0].lower() for word in words):
        raise Failure(f"expected one line with {words}, got {lines}")


def static_program(context):
    process = context.shared_fabric().start("h0", [context.program("plain_static"), "7"]).wait(20).expect_exit(7)
    if process.stdout != "static program ran\n":
        raise Failure(f"stdout is {process.stdout!r}")
    expect_explanation(process, "static")


def never_asked(context):
    """A program that has nothing to do with RDMA runs; it is told that nothing was opened."""
    process = context.shared_fabric().start("h0", ["true"]).wait(20).expect_exit(0)
    expect_explanation(process, "rdma")


def setuid_program(context):
    fabric = context.shared_fabric()
    if os.geteuid() == 0 and fabric.user is None:
        raise Skip("a set-uid program is nothing special for root")
    for path in ("/usr/bin/mount", "/usr/bin/su", "/usr/bin/passwd"):
        if os.path.exists(path) and os.stat(path).st_mode & 0o4000:
            process = fabric.start("h0", [path, "--help"]).wait(20)
            return expect_explanation(process, "setuid")
    raise Skip("no set-uid program here")


def no_provider(context):
    """Without the rxe provider libibverbs sees no device; seen in a mount namespace where its folder is hidden."""
    if os.geteuid() != 0 or context.shared_fabric().user:
        raise Skip("needs root for a mount namespace")
    hide = "mount -t tmpfs none /etc/libibverbs.d"
    if subprocess.run(["unshare", "-m", "sh", "-c", hide], stderr=subprocess.DEVNULL, check=False).returncode:
        raise Skip("no mount namespaces here")
    wrap = ["unshare", "-m", "sh", "-c", hide + ' && exec "$@"', "sh"]
    process = context.shared_fabric().start("h0", ["ibv_devices"], wrap=wrap).wait(20)
    if not any("provider" in line and "weft" in line for line in process.stderr.splitlines()):
        raise Failure(f"no line about the missing provider: {process.describe()}")


def few_descriptors(context):
    """Hardly any descriptors left: the program fails with a line, and does not crash or hang."""
    if not shutil.which("prlimit"):
        raise Skip("no prlimit")
    fabric = context.shared_fabric()
    for limit in (8, 12, 16, 20):
        program = ["prlimit", f"--nofile={limit}:{limit}", context.program("process_life"), "exchange"]
        process = fabric.start("h0", program).wait(30)
        if process.popen.returncode < 0 or process.popen.returncode > 128:
            raise Failure(f"crashed with {limit} descriptors: {process.describe()}")
        if process.popen.returncode and not process.stderr.strip():
            raise Failure(f"failed without a word with {limit} descriptors: {process.describe()}")
    fabric.start("h0", [context.program("process_life"), "exchange"]).wait(30).expect_exit(0)


def kept_preload(context):
    """An LD_PRELOAD of the user's own stays."""
    process = context.shared_fabric().start("h0", ["printenv", "LD_PRELOAD"], env={"LD_PRELOAD": "libm.so.6"})
    words = process.wait(20).expect_exit(0).stdout.replace(":", " ").split()
    if len(words) != 2 or not words[0].endswith("libweft.so") or words[1] != "libm.so.6":
        raise Failure(f"LD_PRELOAD is {words}")


def cases():
    ci = ("ci", "full", "programs")
    yield Case("programs/lists-agree", lists_agree, ci)
    for name in ACCESS_CASES:
        yield Case("access/" + name, run_program("memory_access", name), ci)
    for name in LIFE_CASES:
        yield Case("life/" + name, run_program("process_life", name), ci)
    for name in INLINE_OFF:
        yield Case(f"life/{name}/inline-off", run_program("process_life", name, {"WEFT_INLINE": "0"}), ci)
    for name in ("unmapped-local", "unmapped-remote-write", "bad-rkey-read"):
        yield Case(f"access/{name}/inline-off", run_program("memory_access", name, {"WEFT_INLINE": "0"}), ci)
    yield Case("life/python-subprocess", python_child_processes, ci)
    yield Case("run/exit-code", exit_code_passes, ci + ("user",))
    yield Case("run/stdout-untouched", stdout_untouched, ci)
    yield Case("run/keeps-ld-preload", kept_preload, ci)
    yield Case("run/static-program", static_program, ci)
    yield Case("run/setuid-program", setuid_program, ci + ("user",))
    yield Case("run/never-asked", never_asked, ci)
    yield Case("run/no-provider", no_provider, ci)
    yield Case("run/few-descriptors", few_descriptors, ci, 150)
