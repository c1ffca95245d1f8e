# SPDX-License-Identifier: Apache-2.0
"""The judge judged: harness/roce.py against the kernel's own captures, and against frames damaged on purpose.

Run by the unit tests (test `interop_selftest`); needs no fabric.
"""
import glob
import os
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

from harness import pair, process, roce  # noqa: E402
from cases import perftest, perftest_options, rdma_core  # noqa: E402

CAPTURES = sorted(glob.glob(os.path.join(HERE, "..", "data", "pcap", "*.pcap")))


def roce_frames():
    for path in CAPTURES:
        for _, frame in roce.read_capture(path):
            try:
                yield path, roce.RoceFrame(frame)
            except roce.Malformed:
                pass  # ARP and the like


class GoldenCaptures(unittest.TestCase):
    def test_every_icrc_checks(self):
        frames = list(roce_frames())
        self.assertGreater(len(frames), 500)
        for path, frame in frames:
            self.assertTrue(frame.icrc_good, f"{path}: {frame.name}")

    def test_a_flipped_bit_is_seen(self):
        _, good = next(roce_frames())
        for at in range(14 + 28, len(good.frame)):
            bad = bytearray(good.frame)
            bad[at] ^= 0x10
            try:
                frame = roce.RoceFrame(bytes(bad))
            except roce.Malformed:
                continue
            # BTH's resv8a is the one masked byte behind the IP header.
            self.assertEqual(frame.icrc_good, at == 14 + 28 + 4, f"byte {at}")

    def test_switches_may_change_ttl_and_tos(self):
        _, good = next(roce_frames())
        ip = bytearray(good.frame[14:-4])
        ip[1], ip[8], ip[10] = 0xB8, 3, 77
        self.assertEqual(roce.icrc(bytes(ip)), good.icrc)

    def test_a_cut_file_is_malformed(self):
        with self.assertRaises(roce.Malformed):
            roce._read_pcapng(b"\x0a\x0d\x0d\x0a\x20\x00\x00\x00" + b"\x00" * 12)


class Tables(unittest.TestCase):
    TEXT = " 2          20               0.94               0.85   \t\t   0.447164\n" \
           " 65536      20               inf             9.30\t\t   0.000149\n"

    def test_rows(self):
        rows = pair.result_rows(self.TEXT)
        self.assertEqual([(row[0], row[1]) for row in rows], [(2, 20), (65536, 20)])
        self.assertEqual(rows[0][2], [0.94, 0.85, 0.447164])

    def test_matrix_covers_what_it_claims(self):
        everything = [case for module in (perftest, perftest_options) for case in module.cases() if "user" not in case.tags]
        names = {case.name for case in everything}
        self.assertEqual(len(names), len(everything), "two cases of one name")
        ci = {case.name for case in everything if "ci" in case.tags}
        for wanted in ("perftest/ib_send_bw-rc-m1024-q16-e-1B", "perftest/ib_read_lat-rc-m4096-1B/same-host",
                       "perftest/ib_atomic_lat-rc-m1024-8B-A-CMP_AND_SWAP", "perftest/ib_send_lat-ud-m1024-e-1B"):
            self.assertIn(wanted, ci)
        for wanted in ("perftest/ib_write_bw-rc-m256-q16-all", "perftest/ib_send_bw-rc-m1024-q16-e-all",
                       "perftest/ib_read_lat-rc-m4096-all/same-host", "perftest/ib_write_bw-uc-m4096-q1-all",
                       "perftest/ib_send_lat-ud-m1024-e-all"):
            self.assertIn(wanted, names)

    def test_ci_sweeps_every_tool_on_every_transport(self):
        swept = [run for run, tags in perftest.matrix() if "ci" in tags and run.size == "all"]
        self.assertEqual({(run.tool, run.transport) for run in swept}, set(perftest.ALL_TOOLS))
        self.assertEqual({run.mtu for run in swept}, set(perftest.CI_MTUS))

    def test_ci_has_every_cell_and_every_edge_size(self):
        in_ci = [run for run, tags in perftest.matrix() if "ci" in tags]
        cell = {(run.tool, run.transport, run.mtu, run.qps, run.events, run.hosts) for run in in_ci}
        self.assertEqual(cell, {key for hosts in (pair.CROSS, pair.SAME) for key in perftest.cells(perftest.CI_MTUS, hosts)})
        for tool, transport in perftest.ALL_TOOLS:
            for mtu in perftest.CI_MTUS:
                sizes = {run.size for run in in_ci if (run.tool, run.transport, run.mtu) == (tool, transport, mtu)}
                self.assertLessEqual({1, *perftest.edge_sizes(transport, mtu)}, sizes, f"{tool} {transport} {mtu}")


class RdmaCore(unittest.TestCase):
    """The judge of rdma-core's suite must see a failure, an unlisted skip and a listed test that runs."""

    GOOD = ("test_a (tests.test_x.X.test_a)\nWhat it does ... ok\n"
            "test_b (tests.test_x.X.test_b) ... some noise\nok\n"
            "test_c (tests.test_x.X.test_c)\nWhat it does ... skipped 'No such thing'\n"
            "\n----------------------------------------------------------------------\n"
            "Ran 3 tests in 0.100s\n\nOK (skipped=1)\n")

    def judged(self, text, reasons):
        return rdma_core.judge([rdma_core.Outcome(text)], reasons)

    def test_verdicts(self):
        c, b = "tests.test_x.X.test_c", "tests.test_x.X.test_b"
        self.assertEqual(self.judged(self.GOOD, {c: "r"}), [])
        self.assertEqual(len(self.judged(self.GOOD, {})), 1)
        self.assertEqual(len(self.judged(self.GOOD, {c: "r", b: "r"})), 1)
        self.assertEqual(len(self.judged(self.GOOD, {c: "r", "tests.test_x.X.gone": "r"})), 1)

    def test_failures(self):
        bad = self.GOOD.replace("noise\nok", "noise\nERROR").replace("OK (skipped=1)", "FAILED (errors=1, skipped=1)")
        bad = bad.replace("\n-----", "\n======================================================================\n"
                          "ERROR: test_b (tests.test_x.X.test_b)\n-----", 1)
        self.assertEqual(len(self.judged(bad, {"tests.test_x.X.test_c": "r"})), 1)
        unexpected = self.GOOD.replace("OK (skipped=1)", "FAILED (skipped=1, unexpected successes=1)")
        self.assertNotEqual(self.judged(unexpected, {"tests.test_x.X.test_c": "r"}), [])

    def test_a_run_cut_short_is_a_failure(self):
        for text in ("", self.GOOD[:200], self.GOOD.replace("Ran 3", "Ran 4"), self.GOOD.replace("skipped=1", "skipped=2")):
            with self.assertRaises(process.Failure):
                rdma_core.Outcome(text)

    def test_the_list_is_well_formed(self):
        self.assertGreater(len(rdma_core.read_list()), 100)


if __name__ == "__main__":
    unittest.main()
