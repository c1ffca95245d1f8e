# SPDX-License-Identifier: Apache-2.0
"""ibverbs-utils: the ping-pong programs (which check their data with -c) and the two that list devices."""
import re

from harness.pair import CROSS, SAME, run_tool
from harness.process import Failure
from harness.report import Case

TRANSPORTS = ("rc", "uc", "ud")
TRANSFERRED = re.compile(r"(\d+) bytes in [0-9.]+ seconds")


def pingpong(transport, options=(), hosts=CROSS, env=None, iterations=1000, size=None):
    tool = f"ibv_{transport}_pingpong"
    size = size or (2048 if transport == "ud" else 4096)

    def run(context):
        argv = [tool, "-g", "1", "-c", "-n", str(iterations), "-s", str(size), *options]
        for process in run_tool(context.shared_fabric(), argv, hosts, 60, env):
            match = TRANSFERRED.search(process.stdout)
            if not match or int(match.group(1)) != 2 * size * iterations:
                raise Failure(f"did not report {2 * size * iterations} bytes: {process.describe()}")
    return run


def name_of(transport, options, hosts):
    words = [option.lstrip("-") for option in options]
    return "-".join([f"pingpong/ibv_{transport}_pingpong", *words]) + ("/same-host" if hosts == SAME else "")


def devices(context):
    # It lists the device without opening it, and `weft run` says so on stderr.
    process = context.shared_fabric().start("h0", ["ibv_devices"]).wait(20).expect_exit(0)
    rows = [line.split() for line in process.stdout.splitlines()[2:] if line.strip()]
    if len(rows) != 1 or rows[0][0] != "rxe0" or not re.fullmatch(r"[0-9a-f]{16}", rows[0][1]):
        raise Failure(f"expected rxe0 and a GUID: {process.describe()}")


def device_guid(fabric, host):
    process = fabric.start(host, ["ibv_devices"]).wait(20).expect_exit(0)
    return process.stdout.split()[-1]


def devinfo(context):
    fabric = context.shared_fabric()
    guid = device_guid(fabric, "h1")
    process = fabric.start("h1", ["ibv_devinfo", "-v"]).wait(20).expect_exit(0).expect_quiet()
    text = process.stdout
    wanted = (r"hca_id:\s+rxe0", r"transport:\s+InfiniBand \(0\)", r"state:\s+PORT_ACTIVE \(4\)", r"max_mtu:\s+4096 \(5\)",
              r"link_layer:\s+Ethernet", r"phys_state:\s+LINK_UP \(5\)", r"GID\[\s*0\]:\s+fe80::?[0-9a-f:]+",
              r"GID\[\s*1\]:\s+::ffff:198\.18\.0\.2, RoCE v2", r"active_width:\s+\S+", r"active_speed:\s+\S+ Gbps")
    for pattern in wanted:
        if not re.search(pattern, text):
            raise Failure(f"no line like '{pattern}':\n{text}")
    shown = re.search(r"node_guid:\s+([0-9a-f:]+)", text).group(1).replace(":", "")
    if shown != guid:
        raise Failure(f"node_guid {shown}, ibv_devices says {guid}")
    if device_guid(fabric, "h0") == guid:
        raise Failure("two hosts with one GUID")


def cases():
    yield Case("devices/ibv_devices", devices, ("ci", "full", "user"))
    yield Case("devices/ibv_devinfo", devinfo, ("ci", "full", "user"))
    for transport in TRANSPORTS:
        for hosts in (CROSS, SAME):
            for options in ((), ("-e",)):
                yield Case(name_of(transport, options, hosts), pingpong(transport, options, hosts),
                           ("ci", "full", "diagonal") + (("user",) if hosts == CROSS else ()))
    for options in (("-m", "4096"), ("-m", "256"), ("-N",), ("-N", "-e")):
        yield Case(name_of("rc", options, CROSS), pingpong("rc", options, iterations=200, size=50000), ("ci", "full"))
    for transport in TRANSPORTS:
        for options in ((), ("-e",)):
            yield Case(name_of(transport, options, CROSS) + "/inline-off",
                       pingpong(transport, options, env={"WEFT_INLINE": "0"}, iterations=100), ("ci", "full"))
