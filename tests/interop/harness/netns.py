# SPDX-License-Identifier: Apache-2.0
"""A network namespace of a case's own: it and everything it starts see nothing of the machine's network.

    with NetworkNamespace():        Skip unless root
        ip("link", "add", "br0", "type", "bridge")
"""
import ctypes
import os
import shutil
import subprocess

from .process import Failure, Skip

CLONE_NEWNET = 0x40000000
LIBC = ctypes.CDLL(None, use_errno=True)


def ip(*words):
    done = subprocess.run(["ip", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise Failure(f"ip {' '.join(words)}: {done.stdout.strip()}")


class NetworkNamespace:
    def __enter__(self):
        if os.geteuid() != 0:
            raise Skip("only root makes network namespaces and interfaces")
        if shutil.which("ip") is None:
            raise Skip("no ip; package: iproute2")
        self.before = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        if LIBC.unshare(CLONE_NEWNET) != 0:
            os.close(self.before)
            raise Skip(f"no network namespace: {os.strerror(ctypes.get_errno())}")
        ip("link", "set", "lo", "up")
        return self

    def __exit__(self, *_):
        LIBC.setns(self.before, CLONE_NEWNET)
        os.close(self.before)
