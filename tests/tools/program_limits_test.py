#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The weft program at the edges of what a shell can do to it: limits, outputs that fail, run folders that go, crowds.

    program_limits_test.py WEFT [--real]      as program_test.py, whose fixture it uses
"""
import errno
import os
import random
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import program_test
from program_test import Fabric, contents

SEED = 20240607


def remove(folder):
    """As a careless person does it; what is gone before it is reached is no error."""
    subprocess.run(["rm", "-rf", folder], check=True)


class Output(Fabric):
    """What was asked for and could not be written is an error, whoever asks; what needs no output does not care."""

    def setUp(self):
        super().setUp()
        self.weft("up")

    def run_with(self, redirect, *args):
        line = f'exec "$0" "$@" {redirect}'
        return subprocess.run(["sh", "-c", line, program_test.WEFT, *args], env=self.env, text=True, capture_output=True, timeout=30)

    def test_a_full_disk_is_an_error(self):
        for args in (["show", "hosts"], ["show", "ports"], ["show", "links", "--json"], ["show", "qps"], ["show", "metrics"],
                     ["env", "h0"], ["env", "h0", "--format", "json"], ["capture", "h0", "--for", "50ms"], ["--help"],
                     ["up", "--help"], ["--version"], ["doctor"], ["capture", "h0", "-w", "/dev/full", "--for", "50ms"]):
            with self.subTest(args):
                done = self.run_with(">/dev/full", *args)
                self.assertEqual(done.returncode, 1, done.stderr)
                self.one_line(done.stderr)
                self.assertIn(os.strerror(errno.ENOSPC), done.stderr)

    def test_a_closed_output_is_an_error_where_something_was_to_be_said(self):
        for args in (["show", "hosts"], ["env", "h0"], ["--help"]):
            with self.subTest(args):
                done = self.run_with(">&-", *args)
                self.assertEqual(done.returncode, 1, done.stderr)
                self.one_line(done.stderr)
        self.assertEqual(self.run_with(">&-", "run", "h0", "--", "true").returncode, 0)
        self.assertEqual(self.run_with(">&- 2>&- <&-", "down").returncode, 0)

    def test_closed_descriptors_stay_closed_for_the_program_and_nothing_else_is_given_to_it(self):
        look = 'for fd in /proc/self/fd/*; do [ -e "$fd" ] && echo "${fd##*/}"; done'
        for redirect, expected in (("", "0 1 2"), ("<&-", "1 2"), ("2>&-", "0 1")):
            done = self.run_with(redirect, "run", "h0", "--", "sh", "-c", look)
            # sh itself may hold one that it reads the folder through, gone when it is tested.
            self.assertEqual(done.stdout.split(), expected.split(), redirect)
        self.assertEqual(self.run_with(">&-", "run", "h0", "--", "sh", "-c", "echo x").returncode != 0, True)

    def test_a_daemon_keeps_none_of_its_starters_descriptors(self):
        read_end, write_end = os.pipe()
        done = subprocess.run([program_test.WEFT, "up", "--name", "other"], env=self.env, pass_fds=[write_end],
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=30)
        self.assertEqual(done.returncode, 0, done.stderr)
        os.close(write_end)
        self.assertTrue(select.select([read_end], [], [], 5)[0])
        self.assertEqual(os.read(read_end, 1), b"")
        os.close(read_end)
        for redirect in (">&-", "<&-", "2>&-", "<&- >&- 2>&-"):
            done = self.run_with(redirect, "up", "--name", "closed")
            self.weft("show", "hosts", "--name", "closed")
            self.weft("down", "--name", "closed")
        self.weft("down", "--name", "other")


class Limits(Fabric):
    """ulimit: the verb does its work, or says in one line why not, with an exit code that is not 0. No signal, no hang."""

    VERBS = (["show", "hosts"], ["show", "metrics"], ["run", "h0", "--", "true"], ["env", "h0"], ["down", "--name", "none"],
             ["up", "--name", "second"], ["doctor"])

    def under(self, limits, *args):
        def apply():
            for kind, value in limits:
                resource.setrlimit(kind, (value, value))
        done = subprocess.run([program_test.WEFT, *args], env=self.env, text=True, capture_output=True, timeout=30,
                              stdin=subprocess.DEVNULL, preexec_fn=apply)
        where = f"{limits} weft {' '.join(args)}: {done.returncode} {done.stdout[:200]}{done.stderr}"
        self.assertGreaterEqual(done.returncode, 0, where)
        self.assertNotIn("terminate called", done.stderr, where)
        if done.returncode in (1, 125) and args[0] != "doctor" and not done.stderr.startswith(("/", "weft: error while loading")):
            self.one_line(done.stderr)
        return done

    def check(self, limits):
        for args in self.VERBS:
            with self.subTest(limits=limits, args=args):
                done = self.under(limits, *args)
                if args[0] == "up" and done.returncode == 0:
                    self.weft("down", "--name", "second")
                self.assertFalse(os.path.exists(self.folder("second")))

    def test_descriptors(self):
        self.weft("up")
        for number in range(4, 12):
            self.check([(resource.RLIMIT_NOFILE, number)])
        self.assertIn("ulimit -n", self.under([(resource.RLIMIT_NOFILE, 4)], "show", "hosts").stderr)

    def test_file_sizes_name_their_limit(self):
        self.weft("up")
        self.check([(resource.RLIMIT_FSIZE, 0)])
        done = self.under([(resource.RLIMIT_FSIZE, 0)], "up", "--name", "second")
        self.assertEqual(done.returncode, 1)
        self.assertIn("ulimit -f", done.stderr)
        big = self.under([(resource.RLIMIT_FSIZE, 16)], "capture", "h0", "-w", os.path.join(self.base, "x"), "--for", "50ms")
        self.assertEqual(big.returncode, 1)
        self.assertIn("ulimit -f", big.stderr)

    def test_the_program_keeps_its_own_way_of_dying_of_a_file_size(self):
        self.weft("up")
        script = "trap - XFSZ; head -c 100000 /dev/zero > " + os.path.join(self.base, "x")
        done = self.under([(resource.RLIMIT_FSIZE, 4096)], "run", "h0", "--", "sh", "-c", script)
        self.assertEqual(done.returncode, 128 + signal.SIGXFSZ)

    def test_address_space(self):
        self.weft("up")
        for mebibytes in (20, 40, 80, 160, 320):
            self.check([(resource.RLIMIT_AS, mebibytes << 20)])

    @unittest.skipUnless(os.geteuid() != 0 or shutil.which("setpriv"), "the limit does not bind root")
    def test_processes(self):
        os.chmod(self.base, 0o777)
        self.weft("up")
        if os.geteuid() != 0:
            return self.check([(resource.RLIMIT_NPROC, 0)])
        # Another user than root, and one whose own processes do not count: a fabric of his own cannot start.
        tool = os.path.join(self.base, "copy", "weft")
        os.mkdir(os.path.dirname(tool))
        shutil.copy(program_test.WEFT, tool)
        for limit in (0, 1):
            base = tempfile.mkdtemp(dir=self.base)
            os.chown(base, 54321, 54321)
            done = subprocess.run(["setpriv", "--reuid", "54321", "--regid", "54321", "--clear-groups", "prlimit", f"--nproc={limit}",
                                   tool, "up"], env={**self.env, "XDG_RUNTIME_DIR": base}, text=True, capture_output=True, timeout=30)
            self.assertIn(done.returncode, (1, 126), done.stderr)  # 126: prlimit itself could not go on
            self.assertEqual(os.listdir(base), [])


class RunFolders(Fabric):
    def wait_for_end(self, pid):
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        self.assertTrue(select.select([fd], [], [], 10)[0], "the daemon lives on")
        os.close(fd)

    def test_a_daemon_whose_folder_is_removed_ends(self):
        self.weft("up")
        pid = self.daemon_pid()
        remove(self.folder())
        self.wait_for_end(pid)
        self.weft("up")  # nothing is in the way
        pid = self.daemon_pid()
        os.rename(self.folder(), self.folder() + "-away")
        self.wait_for_end(pid)
        self.assertIn("was removed", contents(os.path.join(self.folder() + "-away", "daemon.log")).decode())

    def test_in_the_foreground_it_says_so(self):
        child = self.start("up", "--foreground")
        self.assertIn("is up", child.stdout.readline())
        remove(os.path.join(self.base, "weft"))
        self.assertEqual(child.wait(10), 0)
        self.assertIn("was removed", child.stderr.read())

    def test_a_new_fabric_in_the_place_of_a_removed_one_is_left_alone(self):
        self.weft("up")
        pid = self.daemon_pid()
        os.kill(pid, signal.SIGSTOP)
        remove(self.folder())
        self.weft("up")
        os.kill(pid, signal.SIGCONT)
        self.wait_for_end(pid)
        self.weft("show", "hosts")
        self.weft("down")

    def test_an_orderly_end_is_no_death(self):
        self.weft("up")
        capture = self.start("capture", "h0", "-w", os.path.join(self.base, "x"))
        while not os.path.exists(os.path.join(self.base, "x")):
            time.sleep(0.002)
        runner = self.start("run", "h0", "--", "sh", "-c", "echo ready; read x")
        runner.stdout.readline()
        runner_end = self.start("run", "h0", "--", "sh", "-c", f"{program_test.WEFT} down")
        self.assertEqual(runner_end.wait(10), 0)
        self.assertEqual(capture.wait(10), 1)
        self.assertEqual(runner.wait(10), 1)
        for child in (capture, runner, runner_end):
            text = child.stderr.read()
            self.one_line(text)
            self.assertNotIn("died", text)
        self.assertEqual(contents(os.path.join(self.base, "x"))[:4], b"\x0a\x0d\x0d\x0a")

    def test_a_path_as_long_as_it_may_be(self):
        # 108 bytes of sun_path less the longest name below a folder: at the limit, one below and one above.
        for length in range(40, 60):
            folder = os.path.join(self.base, "x" * (length - len(self.base) - 1))
            os.makedirs(folder)
            env = {**self.env, "XDG_RUNTIME_DIR": folder}
            # Where it does not fit the folder is below /tmp, which all tests share.
            name = f"long-{os.getpid()}-".ljust(64, "n")
            self.weft("up", "--name", name, "--hosts", "1", env=env)
            self.weft("show", "hosts", "--name", name, env=env)
            self.weft("down", "--name", name, env=env)
            self.assertEqual(os.listdir(folder), [])


class Crowds(Fabric):
    def test_ups_and_downs_at_once_end_in_one_fabric_or_none(self):
        print(f"seed {SEED}", file=sys.stderr)
        rng = random.Random(SEED)
        rounds, crowd = (6, 8) if program_test.REAL else (12, 10)
        for _ in range(rounds):
            children = [self.start(rng.choice(("up", "up", "down"))) for _ in range(crowd)]
            ups = 0
            for child in children:
                code = child.wait(30)
                text = child.stderr.read()
                if code == 0:
                    ups += "up" in child.args
                    continue
                self.assertEqual(code, 1, text)
                self.one_line(text)
                self.assertRegex(text, "running already|no fabric|taken down|just starting or ending", text)
            # Whoever was told that it is up, and not ended since, is there; and down ends all there is.
            locked = os.path.exists(os.path.join(self.folder(), "lock"))
            if locked:
                self.weft("show", "hosts")
                self.weft("down")
            self.assertEqual(os.listdir(self.base), [])

    def test_up_over_leftovers_while_others_clean_them_up(self):
        for _ in range(4 if program_test.REAL else 10):
            self.weft("up")
            self.kill_daemon()
            children = [self.start(verb) for verb in ("down", "up", "down", "down")]
            for child in children:
                child.wait(30)
            up = children[1]
            self.assertEqual(up.returncode, 0, up.stderr.read())
            if os.path.exists(self.folder()):
                self.weft("show", "hosts")
                self.weft("down")
            self.assertEqual(os.listdir(self.base), [])


if __name__ == "__main__":
    program_test.WEFT = os.path.abspath(sys.argv[1])
    program_test.REAL = "--real" in sys.argv
    unittest.main(argv=[sys.argv[0], *[a for a in sys.argv[2:] if a != "--real"]], verbosity=2)
