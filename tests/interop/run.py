#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Interop tests: Debian's own RDMA programs between emulated hosts, and programs that misbehave.

    run.py                      the CI subset (MTU 1024 and 4096, -n 20), also as an ordinary user when run as root
    run.py --full --diagonal    every MTU, and each tool once with its default iterations
    run.py -k ib_read           only cases whose name contains the text;  --list prints names

Every case prints one line; the last line is "N passed, N failed". Exit code 0 only when all passed.
"""
import argparse
import importlib
import os
import pkgutil
import pwd
import signal
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

from harness.fabric import Fabric  # noqa: E402
from harness.process import Process  # noqa: E402
from harness.report import Context, Runner  # noqa: E402

# Every file in cases/ is a group of cases.
MODULES = [importlib.import_module("cases." + name) for name in
           sorted(entry.name for entry in pkgutil.iter_modules([os.path.join(HERE, "cases")]))]
ORDINARY_USER = "nobody"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.environ.get("WEFT_BUILD", os.path.join(HERE, "..", "..", "build")),
                        help="build folder (default: build beside the sources)")
    parser.add_argument("--full", action="store_true", help="every MTU")
    parser.add_argument("--diagonal", action="store_true", help="each tool once with its default iterations")
    parser.add_argument("-k", dest="match", action="append", help="only cases whose name contains this; repeatable")
    tags = {tag for module in MODULES for case in module.cases() for tag in case.tags} - {"ci", "full", "diagonal", "user"}
    parser.add_argument("--tag", choices=sorted(tags), metavar="GROUP", help=f"only cases of this group: {', '.join(sorted(tags))}")
    parser.add_argument("--list", action="store_true", help="print the names and do nothing")
    parser.add_argument("--no-user", action="store_true", help="as root: leave out the part as an ordinary user")
    parser.add_argument("--lanes", type=int, default=2, metavar="N",
                        help="perftest cells run N at a time: perftest calibrates its clock before every size and "
                             "mostly waits (default 2)")
    parser.add_argument("-x", dest="stop_early", action="store_true", help="stop at the first failure")
    return parser.parse_args()


def selected(options):
    tags = {"diagonal"} if options.diagonal and not options.full else {"ci"}
    tags |= {"full", "diagonal"} if options.full and options.diagonal else {"full"} if options.full else set()
    cases, seen = [], set()
    for module in MODULES:
        for case in module.cases():
            if case.name in seen or not case.tags & tags or (options.tag and options.tag not in case.tags):
                continue
            if options.match and not any(text in case.name for text in options.match):
                continue
            seen.add(case.name)
            cases.append(case)
    return cases


def user_cases(options):
    if os.geteuid() != 0 or options.no_user or options.tag:
        return []
    cases = [case for module in MODULES for case in module.cases() if "user" in case.tags]
    return [case for case in cases if not options.match or any(text in "user/" + case.name for text in options.match)]


def installed_copy(build, folder):
    """`meson install` into a folder that the ordinary user can read; returns the weft inside it."""
    subprocess.run(["meson", "install", "-C", build, "--no-rebuild", "--destdir", folder], check=True,
                   stdout=subprocess.DEVNULL)
    os.chmod(folder, 0o755)
    for top, _, files in os.walk(folder):
        if "weft" in files and os.access(os.path.join(top, "weft"), os.X_OK) and top.endswith("bin"):
            return os.path.join(top, "weft")
    raise SystemExit(f"meson install put no bin/weft below {folder}")


def run_as_user(options, cases, programs_folder, runner_root):
    """The same cases as an ordinary user, from an installed copy: two more things that must work."""
    folder = tempfile.mkdtemp(prefix="weft-install-", dir="/tmp")
    try:
        weft = installed_copy(options.build, folder)
        reachable = os.path.join(folder, "programs")
        shutil.copytree(programs_folder, reachable, ignore=shutil.ignore_patterns("*.p", "meson*"))
        context = Context(weft, reachable, lambda opts=(), hosts=2, user=ORDINARY_USER:
                          Fabric(weft, user=user, options=opts, hosts=hosts), HERE)
        runner = Runner(context, prefix="user/")
        runner.stop_early = options.stop_early
        runner.run(cases)
        context.close()
        runner_root.add(runner)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def interrupted(number, _frame):
    raise KeyboardInterrupt


def main():
    options = arguments()
    options.build = os.path.abspath(options.build)
    cases, as_user = selected(options), user_cases(options)
    if options.list:
        print("\n".join([case.name for case in cases] + ["user/" + case.name for case in as_user]))
        return 0
    weft = os.path.join(options.build, "tools", "weft")
    if not os.access(weft, os.X_OK):
        print(f"{weft} is not there: run tools/setup first", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, interrupted)
    programs_folder = os.path.join(options.build, "tests", "interop")
    def make_context():
        return Context(weft, programs_folder, lambda opts=(), hosts=2, user=None:
                       Fabric(weft, user=user, options=opts, hosts=hosts), HERE)
    context = make_context()
    runner = Runner(context)
    runner.stop_early = options.stop_early
    try:
        runner.run([case for case in cases if "lane" not in case.tags])
        runner.run_in_lanes([case for case in cases if "lane" in case.tags], options.lanes, make_context)
        context.close()
        if as_user and not (options.stop_early and runner.failed):
            pwd.getpwnam(ORDINARY_USER)
            run_as_user(options, as_user, programs_folder, runner)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    finally:
        Process.stop_all()
        context.close()
    return runner.summary()


if __name__ == "__main__":
    sys.exit(main())
