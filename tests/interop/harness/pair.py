# SPDX-License-Identifier: Apache-2.0
"""A server and a client of the same tool, on two hosts or on one, and what their output must say."""
import json
import re

from .process import Failure, new_port, wait_listening

CROSS = ("h0", "h1")
SAME = ("h0", "h0")


def start_pair(fabric, server_argv, client_argv, hosts=CROSS, env=None, server_env=None, client_env=None):
    """argv builders take the port; the client connects to the server's host by name."""
    port = new_port()
    server = fabric.start(hosts[0], server_argv(port), env={**(env or {}), **(server_env or {})})
    wait_listening(port, server)
    client = fabric.start(hosts[1], client_argv(port, hosts[0]), env={**(env or {}), **(client_env or {})})
    return server, client


def run_tool(fabric, argv, hosts=CROSS, timeout=60, env=None, port_flag="-p"):
    """Runs `argv -p PORT` and `argv -p PORT host`; both must end with 0 and complain about nothing."""
    server, client = start_pair(fabric, lambda port: argv + [port_flag, str(port)],
                                lambda port, host: argv + [port_flag, str(port), host], hosts, env)
    client.wait(timeout).expect_exit(0).expect_quiet()
    server.wait(timeout).expect_exit(0).expect_quiet()
    return server, client


NUMBER = r"([0-9.]+|inf|-?nan)"  # the deviation of a few equal times can be the root of less than nothing
ROW = re.compile(r"^\s*(\d+)\s+(\d+)((?:\s+" + NUMBER + r")+)\s*$")


def result_rows(text):
    """perftest's table: [(bytes, iterations, [numbers…])…]"""
    rows = []
    for line in text.splitlines():
        match = ROW.match(line)
        if match:
            rows.append((int(match.group(1)), int(match.group(2)), [float(word) for word in match.group(3).split()]))
    return rows


def expect_rows(process, sizes, iterations, columns):
    """Every size once, in order, with all its iterations and sane figures."""
    rows = result_rows(process.stdout)
    if [row[0] for row in rows] != list(sizes):
        raise Failure(f"sizes {[row[0] for row in rows]}, expected {list(sizes)}: {process.describe()}")
    for size, count, numbers in rows:
        if iterations is not None and count != iterations:
            raise Failure(f"{size} B: {count} iterations, expected {iterations}: {process.describe()}")
        if len(numbers) < columns:
            raise Failure(f"{size} B: {len(numbers)} figures, expected {columns}: {process.describe()}")
    return rows


def stream_pair(context, hosts=CROSS, server_options=(), client_options=(), options=(), fabric=None, env=None):
    """The `stream` program on both sides, both past their first message."""
    fabric = fabric or context.shared_fabric()
    tool = context.program("stream")
    common = [str(word) for word in options]
    server, client = start_pair(
        fabric, lambda port: [tool, "server", str(port), *common, *map(str, server_options)],
        lambda port, host: [tool, "client", host, str(port), *common, *map(str, client_options)], hosts, env)
    server.wait_output("ready", 20)
    client.wait_output("ready", 20)
    return server, client


def stream_report(process):
    for line in process.stdout.splitlines():
        if line.startswith("{"):
            return json.loads(line)
    raise Failure(f"no report: {process.describe()}")


def stream_pid(process):
    match = re.search(r"ready (\d+)", process.stdout)
    if not match:
        raise Failure(f"not ready: {process.describe()}")
    return int(match.group(1))


def expect_stream_ok(server, client, timeout=30, max_gap=None):
    """All messages arrived, byte for byte; no pause of the client longer than max_gap seconds."""
    client.wait(timeout).expect_exit(0)
    server.wait(timeout).expect_exit(0)
    sent, got = stream_report(client), stream_report(server)
    if got["mismatches"] or sent["messages"] != got["messages"]:
        raise Failure(f"sent {sent['messages']}, got {got['messages']} with {got['mismatches']} wrong")
    if max_gap is not None and sent["max_gap"] > max_gap:
        raise Failure(f"a pause of {sent['max_gap']:.3f} s, allowed {max_gap} s")
    return sent, got
