# SPDX-License-Identifier: Apache-2.0
"""The GID table: what is empty, and that a table which begins with holes works."""
from harness.pair import run_tool
from harness.process import Failure
from harness.report import Case

HOLES = 3


def table_of(fabric, context, host):
    process = fabric.start(host, [context.program("gid_table")]).wait(20).expect_exit(0).expect_quiet()
    *rows, length = process.stdout.split("\n")[:-1]
    return {int(row.split()[0]): row.split()[1] for row in rows}, int(length.split()[1])


def expect(table, length, first, address):
    if sorted(table) != [first, first + 1]:
        raise Failure(f"entries in use: {sorted(table)}, expected {first} and {first + 1}")
    if length <= first + 2:
        raise Failure(f"a table of {length} entries has no empty one behind the used")
    if table[first + 1] != "00000000000000000000ffff" + address:
        raise Failure(f"entry {first + 1} is {table[first + 1]}")


def dense(context):
    expect(*table_of(context.shared_fabric(), context, "h1"), 0, "c6120002")


def sparse(context):
    with context.make_fabric(["--gid-holes", str(HOLES)]) as fabric:
        expect(*table_of(fabric, context, "h0"), HOLES, "c6120001")
        expect(*table_of(fabric, context, "h1"), HOLES, "c6120002")
        for index in (HOLES, HOLES + 1):
            for transport in ("rc", "ud"):
                run_tool(fabric, [f"ibv_{transport}_pingpong", "-g", str(index), "-c", "-n", "20", "-s", "1024"], timeout=30)
        # perftest looks for a good GID itself when none is named.
        run_tool(fabric, ["ib_write_bw", "-n", "20", "-s", "4096", "-F"], timeout=30)


def cases():
    yield Case("gids/dense", dense, ("ci", "full", "gids"))
    yield Case("gids/sparse", sparse, ("ci", "full", "gids"))
