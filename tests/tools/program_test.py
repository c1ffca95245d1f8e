#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The weft program as a shell sees it: up, run, show, capture, down, and everything that can go wrong around them.

    program_test.py WEFT [--real]      --real: the binary has a data plane, and libweft.so beside it
"""
import json
import os
import random
import select
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import time
import unittest

WEFT = ""
REAL = False
STATIC = os.path.join(os.path.dirname(os.path.abspath(__file__)), "static_program")
NOBODY = 65534


def varint(n):
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def field(number, payload):
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def contents(path):
    with open(path, "rb") as f:
        return f.read()


class Fabric(unittest.TestCase):
    """Each test has a run folder of its own and leaves no daemon."""

    def setUp(self):
        self.base = tempfile.mkdtemp(prefix="weft-program-")
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("WEFT_") and k != "LD_PRELOAD"}
        self.env["XDG_RUNTIME_DIR"] = self.base
        self.children = []

    def tearDown(self):
        for child in self.children:
            if child.poll() is None:
                child.kill()
            child.communicate()
        root = os.path.join(self.base, "weft")
        for name in os.listdir(root) if os.path.isdir(root) else []:
            try:
                with open(os.path.join(root, name, "daemon.pid")) as f:
                    os.kill(int(f.read()), signal.SIGKILL)
            except (OSError, ValueError):
                pass
        shutil.rmtree(self.base, ignore_errors=True)

    def folder(self, name="default"):
        return os.path.join(self.base, "weft", name)

    def weft(self, *args, code=0, env=None, **more):
        done = subprocess.run([WEFT, *args], env=env or self.env, capture_output=True, text=True, timeout=30,
                              stdin=subprocess.DEVNULL, **more)
        if code is not None:
            self.assertEqual(done.returncode, code, f"weft {' '.join(args)}: {done.stdout}{done.stderr}")
        return done

    def start(self, *args, **more):
        child = subprocess.Popen([WEFT, *args], env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True, **more)
        self.children.append(child)
        return child

    def one_line(self, text):
        self.assertRegex(text, r"^weft[^\n]*\n$")

    def daemon_pid(self, name="default"):
        with open(os.path.join(self.folder(name), "daemon.pid")) as f:
            return int(f.read())

    def kill_daemon(self, name="default"):
        pid = self.daemon_pid(name)
        fd = os.pidfd_open(pid)
        os.kill(pid, signal.SIGKILL)
        self.assertTrue(select.select([fd], [], [], 10)[0])
        os.close(fd)


class UpAndDown(Fabric):
    def test_up_tells_what_to_type_and_down_leaves_nothing(self):
        begin = time.monotonic()
        up = self.weft("up")
        print(f"weft up took {time.monotonic() - begin:.2f} s", file=sys.stderr)
        self.assertIn("weft run h0", up.stdout)
        self.assertEqual(up.stderr, "")
        self.assertEqual(stat.S_IMODE(os.stat(self.folder()).st_mode), 0o700)
        self.assertRegex(contents(os.path.join(self.folder(), "hosts.map")).decode(),
                         r"^h0 198\.18\.0\.1 (127\.\d+)\.0\.1\nh1 198\.18\.0\.2 \1\.0\.2\n$")
        down = self.weft("down")
        self.assertEqual(down.stdout + down.stderr, "")
        self.assertEqual(os.listdir(self.base), [])

    def test_second_up_of_a_name_is_refused_in_one_line(self):
        self.weft("up")
        again = self.weft("up", code=1)
        self.one_line(again.stderr)
        self.assertIn("running already", again.stderr)
        self.assertIn("weft down", again.stderr)
        self.weft("show", "hosts")  # the first is unharmed

    def test_many_at_once_make_one_fabric(self):
        crowd = [self.start("up") for _ in range(6)]
        codes = sorted(child.wait(30) for child in crowd)
        self.assertEqual(codes, [0, 1, 1, 1, 1, 1])
        self.weft("show", "hosts")
        self.weft("down")
        self.assertEqual(os.listdir(self.base), [])

    def test_several_fabrics_side_by_side_whatever_the_name(self):
        long_name = "n" * 64
        self.weft("up", "--name", "one", "--hosts", "3")
        self.weft("up", "--name", long_name)
        hosts = json.loads(self.weft("show", "hosts", "--json", "--name", "one").stdout)
        self.assertEqual([h["name"] for h in hosts["hosts"]], ["h0", "h1", "h2"])
        hosts = json.loads(self.weft("--name", long_name, "show", "hosts", "--json").stdout)
        self.assertEqual(hosts["fabric"], long_name)
        for host in hosts["hosts"]:
            self.assertLess(len(host["attach_socket"]), 108)
        self.weft("down", "--name", "one")
        self.weft("down", env={**self.env, "WEFT_NAME": long_name})
        self.assertEqual(os.listdir(self.base), [])

    def test_kill_9_of_the_daemon_is_told_and_up_starts_over_the_leftovers(self):
        self.weft("up")
        self.kill_daemon()
        show = self.weft("show", "hosts", code=1)
        self.one_line(show.stderr)
        self.assertIn("died", show.stderr)
        self.one_line(self.weft("run", "h0", "--", "true", code=125).stderr)
        self.weft("up")
        self.weft("show", "hosts")
        self.kill_daemon()
        self.weft("down")
        self.assertEqual(os.listdir(self.base), [])

    def test_without_a_fabric_every_verb_says_so(self):
        for line, code in ((["run", "h0", "--", "true"], 125), (["env", "h0"], 1), (["show", "hosts"], 1),
                           (["capture", "h0"], 1), (["down"], 1)):
            done = self.weft(*line, code=code)
            self.one_line(done.stderr)
            self.assertIn("weft up", done.stderr)
            self.assertEqual(done.stdout, "")

    def test_foreground_ends_at_ctrl_c_and_leaves_nothing(self):
        for ending in (signal.SIGINT, signal.SIGTERM):
            child = self.start("up", "--foreground")
            self.assertIn("is up", child.stdout.readline())
            self.weft("show", "hosts")
            child.send_signal(ending)
            self.assertEqual(child.wait(10), 0)
            self.assertEqual(child.stderr.read(), "")
            self.assertEqual(os.listdir(self.base), [])

    def test_a_daemon_without_descriptors_says_so(self):
        limits = [*range(14, 24), 8] if not REAL else [24, 40]
        for limit in limits:
            with self.subTest(limit):
                done = subprocess.run(["prlimit", f"--nofile={limit}:{limit}", WEFT, "up", "--hosts", "4"], env=self.env,
                                      text=True, capture_output=True, timeout=30)
                if done.returncode == 0:
                    self.weft("down")
                else:
                    self.one_line(done.stderr)
                self.assertEqual(os.listdir(self.base), [])

    def test_a_fabric_inside_a_run_is_no_host_itself(self):
        self.weft("up", "--name", "outer")
        inner = self.weft("run", "h0", "--name", "outer", "--", WEFT, "up", "--name", "inner")
        self.assertIn("is up", inner.stdout)
        environ = contents(f"/proc/{self.daemon_pid('inner')}/environ").decode()
        self.assertNotIn("WEFT_HOST", environ)
        self.assertNotIn("libweft", environ)
        self.weft("down", "--name", "inner")
        self.weft("down", "--name", "outer")

    @unittest.skipUnless(os.geteuid() == 0, "only root can make another user's folder")
    def test_another_users_run_folder_is_refused(self):
        os.mkdir(os.path.join(self.base, "weft"), 0o700)
        os.chown(os.path.join(self.base, "weft"), NOBODY, NOBODY)
        done = self.weft("up", code=1)
        self.one_line(done.stderr)
        self.assertIn("another user", done.stderr)

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("setpriv"), "needs root to become an ordinary user")
    def test_an_ordinary_user_has_a_fabric_of_his_own(self):
        os.chown(self.base, NOBODY, NOBODY)
        as_nobody = ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
        tool = os.path.join(self.base, "weft-copy")  # the build folder may be closed to others
        shutil.copy(WEFT, tool)
        shutil.copy(os.path.join(os.path.dirname(WEFT), "libweft.so"), os.path.join(self.base, "libweft.so"))

        def weft(*args):
            done = subprocess.run([*as_nobody, tool, *args], env=self.env, text=True, capture_output=True, timeout=30, cwd="/")
            self.assertEqual(done.returncode, 0, done.stderr)
            return done
        weft("up")
        self.assertEqual(os.stat(self.folder()).st_uid, NOBODY)
        self.assertEqual(weft("run", "h1", "--", "id", "-u").stdout, f"{NOBODY}\n")
        weft("show", "hosts")
        weft("down")


class Run(Fabric):
    def setUp(self):
        super().setUp()
        self.weft("up")

    def test_output_and_exit_code_are_the_programs(self):
        done = self.weft("run", "h0", "--", "sh", "-c", "echo out; exit 7", code=7)
        self.assertEqual(done.stdout, "out\n")
        self.one_line(done.stderr)
        self.assertIn("nothing under sh opened an RDMA device", done.stderr)
        self.weft("run", "h0", "--", "sh", "-c", "kill -9 $$", code=137)
        self.weft("run", "h0", "--", "/nonexistent/program", code=127)
        self.weft("run", "h0", "--", "/etc/passwd", code=126)
        self.assertIn("h0 to h1", self.weft("run", "h7", "--", "true", code=125).stderr)

    def test_standard_input_is_the_programs(self):
        done = subprocess.run([WEFT, "run", "h0", "--", "cat"], env=self.env, input="hello", text=True, capture_output=True, timeout=30)
        self.assertEqual(done.stdout, "hello")

    def test_the_environment_of_a_host(self):
        env = dict(line.split("=", 1) for line in self.weft("run", "h1", "--", "env").stdout.splitlines() if "=" in line)
        self.assertEqual(env["WEFT_HOST"], "h1")
        self.assertEqual(env["WEFT_RUN"], self.folder())
        self.assertEqual(env["WEFT_NAME"], "default")
        self.assertGreater(int(env["WEFT_RUN_ID"]), 0)
        self.assertTrue(env["LD_PRELOAD"].endswith("libweft.so"))
        more = dict(self.env, LD_PRELOAD="/usr/lib/x86_64-linux-gnu/libm.so.6:" + env["LD_PRELOAD"])
        got = self.weft("run", "h1", "--", "sh", "-c", "echo $LD_PRELOAD", env=more).stdout.strip()
        self.assertEqual(got, env["LD_PRELOAD"] + ":/usr/lib/x86_64-linux-gnu/libm.so.6")

    def test_env_prints_what_a_shell_evaluates(self):
        script = f'eval "$({WEFT} env h1)" && echo $WEFT_HOST'
        done = subprocess.run(["sh", "-c", script], env=self.env, text=True, capture_output=True, timeout=30)
        self.assertEqual(done.stdout, "h1\n")
        self.assertEqual(json.loads(self.weft("env", "h0", "--format", "json").stdout)["WEFT_HOST"], "h0")
        self.assertIn("WEFT_HOST=h0\n", self.weft("env", "h0", "--format", "env").stdout)
        self.one_line(self.weft("env", "h9", code=1).stderr)

    def test_signals_reach_the_program_once(self):
        script = "trap 'echo term; exit 3' TERM; echo ready; while :; do sleep 0.05; done"
        child = self.start("run", "h0", "--", "sh", "-c", script)
        self.assertEqual(child.stdout.readline(), "ready\n")
        child.send_signal(signal.SIGTERM)
        self.assertEqual(child.wait(10), 3)
        self.assertEqual(child.stdout.read(), "term\n")
        # Ctrl-C goes to the whole group.
        child = self.start("run", "h0", "--", "sh", "-c", "echo ready; exec sleep 30", start_new_session=True)
        self.assertEqual(child.stdout.readline(), "ready\n")
        os.killpg(child.pid, signal.SIGINT)
        self.assertEqual(child.wait(10), 130)

    def test_kill_9_of_run_ends_its_program(self):
        child = self.start("run", "h0", "--", "sh", "-c", "echo $$; exec sleep 60")
        pid = int(child.stdout.readline())
        fd = os.pidfd_open(pid)
        child.kill()
        self.assertTrue(select.select([fd], [], [], 10)[0])
        os.close(fd)

    def test_why_nothing_was_opened(self):
        if os.path.exists(STATIC):
            self.assertIn("statically", self.weft("run", "h0", "--", STATIC).stderr)
        if os.geteuid() == 0:
            tool = os.path.join(self.base, "setuid")
            shutil.copy("/bin/true", tool)
            os.chown(tool, NOBODY, NOBODY)
            os.chmod(tool, 0o4755)
            self.assertIn("setuid", self.weft("run", "h0", "--", tool).stderr)

    def test_a_fabric_that_ends_under_a_run_does_not_hang_it(self):
        child = self.start("run", "h0", "--", "sh", "-c", "echo ready; read x; exit 5")
        child.stdout.readline()
        self.weft("down")
        self.assertEqual(child.wait(10), 5)


class Show(Fabric):
    def setUp(self):
        super().setUp()
        self.weft("up", "--hosts", "2", "--nics", "2")

    def test_tables_and_json_of_everything(self):
        for what in ("hosts", "ports", "links", "qps", "metrics"):
            self.assertNotEqual(self.weft("show", what).stdout, "")
            json.loads(self.weft("show", what, "--json").stdout)
        table = self.weft("show", "hosts").stdout
        self.assertIn("198.18.0.1", table)
        self.assertIn("rxe1", table)
        ports = json.loads(self.weft("show", "ports", "--json").stdout)
        self.assertEqual([p["peer"] for p in ports], ["h0 rxe0", "h0 rxe1", "h1 rxe0", "h1 rxe1"])

    def test_a_reader_that_stops_early_is_no_drama(self):
        done = subprocess.run(f"{WEFT} show metrics | head -1", shell=True, env=self.env, text=True, capture_output=True, timeout=30)
        self.assertEqual(done.stderr, "")


class Capture(Fabric):
    MAGIC = b"\x0a\x0d\x0d\x0a"

    def setUp(self):
        super().setUp()
        self.weft("up")
        self.file = os.path.join(self.base, "x.pcapng")

    def test_for_a_time_into_a_file(self):
        self.weft("capture", "h0", "h1-s0" if REAL else "h1", "-w", self.file, "--for", "200ms")
        self.assertEqual(contents(self.file)[:4], self.MAGIC)
        if shutil.which("tshark"):
            read = subprocess.run(["tshark", "-r", self.file], capture_output=True, text=True, timeout=60)
            self.assertEqual(read.returncode, 0, read.stderr)

    def test_ctrl_c_ends_it_cleanly(self):
        child = self.start("capture", "h0", "-w", self.file)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and not (os.path.exists(self.file) and os.path.getsize(self.file) > 0):
            time.sleep(0.01)
        child.send_signal(signal.SIGINT)
        self.assertEqual(child.wait(10), 0)
        self.assertEqual(contents(self.file)[:4], self.MAGIC)

    def test_to_a_pipe_and_a_reader_that_goes(self):
        child = subprocess.Popen([WEFT, "capture", "h0", "--for", "200ms"], env=self.env, stdout=subprocess.PIPE)
        self.children.append(child)
        self.assertEqual(child.stdout.read(4), self.MAGIC)
        child.stdout.close()
        child.stdout = None
        self.assertEqual(child.wait(10), 0)

    def test_places_that_are_not_there_and_files_that_cannot_be(self):
        self.assertIn("nowhere", self.weft("capture", "nowhere", "-w", self.file, code=1).stderr)
        self.one_line(self.weft("capture", "h0", "-w", "/nonexistent/x", code=1).stderr)

    def test_the_end_of_the_fabric_ends_it_with_a_line(self):
        child = self.start("capture", "h0", "-w", self.file)
        while not os.path.exists(self.file):
            time.sleep(0.01)
        self.weft("down")
        self.assertEqual(child.wait(10), 1)
        self.one_line(child.stderr.read())


class Strangers(Fabric):
    def test_garbage_on_both_sockets_hurts_nobody(self):
        self.weft("up")
        rng = random.Random(4242)
        print("seed 4242", file=sys.stderr)
        for _ in range(300):
            s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            s.connect(os.path.join(self.folder(), "control"))
            try:
                s.send(rng.randbytes(rng.randrange(1, 300)))
            except OSError:
                pass
            s.close()
            s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            s.connect(os.path.join(self.folder(), "hosts", "h0", "attach"))
            try:
                s.send(rng.randbytes(rng.choice([1, 8, 255, 256, 257, 4096])))
            except OSError:
                pass
            s.close()
        self.assertIn("h1", self.weft("show", "hosts").stdout)
        metrics = {m["name"]: m["value"] for m in json.loads(self.weft("show", "metrics", "--json").stdout)}
        self.assertGreater(metrics["attach_dropped_total"], 0)
        log = contents(os.path.join(self.folder(), "daemon.log")).decode()
        self.assertIn("dropped", log)
        self.weft("down")

    def fake_daemon(self, answer):
        """A control socket that gives one answer to each client."""
        os.makedirs(self.folder(), 0o700)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(os.path.join(self.folder(), "control"))
        listener.listen(8)
        pid = os.fork()
        if pid == 0:
            try:
                while True:
                    client, _ = listener.accept()
                    client.recv(4096)
                    client.send(answer)
                    client.close()
            finally:
                os._exit(0)
        listener.close()
        self.addCleanup(os.waitpid, pid, 0)
        self.addCleanup(os.kill, pid, signal.SIGKILL)

    def test_a_daemon_of_another_version_is_told_apart(self):
        error = field(10, b"\x08\x47" + field(2, b"the daemon is weft 0.0.1 (control protocol 0)"))
        self.fake_daemon(struct.pack(">I", len(error)) + error)
        for line, code in ((["show", "hosts"], 1), (["run", "h0", "--", "true"], 125)):
            done = self.weft(*line, code=code)
            self.one_line(done.stderr)
            self.assertIn("weft 0.0.1", done.stderr)

    def test_a_daemon_that_answers_garbage_is_an_error_not_a_crash(self):
        for answer in (b"\xff\xff\xff\xff", b"\x00\x00\x00\x04abcd", b"\x00\x00", b""):
            with self.subTest(answer):
                self.fake_daemon(answer)
                self.one_line(self.weft("show", "hosts", code=1).stderr)
                self.doCleanups()
                shutil.rmtree(self.folder())


@unittest.skipUnless(len(sys.argv) > 2 and sys.argv[2] == "--real", "needs a data plane")
class RealPrograms(Fabric):
    def test_ibv_devinfo_opens_the_device_and_nothing_is_said(self):
        self.weft("up", "--nics", "2")
        done = self.weft("run", "h1", "--", "ibv_devinfo", "-d", "rxe1")
        self.assertIn("rxe1", done.stdout)
        self.assertEqual(done.stderr, "")
        self.assertEqual(self.weft("run", "h0", "--", "ibv_devinfo", "-l").stdout.split()[-2:], ["rxe0", "rxe1"])
        metrics = {m["name"]: m["value"] for m in json.loads(self.weft("show", "metrics", "--json").stdout)}
        self.assertEqual(metrics["attach_accepted_total"], 1)
        self.weft("down")

    def test_demo(self):
        begin = time.monotonic()
        done = self.weft("demo")
        self.assertLess(time.monotonic() - begin, 60)
        self.assertIn("bytes in", done.stdout)
        self.assertRegex(done.stdout, r"65536\s+\d+")
        self.assertEqual(os.listdir(self.base), [])

    def test_why_nothing_opened_the_device(self):
        self.weft("up")
        for command, expected in ((["true"], "nothing that libweft.so was loaded into tried to"),
                                  (["env", "-i", "sort"], "sort ran without libweft.so: env did not hand LD_PRELOAD on"),
                                  (["env", "-u", "WEFT_HOST", "sort"], "sort ran without"),
                                  (["nice", "sort"], "tried to")):
            done = self.weft("run", "h0", "--", *command)
            self.one_line(done.stderr)
            self.assertIn(expected, done.stderr)
        # The inner run speaks for its program; the outer has nothing to add.
        self.assertEqual(self.weft("run", "h0", "--", WEFT, "run", "h1", "--", "ibv_devinfo").stderr, "")
        self.one_line(self.weft("run", "h0", "--", WEFT, "run", "h1", "--", "true").stderr)
        self.assertEqual(os.listdir(os.path.join(self.folder(), "runs")), [])
        # Refused: by the program on its own stderr, and by the run with the same reason.
        os.unlink(os.path.join(self.folder(), "hosts", "h0", "attach"))
        done = self.weft("run", "h0", "--", "sh", "-c", "exec ibv_devinfo 2>/dev/null", code=None)
        self.one_line(done.stderr)
        self.assertIn("it could not attach: cannot attach host h0", done.stderr)

    def test_getifaddrs_lists_the_nics(self):
        self.weft("up", "--nics", "2")
        script = ("import ctypes, socket, subprocess\n"
                  "libc = ctypes.CDLL(None)\n"
                  "class I(ctypes.Structure): pass\n"
                  "I._fields_ = [('next', ctypes.POINTER(I)), ('name', ctypes.c_char_p), ('flags', ctypes.c_uint),\n"
                  "              ('addr', ctypes.POINTER(ctypes.c_ubyte * 28))]\n"
                  "for _ in range(3):\n"
                  "    head = ctypes.POINTER(I)()\n"
                  "    assert libc.getifaddrs(ctypes.byref(head)) == 0\n"
                  "    seen, p = [], head\n"
                  "    while p:\n"
                  "        i = p.contents\n"
                  "        a = bytes(i.addr.contents) if i.addr else b''\n"
                  "        family = int.from_bytes(a[:2], 'little')\n"
                  "        if family == 2: seen.append((i.name.decode(), socket.inet_ntoa(a[4:8])))\n"
                  "        if family == 17 and i.name.startswith(b'weft'):\n"
                  "            index = int.from_bytes(a[4:8], 'little')\n"
                  "            assert index == socket.if_nametoindex(i.name.decode()), index\n"
                  "            seen.append((i.name.decode(), a[12:18].hex(':')))\n"
                  "        p = i.next\n"
                  "    libc.freeifaddrs(head)\n"
                  "print(sorted(s for s in seen if s[0].startswith('weft') or s[0] == 'lo'))\n")
        done = self.weft("run", "h1", "--", sys.executable, "-c", script)
        self.assertEqual(done.stdout.strip(), str([("lo", "127.0.0.1"), ("weft0", "02:57:00:00:00:01"), ("weft0", "198.18.0.2"),
                                                   ("weft1", "02:57:01:00:00:01"), ("weft1", "198.18.0.6")]))

    def test_ctrl_c_of_the_demo_leaves_nothing(self):
        child = self.start("demo")
        child.stdout.readline()
        child.send_signal(signal.SIGINT)
        self.assertEqual(child.wait(20), 1)
        self.assertEqual(os.listdir(self.base), [])


if __name__ == "__main__":
    WEFT = os.path.abspath(sys.argv[1])
    REAL = "--real" in sys.argv
    for flag in [a for a in sys.argv[2:] if a.startswith("STATIC=")]:
        STATIC = flag[7:]
    names = [a for a in sys.argv[2:] if a != "--real" and not a.startswith("STATIC=")]
    unittest.main(argv=[sys.argv[0], *names], verbosity=2)
