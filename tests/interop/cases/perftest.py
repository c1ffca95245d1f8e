# SPDX-License-Identifier: Apache-2.0
"""perftest's bandwidth and latency tools: tool x transport x MTU x QPs x events x sizes x placement.

perftest calibrates its clock for a fifth of a second before every size, so a sweep over all sizes costs five seconds and a
single size a third of one. Hence

ci:       every cell of the matrix at MTU 1024 and 4096 with three sizes (1 B and two of MTU-1, MTU+1, 64 KiB, 8 MiB, in
          turn), and every tool on every transport with all sizes (-a) once; -n 20
full:     every cell at all MTUs with each of these sizes and with -a
diagonal: each tool once with its default iterations, the other options moving along

perftest_options.py has the options that are not axes of this matrix.
"""
from harness.pair import CROSS, SAME, expect_rows, run_tool
from harness.report import Case

ALL_SIZES = [1 << power for power in range(1, 24)]  # what -a runs: 2 B to 8 MiB
CI_MTUS = (1024, 4096)
ALL_MTUS = (256, 512, 1024, 2048, 4096)
CI_ITERATIONS = 20
DEFAULT_ITERATIONS = 1000
DEFAULT_WRITE_BW_ITERATIONS = 5000
BW_COLUMNS, LAT_COLUMNS = 3, 7

RC_TOOLS = ("ib_send_bw", "ib_send_lat", "ib_write_bw", "ib_write_lat", "ib_read_bw", "ib_read_lat")
# (tool, transport): what perftest offers beyond RC and the issue asks for.
OTHER_TOOLS = (("ib_send_bw", "UC"), ("ib_send_lat", "UC"), ("ib_send_bw", "UD"), ("ib_send_lat", "UD"),
               ("ib_write_bw", "UC"), ("ib_write_lat", "UC"))
ALL_TOOLS = tuple((tool, "RC") for tool in RC_TOOLS) + OTHER_TOOLS

SLOWEST_FRAMES_A_SECOND = 80000


class Run:
    """One invocation of a tool and what its table must show."""

    def __init__(self, tool, transport="RC", mtu=1024, qps=1, events=False, size="all", hosts=CROSS,
                 iterations=CI_ITERATIONS, extra=(), env=None, timeout=None):
        self.tool, self.transport, self.mtu, self.qps, self.events = tool, transport, mtu, qps, events
        self.size, self.hosts, self.iterations = size, hosts, iterations
        self.extra, self.env = list(extra), env
        self.timeout = timeout or self.patience()

    @property
    def kind(self):
        return self.tool.rsplit("_", 1)[1]

    def patience(self):
        """A minute, or as long as the frames take on a loaded machine: 16 QPs at MTU 256 are 21 million."""
        frames = sum(self.sizes()) / self.mtu * (self.iterations or DEFAULT_WRITE_BW_ITERATIONS) * self.qps
        return max(60, frames / SLOWEST_FRAMES_A_SECOND)

    def argv(self):
        argv = [self.tool, "-F", "-c", self.transport, "-m", str(self.mtu)]
        if "atomic" not in self.tool:  # those are always 8 bytes
            argv += ["-a"] if self.size == "all" else ["-s", str(self.size)]
        if self.iterations is not None:
            argv += ["-n", str(self.iterations)]
        if self.kind == "bw":
            argv += ["-q", str(self.qps)]
        return argv + (["-e"] if self.events else []) + self.extra

    def sizes(self):
        if self.size != "all":
            return [self.size]
        return [size for size in ALL_SIZES if self.transport != "UD" or size <= self.mtu]

    def name(self):
        words = [self.tool, self.transport.lower(), f"m{self.mtu}"]
        words += [f"q{self.qps}"] if self.kind == "bw" else []
        words += ["e"] if self.events else []
        words += ["all" if self.size == "all" else f"{self.size}B"]
        words += [] if self.iterations == CI_ITERATIONS else ["default-n"]
        words += [word.lstrip("-") for word in self.extra]
        return "perftest/" + "-".join(words) + ("/same-host" if self.hosts == SAME else "")

    def __call__(self, context):
        _, client = run_tool(context.shared_fabric(), self.argv(), self.hosts, self.timeout, self.env)
        default = DEFAULT_WRITE_BW_ITERATIONS if self.tool == "ib_write_bw" else DEFAULT_ITERATIONS
        count = self.iterations or default
        if self.kind == "bw":
            expect_rows(client, self.sizes(), count * self.qps, BW_COLUMNS)
        else:
            expect_rows(client, self.sizes(), count, LAT_COLUMNS)

    def case(self, *tags):
        # Several gigabytes with 16 QPs get the machine for themselves; the others mostly start, calibrate and wait.
        lane = ["lane"] if self.iterations == CI_ITERATIONS and self.qps == 1 else []
        return Case(self.name(), self, [*tags, *lane], 2 * self.timeout + 10)


