# SPDX-License-Identifier: Apache-2.0
"""Datagrams: GRH area, Q_Keys, address handles and their life."""
from harness.report import Case


def life(gid_index, env=None):
    def run(context):
        fabric = context.shared_fabric()
        fabric.start("h0", [context.program("ud_life"), str(gid_index)], env=env).wait(30).expect_exit(0).expect_quiet()
    return run


def cases():
    for gid_index in (0, 1):
        yield Case(f"ud/life/gid-{gid_index}", life(gid_index), ("ci", "full", "ud"))
    yield Case("ud/life/inline-off", life(1, {"WEFT_INLINE": "0"}), ("ci", "full", "ud"))
