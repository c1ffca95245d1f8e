#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs meson's tests and prints a line for each, the output of those that failed, and "N passed, N failed"."""
import argparse
import json
import os
import subprocess
import sys

GOOD = {"OK", "EXPECTEDFAIL"}
BAD = {"FAIL", "TIMEOUT", "ERROR", "UNEXPECTEDPASS", "INTERRUPT"}
OUTPUT_LINES = 40


def newest(folder):
    path = os.path.join(folder, "meson-logs", "testlog.json")
    return path if os.path.exists(path) else None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default="build")
    parser.add_argument("tests", nargs="*")
    options = parser.parse_args()
    old = newest(options.build)
    if old:
        os.remove(old)
    # Two at a time: some tests measure time, and the machines that matter have two cores.
    command = ["meson", "test", "-C", options.build, "--no-rebuild", "--num-processes", "2", *options.tests]
    run = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                         check=False)
    log = newest(options.build)
    if not log:
        print(run.stdout)
        print("meson test left no log", file=sys.stderr)
        return 1
    passed = failed = 0
    with open(log, encoding="utf-8") as file:
        for line in file:
            result = json.loads(line)
            verdict = result["result"]
            passed += verdict in GOOD
            failed += verdict in BAD
            name = result["name"].split(" / ")[-1]
            print(f"{'ok' if verdict in GOOD else 'FAIL' if verdict in BAD else 'skip':4} unit/{name}  "
                  f"{result['duration']:.2f} s" + ("" if verdict == "OK" else f"  {verdict.lower()}"))
            if verdict in BAD:
                text = result.get("stdout", "") + result.get("stderr", "")
                print("\n".join("     | " + text_line for text_line in text.splitlines()[-OUTPUT_LINES:]))
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
