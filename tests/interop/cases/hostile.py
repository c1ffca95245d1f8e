# SPDX-License-Identifier: Apache-2.0
"""Garbage in every place a process can write: that client is dropped with a reason, nobody else notices.

The attach protocol here is written from the man page of protocols/attach/messages.h, as a stranger would.
"""
import contextlib
import mmap
import os
import random
import re
import socket
import struct
import time

from harness.pair import CROSS, expect_stream_ok, stream_pair
from harness.process import Failure, wait_until
from harness.report import Case
from harness.roce import ones_sum

MESSAGE = 256
MESSAGES_H = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "protocols", "attach", "messages.h")
with open(MESSAGES_H, encoding="utf-8") as header:
    VERSION = int(re.search(r"kAttachVersion = (\d+);", header.read()).group(1))
HELLO, WELCOME, REFUSED, BYE = 1, 2, 3, 10
SECONDS = 4


def attach_socket(fabric, host="h0"):
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link.settimeout(5)
    link.connect(fabric.attach_path(host))
    return link


def hello(version=VERSION, nics=1):
    head = struct.pack("<IIIIiI64sQ", HELLO, 1, version, nics, os.getpid(), 0, b"hostile", 0)
    return head.ljust(MESSAGE, b"\0")


class Port:
    """An attached port in a stranger's hands."""

    def __init__(self, fabric, host="h0"):
        self.link = attach_socket(fabric, host)
        self.link.send(hello())
        message, self.fds, _, _ = socket.recv_fds(self.link, MESSAGE, 8)
        kind = struct.unpack_from("<I", message)[0]
        if kind != WELCOME or len(self.fds) != 5:
            raise Failure(f"answer {kind} with {len(self.fds)} descriptors to a good HELLO")
        self.bytes = struct.unpack_from("<I", message, 44)[0]
        self.memory = mmap.mmap(self.fds[0], self.bytes)

    def kick(self):
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(self.fds[2], b"k")

    def close(self):
        self.memory.close()
        for fd in self.fds:
            os.close(fd)
        self.link.close()


def closed_by_daemon(link, seconds=5):
    link.settimeout(seconds)
    try:
        while True:
            message = link.recv(MESSAGE)
            if not message:
                return True
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


@contextlib.contextmanager
def undisturbed(context):
    """Traffic between two hosts that must not notice what goes on meanwhile; the daemon must live."""
    fabric = context.shared_fabric()
    server, client = stream_pair(context, CROSS, options=["--seconds", SECONDS])
    yield fabric
    expect_stream_ok(server, client, max_gap=1.0)
    if not fabric.daemon_running():
        raise Failure("the daemon died:\n" + fabric.log_tail())
    # A newcomer on the abused host is served as before.
    fabric.start("h0", [context.program("process_life"), "exchange"]).wait(20).expect_exit(0)


def attach_garbage(context):
    seed = random.SystemRandom().randrange(1 << 32)
    dice = random.Random(seed)
    with undisturbed(context) as fabric:
        for _ in range(200):
            link = attach_socket(fabric)
            size = dice.choice((1, 3, 255, 256, 257, 4096, 65536))
            message = bytearray(dice.randbytes(size))
            if size >= 4 and dice.random() < 0.5:
                message[0:4] = struct.pack("<I", dice.randrange(1, 14))  # a known type, before any HELLO
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                link.send(message)
                if not closed_by_daemon(link):
                    raise Failure(f"seed {seed}: a message of {size} random bytes is tolerated")
            link.close()


def attached_garbage(context):
    """Random messages on a channel that has said HELLO properly."""
    dice = random.Random(3)
    with undisturbed(context) as fabric:
        for _ in range(50):
            port = Port(fabric)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                for _ in range(20):
                    kind = dice.choice((HELLO, 4, 6, 7, 8, 9, 11, 12, 13, 99))
                    port.link.send(struct.pack("<I", kind) + dice.randbytes(MESSAGE - 4))
            port.close()


def wrong_version(context):
    link = attach_socket(context.shared_fabric())
    link.send(hello(version=VERSION + 41))
    message = link.recv(MESSAGE)
    kind, = struct.unpack_from("<I", message)
    text = message[16:208].split(b"\0")[0].decode()
    if kind != REFUSED or "version" not in text or "\n" in text:
        raise Failure(f"answer {kind}: {text!r}")
    link.close()


def silent_crowd(context):
    """Two hundred connections that never say HELLO, then half of them vanish without a word."""
    with undisturbed(context) as fabric:
        links = []
        with contextlib.suppress(OSError):
            for _ in range(200):
                links.append(attach_socket(fabric))
        for link in links[::2]:
            link.close()
        fabric.start("h0", [context.program("process_life"), "exchange"]).wait(20).expect_exit(0)
        for link in links[1::2]:
            link.close()


