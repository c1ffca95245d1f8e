# SPDX-License-Identifier: Apache-2.0
"""python_life.py LIBRARY: an interpreter with live queue pairs starts children in every way Python has.

LIBRARY is the C helper of programs/verbs_pair.h as a shared object. Exit code 0 when data crosses after each of them.
"""
import ctypes
import multiprocessing
import os
import subprocess
import sys
import threading

PAIR_BYTES = 4096  # more than sizeof(struct verbs_pair) and its options


class Pair:
    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        self.pair = ctypes.create_string_buffer(PAIR_BYTES)
        options = Options.defaults(self.lib)
        if self.lib.verbs_pair_open(self.pair, ctypes.byref(options)):
            sys.exit("no pair")
        self.seed = 0

    def check(self, when):
        for verb in ("send", "write", "read"):
            self.seed += 1
            call = getattr(self.lib, "verbs_pair_" + verb)
            status = call(self.pair, ctypes.c_size_t(5000 + self.seed), ctypes.c_uint32(self.seed))
            if status:
                sys.exit(f"{when}: {verb} ended with {status}")


class Options(ctypes.Structure):
    """struct verbs_pair_options."""
    _fields_ = [("buffer_bytes", ctypes.c_size_t), ("gid_index", ctypes.c_int), ("mtu", ctypes.c_int),
                ("timeout", ctypes.c_uint8), ("retry_count", ctypes.c_uint8), ("events", ctypes.c_int),
                ("extended_cq", ctypes.c_int), ("target_access", ctypes.c_int), ("wait_ms", ctypes.c_int)]

    @classmethod
    def defaults(cls, lib):
        lib.verbs_pair_defaults.restype = cls
        return lib.verbs_pair_defaults()


def in_child():
    return os.getpid()


def main():
    pair = Pair(sys.argv[1])
    pair.check("before")
    subprocess.run(["true"], check=True)
    pair.check("after subprocess.run")
    subprocess.run("true | cat", shell=True, check=True, close_fds=True)
    pair.check("after a shell")
    subprocess.run(["true"], check=True, preexec_fn=os.getpid)  # a real fork
    pair.check("after a fork with preexec_fn")
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    pair.check("after os.fork")
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pair.check("with a multiprocessing pool alive")
        pool.apply(in_child)
    pair.check("after multiprocessing")
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as cat:
        pair.check("with a child alive")
        cat.communicate(b"x")
    thread = threading.Thread(target=pair.check, args=("in a thread",))
    thread.start()
    thread.join()
    os.spawnlp(os.P_WAIT, "true", "true")
    pair.check("after os.spawn")


main()
