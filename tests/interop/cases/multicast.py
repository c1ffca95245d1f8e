# SPDX-License-Identifier: Apache-2.0
"""Multicast: who gets a datagram, who does not, and what becomes of memberships."""
import os
import signal

from harness.process import Failure, wait_until
from harness.report import Case

GROUP4, GROUP6 = ("1", "239.1.2.3"), ("0", "ff1e::77")


def start(context, fabric, host, *words, env=None):
    return fabric.start(host, [context.program("multicast"), *map(str, words)], env=env)


def ready(process):
    process.wait_output("ready", 20)
    return process


def metric(fabric, name, **labels):
    return sum(m["value"] for m in fabric.show("metrics")
               if m["name"] == name and all(m["labels"].get(k) == v for k, v in labels.items()))


def drops(fabric, reason):
    return metric(fabric, "switch_drops", reason=reason) + metric(fabric, "nic_drops", reason=reason)


def three_hosts(group, size, env=None):
    """Members on three hosts, two processes on one of them, several QPs in one; an outsider and a foreign Q_Key get nothing."""
    def run(context):
        with context.make_fabric(hosts=4) as fabric:
            count = 100
            members = [ready(start(context, fabric, host, "recv", *group, qps, count, env=env))
                       for host, qps in (("h0", 1), ("h1", 3), ("h1", 1), ("h2", 2))]
            other = ready(start(context, fabric, "h2", "recv", *group, 1, 0, "0x9999", env=env))
            start(context, fabric, "h0", "send", *group, count, size, env=env).wait(30).expect_exit(0).expect_quiet()
            for member in members + [other]:
                member.wait(30).expect_exit(0)
            # One copy per member host, whatever is behind it, and none for the host without members.
            for port, copies in (("0", count), ("1", count), ("2", count), ("3", 0)):
                out = metric(fabric, "switch_multicast_out", port=port)
                if out != copies:
                    raise Failure(f"port {port} sent {out} copies, expected {copies}")
            if metric(fabric, "switch_multicast_in") != count or metric(fabric, "packets_live") != 0:
                raise Failure("frames lost or kept")
            lost = {m["labels"]["reason"]: m["value"] for m in fabric.show("metrics") if m["name"].endswith("_drops")}
            if lost:
                raise Failure(f"drops: {lost}")
    return run


def own_copy(context):
    for group in (GROUP4, GROUP6):
        start(context, context.shared_fabric(), "h0", "both", *group, 50, 1500).wait(30).expect_exit(0).expect_quiet()


def rules(context):
    start(context, context.shared_fabric(), "h0", "rules", *GROUP4).wait(30).expect_exit(0).expect_quiet()


def detached(context):
    """After DETACH nothing comes, and a group without members is dropped at the switch."""
    with context.make_fabric() as fabric:
        deaf = ready(start(context, fabric, "h1", "deaf", *GROUP4, "239.9.9.9"))
        start(context, fabric, "h0", "send", *GROUP4, 10, 64).wait(30).expect_exit(0)
        if drops(fabric, "no_member") != 10:
            raise Failure(f"{drops(fabric, 'no_member')} frames dropped for want of members, expected 10")
        start(context, fabric, "h0", "send", GROUP4[0], "239.9.9.9", 1, 64).wait(30).expect_exit(0)
        deaf.wait(20).expect_exit(0)


def death(context):
    """A member that is killed leaves its groups; the others go on getting everything."""
    with context.make_fabric() as fabric:
        doomed = ready(start(context, fabric, "h1", "recv", *GROUP4, 2, 1000))
        other = ready(start(context, fabric, "h0", "recv", *GROUP4, 1, 20))
        pid = next(p["pid"] for h in fabric.show("hosts")["hosts"] if h["name"] == "h1" for p in h["processes"])
        os.kill(pid, signal.SIGKILL)
        doomed.wait(20)
        wait_until(lambda: metric(fabric, "process_ports") == 1, 10, lambda: "the dead one keeps its port")
        start(context, fabric, "h1", "send", *GROUP4, 20, 4096).wait(30).expect_exit(0)
        other.wait(30).expect_exit(0)
        if metric(fabric, "switch_multicast_out", port="1") != 0:
            raise Failure("the host of a dead member still gets the group's frames")


def cases():
    ci = ("ci", "full", "multicast")
    yield Case("multicast/three-hosts/ipv4", three_hosts(GROUP4, 2048), ci + ("user",))
    yield Case("multicast/three-hosts/ipv6", three_hosts(GROUP6, 4096), ci)
    yield Case("multicast/three-hosts/inline-off", three_hosts(GROUP4, 64, {"WEFT_INLINE": "0"}), ci)
    yield Case("multicast/own-copy", own_copy, ci)
    yield Case("multicast/rules", rules, ci)
    yield Case("multicast/detached", detached, ci)
    yield Case("multicast/death", death, ci)
