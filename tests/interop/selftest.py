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

from harness import pair, roce  # noqa: E402
from cases import perftest  # noqa: E402

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
        names = [case.name for case in perftest.cases() if "user" not in case.tags]
        self.assertEqual(len(names), len(set(names)), "two cases of one name")
        ci = [case for case in perftest.cases() if "ci" in case.tags]
        for wanted in ("perftest/ib_send_bw-rc-m1024-q16-e-all", "perftest/ib_read_lat-rc-m4096-1B/same-host",
                       "perftest/ib_write_bw-uc-m4096-q1-all", "perftest/ib_send_lat-ud-m1024-e-all"):
            self.assertIn(wanted, [case.name for case in ci])
        self.assertIn("perftest/ib_write_bw-rc-m256-q16-all", names)


if __name__ == "__main__":
    unittest.main()
