# SPDX-License-Identifier: Apache-2.0
"""A private fabric: its own name and run folder, optionally as another user.

    with Fabric(weft, hosts=2) as fabric:
        fabric.start("h0", ["ibv_devices"]).wait(10).expect_exit(0)
"""
import json
import os
import pwd
import shutil
import signal
import tempfile
import time

from .process import Failure, Process, wait_until

UP_SECONDS = 30


class Fabric:
    counter = 0

    def __init__(self, weft, user=None, options=(), hosts=2, name=None, folder=None):
        Fabric.counter += 1
        self.weft = os.path.abspath(weft)
        self.name = name or f"t{os.getpid()}-{Fabric.counter}"
        self.options = list(options)
        self.hosts = hosts
        self.user = user
        self.own_folder = folder is None
        self.base = folder or tempfile.mkdtemp(prefix="weft-it-", dir="/tmp")
        os.chmod(self.base, 0o700)
        if user and self.own_folder:
            os.chown(self.base, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)
        self.env = self.environment()

    def environment(self):
        env = {key: value for key, value in os.environ.items()
               if not key.startswith("WEFT_") and key not in ("LD_PRELOAD", "SYSFS_PATH")}
        env["XDG_RUNTIME_DIR"] = self.base
        if self.user:
            entry = pwd.getpwnam(self.user)
            env.update(HOME="/tmp", USER=self.user, LOGNAME=self.user, SHELL=entry.pw_shell,
                       PATH="/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin")
        return env

    def as_user(self, argv):
        if not self.user:
            return list(argv)
        entry = pwd.getpwnam(self.user)
        return ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups", "--"] + list(argv)

    def weft_argv(self, *words):
        return self.as_user([self.weft, "--name", self.name] + [str(word) for word in words])

    def call(self, *words, timeout=30, env=None):
        """Runs a weft verb to its end."""
        process = Process(self.weft_argv(*words), env=dict(self.env, **(env or {})))
        process.wait(timeout)
        Process.live.remove(process)
        return process

    def start(self, host, argv, env=None, wrap=()):
        """Starts a program as a host. wrap: a command in front of weft itself, such as prlimit."""
        words = self.weft_argv("run", host, "--", *argv)
        if wrap:
            words = self.as_user(list(wrap) + [self.weft, "--name", self.name, "run", host, "--"] + list(argv))
        return Process(words, env=dict(self.env, **(env or {})))

    def up(self):
        began = time.monotonic()
        self.call("up", "--hosts", self.hosts, *self.options, timeout=UP_SECONDS).expect_exit(0)
        self.up_seconds = time.monotonic() - began
        return self

    def down(self):
        try:
            self.call("down", timeout=20)
        except Failure:
            pass
        self.kill_daemon()
        if self.own_folder:
            shutil.rmtree(self.base, ignore_errors=True)

    __enter__ = up

    def __exit__(self, *_):
        self.down()

    @property
    def run_folder(self):
        return os.path.join(self.base, "weft", self.name)

    def attach_path(self, host):
        return os.path.join(self.run_folder, "hosts", host, "attach")

    def daemon_pid(self):
        try:
            with open(os.path.join(self.run_folder, "daemon.pid"), encoding="ascii") as file:
                return int(file.read().split()[0])
        except (FileNotFoundError, IndexError, ValueError):
            return None

    def daemon_running(self):
        pid = self.daemon_pid()
        if pid is None:
            return False
        try:
            with open(f"/proc/{pid}/stat", encoding="ascii") as file:
                return file.read().rsplit(")", 1)[1].split()[0] != "Z"
        except (FileNotFoundError, ProcessLookupError):
            return False

    def kill_daemon(self):
        """kill -9, and waits until it is gone."""
        pid = self.daemon_pid()
        if pid is None or not self.daemon_running():
            return
        with open(f"/proc/{pid}/comm", encoding="ascii") as file:
            comm = file.read().strip()
        if "weft" not in comm:
            raise Failure(f"process {pid} of daemon.pid is called {comm}")
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not self.daemon_running(), 10, lambda: f"daemon {pid} survives SIGKILL")

    def show(self, what):
        process = self.call("show", what, "--json")
        process.expect_exit(0)
        try:
            return json.loads(process.stdout)
        except json.JSONDecodeError as error:
            raise Failure(f"show {what} --json is not JSON ({error}): {process.describe()}") from None

    def log_tail(self, lines=15):
        try:
            with open(os.path.join(self.run_folder, "daemon.log"), encoding="utf-8", errors="replace") as file:
                return "".join(file.readlines()[-lines:])
        except FileNotFoundError:
            return ""
