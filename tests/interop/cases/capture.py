# SPDX-License-Identifier: Apache-2.0
"""`weft capture`: what crossed, opened by tshark and checked again by harness/roce.py."""
import collections
import os
import shutil
import signal
import subprocess

from harness import roce
from harness.pair import CROSS, run_tool
from harness.process import Failure, Process, Skip, wait_until
from harness.report import Case

ITERATIONS = 20
MTU = 1024
BYTES = 10000
FRAMES_PER_MESSAGE = -(-BYTES // MTU)


def capture(context, runs, name):
    """Captures h1's link while the runs go on; returns the file's path."""
    fabric = context.shared_fabric()
    path = os.path.join(fabric.base, name + ".pcapng")
    tool = fabric_capture(fabric, path)
    for argv in runs:
        run_tool(fabric, argv, CROSS)
    fabric_stop_capture(tool)
    if not os.path.exists(path):
        raise Failure(f"no file: {tool.describe()}")
    return path


def fabric_capture(fabric, path):
    tool = Process(fabric.weft_argv("capture", "h1", "-w", path), env=fabric.env)
    # The file begins with its section and interfaces as soon as the tap is in place.
    wait_until(lambda: (os.path.exists(path) and os.path.getsize(path) > 0) or not tool.running(), 10,
               lambda: f"capture does not begin: {tool.describe()}")
    return tool


def fabric_stop_capture(tool):
    pid = tool.program_pid("weft")
    os.kill(pid, signal.SIGINT)
    tool.wait(10)
    if tool.popen.returncode not in (0, 130):
        raise Failure(f"Ctrl-C did not end the capture cleanly: {tool.describe()}")


def perftest(tool):
    return [tool, "-F", "-m", str(MTU), "-s", str(BYTES), "-n", str(ITERATIONS)]


def checked_frames(path):
    frames = []
    for number, (interface, data) in enumerate(roce.read_capture(path), 1):
        try:
            frame = roce.RoceFrame(data)
        except roce.Malformed as error:
            raise Failure(f"frame {number} on {interface}: {error}") from None
        if not frame.icrc_good:
            raise Failure(f"frame {number}, {frame.name}: ICRC {frame.icrc:#010x}, computed {frame.expected_icrc:#010x}")
        frames.append((interface, frame))
    return frames


def expect_opcodes(frames, wanted):
    counts = collections.Counter(frame.name for _, frame in frames)
    for name, count in wanted.items():
        if counts[name] != count:
            raise Failure(f"{counts[name]} frames of {name}, expected {count}; all: {dict(counts)}")


def conversation(context):
    """SEND, WRITE and READ over RC: every frame there, in its place, with a good ICRC."""
    path = capture(context, [perftest(tool) for tool in ("ib_send_bw", "ib_write_bw", "ib_read_bw")], "rc")
    frames = checked_frames(path)
    middle = FRAMES_PER_MESSAGE - 2
    wanted = {"RC SEND first": 1, "RC SEND middle": middle, "RC SEND last": 1, "RC WRITE first": 1,
              "RC WRITE middle": middle, "RC WRITE last": 1, "RC READ request": 1, "RC READ response first": 1,
              "RC READ response middle": middle, "RC READ response last": 1}
    # Each frame crosses h1's link once: h1 is the client, so what it asks leaves and what it gets arrives.
    expect_opcodes(frames, {name: count * ITERATIONS for name, count in wanted.items()})
    if not any(frame.name == "RC ACK" for _, frame in frames):
        raise Failure("no ACK on the link")
    ttls = {frame.ttl for _, frame in frames}
    if ttls != {64}:
        raise Failure(f"TTLs {ttls}")


def tshark_agrees(context):
    """tshark dissects every frame as RoCE v2 and finds nothing malformed."""
    if not shutil.which("tshark"):
        raise Skip("no tshark")
    runs = [perftest(tool) for tool in ("ib_send_bw", "ib_read_bw", "ib_write_lat")]
    runs += [["ib_send_bw", "-F", "-c", "UD", "-s", "1000", "-n", "20"], ["ib_write_bw", "-F", "-c", "UC", "-n", "20"]]
    path = capture(context, runs, "tshark")
    fields = ["-e", "frame.protocols", "-e", "_ws.malformed", "-e", "infiniband.bth.opcode", "-e", "udp.dstport"]
    result = subprocess.run(["tshark", "-r", path, "-T", "fields", *fields], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    if result.returncode:
        raise Failure(f"tshark: {result.stderr.strip()}")
    lines = result.stdout.splitlines()
    frames = checked_frames(path)
    if len(lines) != len(frames) or not lines:
        raise Failure(f"tshark sees {len(lines)} frames, the file has {len(frames)}")
    for number, (line, (_, frame)) in enumerate(zip(lines, frames), 1):
        protocols, malformed, opcode, port = line.split("\t")
        if malformed or not protocols.startswith("eth:ethertype:ip:udp:infiniband") or port != "4791":
            raise Failure(f"frame {number}: {line}")
        if int(opcode, 0) != frame.opcode:
            raise Failure(f"frame {number}: tshark has opcode {opcode}, we {frame.opcode}")


def to_stdout(context):
    """`-w -` writes the file to a pipe, and --for ends it."""
    fabric = context.shared_fabric()
    process = Process(fabric.weft_argv("capture", "h0", "-w", "-", "--for", "1s"), env=fabric.env)
    process.wait(10).expect_exit(0)
    data = os.pread(process.out_file.fileno(), 1 << 20, 0)
    path = os.path.join(fabric.base, "stdout.pcapng")
    with open(path, "wb") as file:
        file.write(data)
    roce.read_capture(path)


def cases():
    ci = ("ci", "full", "capture")
    yield Case("capture/rc-conversation", conversation, ci, 90)
    yield Case("capture/tshark", tshark_agrees, ci, 150)
    yield Case("capture/stdout", to_stdout, ci)