def cells(mtus, hosts):
    """(tool, transport, mtu, qps, events): everything perftest offers in these axes."""
    for tool, transport in ALL_TOOLS:
        for mtu in mtus:
            for qps in (1, 16) if tool.endswith("bw") and transport == "RC" else (1,):
                for events in (False, True) if "send" in tool else (False,):
                    yield tool, transport, mtu, qps, events, hosts


def edge_sizes(transport, mtu, qps=1):
    # Sixteen queue pairs with 8 MiB each move gigabytes: those are left to -a.
    return [mtu - 1, mtu] if transport == "UD" else [mtu - 1, mtu + 1, 65536, 8 << 20 if qps == 1 else 1 << 20]


def matrix():
    """(run, tags): all of it is full; what CI takes is marked."""
    swept, turns = set(), {}
    for hosts in (CROSS, SAME):
        for tool, transport, mtu, qps, events, _ in cells(ALL_MTUS, hosts):
            in_ci, edges = mtu in CI_MTUS, edge_sizes(transport, mtu, qps)
            turn = turns.setdefault((tool, transport, mtu, qps), 0)
            turns[tool, transport, mtu, qps] += 2
            picked = {1, edges[turn % len(edges)], edges[(turn + 1) % len(edges)]} if in_ci else set()
            for size in [1, *edges]:
                yield Run(tool, transport, mtu, qps, events, size, hosts), ["ci"] if size in picked else []
            # The first cell that comes by, but not always the same kind: the MTU changes from tool to tool.
            kind = (tool, transport, qps)
            sweep = in_ci and kind not in swept and mtu == CI_MTUS[len(swept) % 2]
            swept |= {kind} if sweep else set()
            yield Run(tool, transport, mtu, qps, events, "all", hosts), ["ci"] if sweep else []


def diagonal():
    """Default iterations; the sizes are kept where the whole takes minutes, not hours."""
    runs = [
        Run("ib_send_bw", mtu=4096), Run("ib_send_bw", mtu=256, qps=16, size=4096, events=True),
        Run("ib_send_lat", mtu=1024, hosts=SAME), Run("ib_send_lat", mtu=2048, events=True, size=2),
        Run("ib_write_bw", mtu=4096, hosts=SAME), Run("ib_write_bw", mtu=1024, qps=16, size=65536),
        Run("ib_write_lat", mtu=4096), Run("ib_write_lat", mtu=512, size=2, hosts=SAME),
        Run("ib_read_bw", mtu=4096), Run("ib_read_bw", mtu=2048, qps=16, size=65536, hosts=SAME),
        Run("ib_read_lat", mtu=1024), Run("ib_read_lat", mtu=256, size=65536, hosts=SAME),
        Run("ib_send_bw", "UC", mtu=4096, size=65536), Run("ib_send_lat", "UC", mtu=1024, size=4096),
        Run("ib_send_bw", "UD", mtu=2048), Run("ib_send_lat", "UD", mtu=4096),
        Run("ib_write_bw", "UC", mtu=512, size=4096),
    ]
    for run in runs:
        run.iterations, run.timeout = None, 300
        yield run


def inline_off():
    """Nobody drives the NIC but its thread: the suite's own check that inline progress is only an accelerator."""
    for turn, (tool, transport) in enumerate(ALL_TOOLS):
        for size in (1, edge_sizes(transport, 4096)[turn % 2], 2000 if transport == "UD" else 1 << 20):
            yield Run(tool, transport, mtu=4096, size=size)
    yield Run("ib_send_bw", mtu=1024, events=True)
    yield Run("ib_read_bw", mtu=1024, qps=16, size=65536)


def cases():
    for run, tags in matrix():
        yield run.case("perftest", "full", *tags)
    for run in diagonal():
        yield run.case("perftest", "diagonal")
    for run in inline_off():
        run.env = {"WEFT_INLINE": "0"}
        case = run.case("perftest", "full", "ci")
        case.name += "/inline-off"
        yield case
    for run in (Run("ib_send_bw", size=65536), Run("ib_write_bw", mtu=4096, qps=16, size=65536), Run("ib_read_lat", size=1),
                Run("ib_write_lat"), Run("ib_send_lat", "UD", size=1024)):
        yield Case(run.name(), run, ("user",), 130)
