# SPDX-License-Identifier: Apache-2.0
"""Why: every completion with an error has its cause in `weft show qps` and, with WEFT_EXPLAIN=1, on standard error."""
import re

from harness.process import Failure, wait_until
from harness.report import Case

EXPLAIN = {"WEFT_EXPLAIN": "1"}


def qps(fabric, **wanted):
    return [qp for qp in fabric.show("qps") if all(qp[key] == value for key, value in wanted.items())]


def access(mode, status, patterns, responder=True):
    """memory_access MODE ends with `status`; both views say why."""
    def run(context):
        with context.make_fabric() as fabric:
            process = fabric.start("h0", [context.program("explain"), mode], env=EXPLAIN).wait(30).expect_exit(0)
            lines = [line for line in process.stderr.splitlines() if line.startswith("weft: QP ")]
            for pattern in patterns:
                if not any(re.search(pattern, line) for line in lines):
                    raise Failure(f"no line like '{pattern}': {process.describe()}")
            # The program is gone; what its QPs suffered is not.
            failed = [qp for qp in qps(fabric, gone=True) if qp["last_error"] == status]
            if len(failed) != 1 or not failed[0]["because"] or failed[0]["errors"] != 1:
                raise Failure(f"no {status} among {qps(fabric)}")
            if failed[0]["because"] not in process.stderr:
                raise Failure(f"show qps says '{failed[0]['because']}', the program's standard error something else")
            if responder and not [qp for qp in qps(fabric, gone=True) if qp["last_error"] == "QP_ACCESS_ERR"]:
                raise Failure(f"the responder's side has no cause: {qps(fabric)}")
            text = fabric.call("show", "qps").expect_exit(0).stdout
            if failed[0]["because"] not in text or "gone" not in text:
                raise Failure(f"not in the table: {text}")
    return run


def quiet(context):
    """Without WEFT_EXPLAIN nothing is written; flushes are never explained."""
    fabric = context.shared_fabric()
    fabric.start("h0", [context.program("explain"), "rkey"]).wait(30).expect_exit(0).expect_quiet()


def states(context):
    """MTU and state of live QPs, also when one goes to ERR by itself."""
    with context.make_fabric() as fabric:
        process = fabric.start("h0", [context.program("explain"), "hold"])
        process.wait_output("ready", 20)
        rows = qps(fabric)
        if sorted((qp["state"], qp["mtu"]) for qp in rows) != [("RTS", 1024), ("RTS", 1024)]:
            raise Failure(f"before: {rows}")
        process.wait_output("failed", 20)
        wait_until(lambda: sorted(qp["state"] for qp in qps(fabric)) == ["ERR", "ERR"], 5, lambda: f"after: {qps(fabric)}")
        process.stop()


def cases():
    ci = ("ci", "full", "explain")
    yield Case("explain/rkey", access("rkey", "REM_ACCESS_ERR", [
        r"QP \d+ \(RC to 198\.18\.0\.1 QP \d+\), WRITE wr_id \d+: REM_ACCESS_ERR: the peer refused rkey 0x[0-9a-f]+ va 0x[0-9a-f]+ len 4096",
        r"refused the peer's WRITE of rkey 0x[0-9a-f]+ va 0x[0-9a-f]+ len 4096: no such key"]), ci + ("user",))
    yield Case("explain/bounds", access("bounds", "REM_ACCESS_ERR", [r"refused the peer's READ of rkey .* outside the MR"]), ci)
    yield Case("explain/lkey", access("lkey", "LOC_PROT_ERR", [r"LOC_PROT_ERR: lkey 0x[0-9a-f]+ va .* no such key"], False), ci)
    yield Case("explain/nobody", access("nobody", "RETRY_EXC_ERR", [
        r"RETRY_EXC_ERR: no answer to PSN \d+ after 2 transmissions, 2 timeouts of [0-9.]+ ms; the fabric says: nobody there owns"], False), ci)
    yield Case("explain/quiet", quiet, ci)
    yield Case("explain/states", states, ci)
