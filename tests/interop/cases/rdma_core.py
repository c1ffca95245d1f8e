# SPDX-License-Identifier: Apache-2.0
"""rdma-core's own test suite (pyverbs, as Debian ships it), on rxe0 of one host: no failure, no error, no skip unexplained.

rdma_core_skips.txt says which tests are skipped and why. A skip that is not listed fails the case; so does a listed test
that runs: it must come off the list.
"""
import os
import re

from harness.process import Failure
from harness.report import Case

# The suite draws attributes at random and may skip a test for what was drawn, so it runs twice, each time with a seed of
# its own: together they must run every test that is not listed.
SEEDS = (1, 2)
SEEDED = ("import random, runpy, sys, os; sys.argv.pop(0); random.seed(int(sys.argv.pop(0))); "
          "sys.path.insert(0, os.path.dirname(sys.argv[0])); runpy.run_path(sys.argv[0], run_name='__main__')")
LIST = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rdma_core_skips.txt")
TEST = re.compile(r"^\w+ \((?P<id>tests\.[\w.]+)\)", re.MULTILINE)
SKIPPED = re.compile(r"\.\.\. skipped (?P<quote>['\"])(?P<why>.*)(?P=quote)$", re.MULTILINE)
TOTAL = re.compile(r"^Ran (\d+) tests? in ", re.MULTILINE)
VERDICT = re.compile(r"^(OK|FAILED)(?: \(([^)]*)\))?$", re.MULTILINE)
BROKEN = re.compile(r"^(?:FAIL|ERROR|UNEXPECTED SUCCESS): (.*)$", re.MULTILINE)


class Outcome:
    """What `run_tests.py -v` printed: ids that ran, ids that were skipped (with the words), those that broke."""

    def __init__(self, text):
        total, verdict = TOTAL.search(text), VERDICT.search(text)
        if not total or not verdict:
            raise Failure("the suite did not come to its end:\n" + "\n".join(text.splitlines()[-15:]))
        self.broken = BROKEN.findall(text)
        self.counts = {key: int(count) for key, count in re.findall(r"(\w+)=(\d+)", verdict.group(2) or "")}
        # Before the first ====== every test has its entry: a line with its id, perhaps its first line of documentation.
        listing = re.split(r"^={20,}$|^-{20,}$", text, maxsplit=1, flags=re.MULTILINE)[0]
        starts = list(TEST.finditer(listing)) + [None]
        self.ran, self.skipped = set(), {}
        for at, following in zip(starts, starts[1:]):
            entry = listing[at.start():following.start() if following else len(listing)]
            skip = SKIPPED.search(entry)
            if skip:
                self.skipped[at.group("id")] = skip.group("why")
            else:
                self.ran.add(at.group("id"))
        if len(self.ran) + len(self.skipped) != int(total.group(1)):
            raise Failure(f"{total.group(1)} tests, but {len(self.ran)} + {len(self.skipped)} in the listing")
        if len(self.skipped) != self.counts.get("skipped", 0):
            raise Failure(f"{self.counts.get('skipped', 0)} skipped, but {len(self.skipped)} in the listing")


def read_list(path=LIST):
    """{id: reason}."""
    reasons, section = {}, None
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            if line.startswith("["):
                section = line.strip("[]")
                continue
            if section is None or not re.fullmatch(r"tests\.[\w.]+", line) or line in reasons:
                raise Failure(f"{os.path.basename(path)}:{number}: '{line}' has no reason, is no id or is there twice")
            reasons[line] = section
    return reasons


def judge(outcomes, reasons):
    """Words for everything that is wrong."""
    ran = set().union(*(outcome.ran for outcome in outcomes))
    skipped = {key: why for outcome in outcomes for key, why in outcome.skipped.items() if key not in ran}
    wrong = [f"not ok: {name}" for outcome in outcomes for name in outcome.broken]
    wrong += [f"{outcome.counts} in the summary" for outcome in outcomes
              if not outcome.broken and set(outcome.counts) - {"skipped"}]
    wrong += [f"skipped and not listed: {key} ({why})" for key, why in sorted(skipped.items()) if key not in reasons]
    wrong += [f"runs: take it off the list: {key}" for key in sorted(ran & set(reasons))]
    wrong += [f"listed but not in the suite: {key}" for key in sorted(set(reasons) - ran - set(skipped))]
    return wrong


def suite(env=None, seeds=SEEDS):
    def run(context):
        script = context.program("rdma-core/tests/run_tests.py")
        if not os.path.exists(script):
            raise Failure(f"{script} is not there: tools/setup takes it from Debian's python3-pyverbs")
        outcomes = []
        for seed in seeds:
            argv = ["/usr/bin/python3", "-c", SEEDED, str(seed), script, "--dev", "rxe0", "-v"]
            variables = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0", **(env or {})}
            process = context.shared_fabric().start("h0", argv, env=variables).wait(60)
            outcomes.append(Outcome(process.stderr))
            if outcomes[-1].broken:
                raise Failure("\n".join(process.stderr.partition("\n=====")[2].splitlines()[:60]))
            process.expect_exit(0)
        wrong = judge(outcomes, read_list())
        if wrong:
            raise Failure("\n        | ".join(wrong))
    return run


def cases():
    yield Case("rdma-core/suite", suite(), ("ci", "full", "suites", "user"), 120)
    yield Case("rdma-core/suite/inline-off", suite({"WEFT_INLINE": "0"}), ("ci", "full", "suites"), 120)