def scribbled_port(context):
    """Random words all over the shared memory, again and again, with kicks."""
    seed = random.SystemRandom().randrange(1 << 32)
    dice = random.Random(seed)
    with undisturbed(context) as fabric:
        for _ in range(5):
            port = Port(fabric)
            end = time.monotonic() + 0.3
            while time.monotonic() < end:
                at = dice.choice((0, dice.randrange(port.bytes // 4096) * 4096))
                port.memory[at:at + 4096] = dice.randbytes(4096)
                port.kick()
            port.close()


def ring_geometry():
    """Offsets of protocols/attach/port_layout.h for the default geometry."""
    control = 64 + 64 + 8 * 128 + 3 * 128 + 64 + 64 * 8
    return {"poll_seq": 0, "tx0_producer": 128, "tx_return_consumer": 128 + 8 * 128 + 64,
            "rx_consumer": 128 + 8 * 128 + 128 + 64, "rx_return_producer": 128 + 8 * 128 + 256, "tx0_ring": control}


def lying_descriptors(context):
    """Well-formed indices with descriptors that name foreign slots, huge lengths, or one slot many times."""
    at = ring_geometry()
    lies = [(7, 54, 0, 1 << 31), (1 << 30, 54, 0, 64), (3, 0, 0, 64), (3, 60000, 0, 64), (3, 256, 0, 4097),
            (5, 60, 0xFFFF, 100), (255, 13, 0, 0), (0xFFFFFFFF, 54, 0, 0)]
    with undisturbed(context) as fabric:
        for lie in lies:
            port = Port(fabric)
            for index in range(16):
                struct.pack_into("<IHHII", port.memory, at["tx0_ring"] + 16 * index, *lie, 0)
            struct.pack_into("<I", port.memory, at["tx0_producer"], 16)
            port.kick()
            if not closed_by_daemon(port.link):
                raise Failure(f"a descriptor {lie} is tolerated")
            port.close()
        for word in ("tx0_producer", "rx_consumer", "rx_return_producer", "tx_return_consumer"):
            port = Port(fabric)
            struct.pack_into("<I", port.memory, at[word], 0x80000000)
            port.kick()
            port.close()


def pipe_never_read(context):
    """Kicks and frames that nobody takes: another host sends to this seat's NIC all the while."""
    with undisturbed(context) as fabric:
        ports = [Port(fabric) for _ in range(4)]
        for _ in range(100000):
            ports[0].kick()
        time.sleep(1)
        for port in ports:
            port.close()


def sealed_memory(context):
    """The port cannot be shrunk; the pages shared by all are read-only; a hole does no harm."""
    fabric = context.shared_fabric()
    port = Port(fabric)
    with contextlib.suppress(PermissionError):
        os.ftruncate(port.fds[0], 4096)
        raise Failure("the port memory could be shrunk")
    for name, fd in (("status", port.fds[3]), ("notices", port.fds[4])):
        for attempt in (lambda fd=fd: mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE),
                        lambda fd=fd: os.pwrite(fd, b"x", 0),
                        lambda fd=fd: os.pwrite(os.open(f"/proc/self/fd/{fd}", os.O_RDWR), b"x", 0)):
            try:
                attempt()
            except OSError:
                continue
            raise Failure(f"the {name} page is writable")
    port.close()
    with undisturbed(context) as fabric:
        port = Port(fabric)
        punch_hole(port.fds[0], port.bytes)
        port.kick()
        port.close()


def punch_hole(fd, size):
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    keep_size_and_punch = 0x01 | 0x02
    if libc.fallocate(fd, keep_size_and_punch, ctypes.c_long(0), ctypes.c_long(size)):
        raise Failure(f"fallocate: {os.strerror(ctypes.get_errno())}")


def control_garbage(context):
    """The control socket: random bytes, a huge length, a cut message, silence."""
    dice = random.Random(11)
    with undisturbed(context) as fabric:
        path = os.path.join(fabric.run_folder, "control")
        for shape in range(60):
            link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            link.settimeout(5)
            link.connect(path)
            message = (dice.randbytes(4096), b"\xff\xff\xff\xff" + bytes(64), struct.pack(">I", 100) + b"x",
                       struct.pack("<I", 64) + dice.randbytes(64), b"")[shape % 5]
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                link.sendall(message)
            link.close()
        fabric.call("show", "hosts").expect_exit(0)


def foreign_identity(context):
    """A process that sends under another host's MAC and address: dropped and counted, the port lives."""
    fabric = context.shared_fabric()
    before = drops(fabric)
    port = Port(fabric, "h0")
    at = ring_geometry()
    slots = -(-(at["tx0_ring"] + 8 * 256 * 16 + 256 * 4) // 64) * 64 + 256 * 16 + 256 * 4
    slot = -(-slots // 4096) * 4096
    other = bytes((198, 18, 0, 2))  # h1
    ip = bytearray(struct.pack(">BBHHHBBH4s4s", 0x45, 0, 60, 0, 0, 64, 17, 0, other, other))
    struct.pack_into(">H", ip, 10, 0xFFFF - ones_sum(ip))
    frame = bytes((2, 0x57, 0, 0, 0, 1)) + bytes((2, 0x57, 0, 0, 0, 1)) + b"\x08\x00" + ip
    frame += struct.pack(">HHHH", 50000, 4791, 40, 0) + struct.pack(">BBHII", 4, 0, 0xFFFF, 5, 0)
    port.memory[slot + 256 - len(frame):slot + 256] = frame
    struct.pack_into("<IHHII", port.memory, at["tx0_ring"], 0, len(frame), 0, 16, 0)
    struct.pack_into("<I", port.memory, at["tx0_producer"], 1)
    port.kick()
    wait_until(lambda: drops(fabric) > before, 5, lambda: "a frame under a foreign identity was not counted as a drop")
    port.close()


def drops(fabric):
    """What the hosts' NICs dropped because its source was somebody else."""
    total = 0
    for sample in walk(fabric.show("metrics")):
        if sample.get("name") == "nic_drops" and sample.get("labels", {}).get("reason") == "foreign_source":
            total += int(sample.get("value", 0))
    return total


def walk(node):
    if isinstance(node, dict):
        if "name" in node and "value" in node:
            yield node
        for value in node.values():
            yield from walk(value)
    elif isinstance(node, list):
        for value in node:
            yield from walk(value)


def cases():
    ci = ("ci", "full", "hostile")
    for run in (attach_garbage, attached_garbage, wrong_version, silent_crowd, scribbled_port, lying_descriptors,
                pipe_never_read, sealed_memory, control_garbage, foreign_identity):
        yield Case("hostile/" + run.__name__.replace("_", "-"), run, ci, 90)
