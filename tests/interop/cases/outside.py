# SPDX-License-Identifier: Apache-2.0
"""Ports to the outside: two fabrics joined by shared memory or a cable, and a capture that is played at the hosts."""
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import time

from harness.netns import NetworkNamespace, ip
from harness.process import Failure, Process, new_port, wait_listening, wait_until
from harness.report import Case
from harness.roce import icrc, ones_sum, read_capture

SECOND_FABRIC = "198.18.0.17"


def scenario(folder, name, text):
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path, 0o644)
    return path


def topology(port, first_address=None):
    first = f"  first_address: {first_address}\n" if first_address else ""
    return f"weft: 1\nfabric:\n  hosts: 2\n{first}  outside:\n    far: {port}\n"


class Joined:
    """Two fabrics and what joins them."""

    def __init__(self, context, port_of, user=None, options=()):
        self.one = context.make_fabric(["--shared-tcp", *options], user=user)
        self.two = context.make_fabric(["--shared-tcp", *options], user=user)
        self.files = [scenario(self.one.base, "one.yaml", topology(port_of(self.one, 0))),
                      scenario(self.two.base, "two.yaml", topology(port_of(self.one, 1), SECOND_FABRIC))]
        if user:  # the second fabric reaches the first one's folder because it is the same user's
            for path, fabric in zip(self.files, (self.one, self.two)):
                os.chown(path, os.stat(fabric.base).st_uid, -1)
        self.one.options.append(self.files[0])
        self.two.options.append(self.files[1])

    def __enter__(self):
        self.one.up()
        self.two.up()
        return self

    def __exit__(self, *_):
        self.two.down()
        self.one.down()

    def run(self, argv, timeout=60):
        """A tool's server on the first fabric, its client on the second."""
        port = new_port()
        words = [argv[0], "-p", str(port), *argv[1:]]
        server = self.one.start("h0", words)
        wait_listening(port, server)
        client = self.two.start("h1", words + ["localhost"])
        client.wait(timeout).expect_exit(0)
        server.wait(timeout).expect_exit(0)
        return client


def memif(fabric, _index):
    return "{memif: %s}" % os.path.join(fabric.base, "memif.sock")


def metric(fabric, name, **labels):
    return sum(sample["value"] for sample in fabric.show("metrics")
               if sample["name"] == name and all(sample["labels"].get(key) == value for key, value in labels.items()))


PERFTEST = (
    ["ib_write_bw", "-n", "200", "-s", "65536", "-m", "4096"],
    ["ib_write_bw", "-n", "200", "-s", "10001", "-m", "1024"],
    ["ib_read_bw", "-n", "200", "-s", "65536", "-m", "4096"],
    ["ib_send_bw", "-n", "200", "-s", "65536", "-m", "1024"],
    ["ib_send_bw", "-n", "200", "-s", "1000", "-c", "UD"],
    ["ib_write_bw", "-n", "200", "-s", "65536", "-c", "UC"],
    ["ib_atomic_bw", "-n", "200"],
    ["ib_send_lat", "-n", "200", "-s", "8"],
)


def joined_perftest(argvs, port_of=memif, user=None, options=()):
    def run(context):
        with Joined(context, port_of, user, options) as pair:
            for argv in argvs:
                pair.run([*argv, "-F", "-x", "1"])
            for fabric in (pair.one, pair.two):
                if not metric(fabric, "outside_rx_frames") or not metric(fabric, "outside_tx_frames"):
                    raise Failure(f"nothing crossed the outside port of {fabric.name}")
                if metric(fabric, "outside_drops", reason="bad_icrc"):
                    raise Failure("frames of our own had a bad ICRC")
    return run


def peer_killed(context):
    """The other fabric dies and comes back: this one lives, and the port works again."""
    with Joined(context, memif) as pair:
        pair.run(["ib_write_bw", "-n", "50", "-s", "4096", "-F", "-x", "1"])
        pair.two.kill_daemon()
        wait_until(lambda: metric(pair.one, "outside_link_up") == 0, 10, lambda: "the port does not see its peer's death")
        pair.two.up()
        wait_until(lambda: metric(pair.one, "outside_link_up") == 1, 10, lambda: "the port does not see its peer's return")
        pair.run(["ib_write_bw", "-n", "50", "-s", "4096", "-F", "-x", "1"])


def peer_killed_in_traffic(context):
    """Strict timers: nobody outside tells of a death, so the retries run out, and in the time that they take."""
    with Joined(context, memif) as pair:
        port = new_port()
        words = ["ib_write_bw", "-p", str(port), "-s", "4096", "-F", "-x", "1", "-D", "20", "-u", "12"]
        server = pair.one.start("h0", words)
        wait_listening(port, server)
        client = pair.two.start("h1", words + ["localhost"])
        wait_until(lambda: metric(pair.one, "outside_rx_frames") > 1000, 20, lambda: "no traffic")
        pair.one.kill_daemon()
        client.wait(15)
        if client.popen.returncode == 0 or "status 12" not in client.stdout + client.stderr:
            raise Failure(f"expected retries to run out: {client.describe()}")


# --- a capture played at the hosts --------------------------------------------------------------------------------------

STRANGER = bytes([0x52, 0x54, 0, 0, 0, 0x64])
HOST = bytes([2, 0x57, 0, 0, 0, 0])
STRANGER_IP, HOST_IP = socket.inet_aton("198.18.0.100"), socket.inet_aton("198.18.0.1")


def ipv4(payload, protocol, source=STRANGER_IP, fragment=0x4000):
    header = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(payload), 1, fragment, 64, protocol, 0, source, HOST_IP)
    checksum = 0xFFFF - ones_sum(header)
    return header[:10] + struct.pack(">H", checksum) + header[12:] + payload


def ether(kind, payload, destination=HOST):
    return destination + STRANGER + struct.pack(">H", kind) + payload


def arp_request():
    return ether(0x0806, struct.pack(">HHBBH", 1, 0x0800, 6, 4, 1) + STRANGER + STRANGER_IP + bytes(6) + HOST_IP + bytes(18),
                 destination=b"\xff" * 6)


def echo_request(data):
    body = struct.pack(">BBHHH", 8, 0, 0, 77, 1) + data
    checksum = 0xFFFF - ones_sum(body + bytes(len(body) % 2))
    return ether(0x0800, ipv4(body[:2] + struct.pack(">H", checksum) + body[4:], 1))


def send_only(break_icrc=False, **fields):
    """An RC SEND only for a QP that nobody has."""
    bth = struct.pack(">BBHII", 0x04, 0, 0xFFFF, 0x004011, 5)
    body = bth + b"weft" * 4
    packet = ipv4(struct.pack(">HHHH", 0xC000, 4791, 8 + len(body) + 4, 0) + body + bytes(4), 17, **fields)
    value = icrc(packet[:-4]) ^ (1 if break_icrc else 0)
    return ether(0x0800, packet[:-4] + struct.pack("<I", value))


def write_pcap(path, frames):
    with open(path, "wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for frame in frames:
            file.write(struct.pack("<IIII", 0, 0, len(frame), len(frame)) + frame)
    os.chmod(path, 0o644)


def played_capture(user=None):
    """Neighbours are answered; everything else is counted under its reason. As any user, without a privilege."""
    def run(context):
        fabric = context.make_fabric([], user=user)
        frames = [arp_request(), echo_request(b"x" * 56), send_only(break_icrc=True), send_only(), send_only(source=HOST_IP),
                  send_only(fragment=0x2000), ether(0x88CC, b"\0" * 50), ether(0x0800, ipv4(b"\0" * 30, 6)), b"\x01" * 9]
        folder = tempfile.mkdtemp(prefix="weft-pcap-", dir="/tmp")
        into, out = os.path.join(folder, "in.pcap"), os.path.join(folder, "out.pcap")
        write_pcap(into, frames)
        path = scenario(fabric.base, "play.yaml", topology("{pcap: {read: %s, write: %s}}" % (into, out)))
        if user:
            for name in (folder, into, path):
                os.chown(name, os.stat(fabric.base).st_uid, -1)
        fabric.options.append(path)
        with fabric:
            wait_until(lambda: metric(fabric, "outside_rx_frames") == len(frames), 10,
                       lambda: f"{metric(fabric, 'outside_rx_frames')} of {len(frames)} frames were played")
            wanted = {"bad_icrc": 1, "foreign_source": 1, "fragment": 1, "not_ip": 1, "not_udp": 1, "truncated": 1}
            for reason, count in wanted.items():
                if metric(fabric, "outside_drops", reason=reason) != count:
                    raise Failure(f"{metric(fabric, 'outside_drops', reason=reason)} drops with reason {reason}, expected {count}")
            if metric(fabric, "nic_drops", reason="no_such_qpn") != 1:
                raise Failure("the good frame did not reach the host's NIC")
        try:  # the file is whole when the daemon has closed it
            check_answers(out)
        finally:
            shutil.rmtree(folder)
    return run


def check_answers(path):
    answers = [frame for _, frame in read_capture(path)]
    if len(answers) != 2:
        raise Failure(f"{len(answers)} answers, expected an ARP reply and an echo reply")
    arp, echo = answers
    if arp[:14] != STRANGER + HOST + b"\x08\x06" or arp[20:22] != b"\0\x02" or arp[22:32] != HOST + HOST_IP:
        raise Failure(f"ARP reply: {arp.hex()}")
    if echo[:14] != STRANGER + HOST + b"\x08\0" or echo[34] != 0 or echo[42:] != b"x" * 56:
        raise Failure(f"echo reply: {echo.hex()}")
    if ones_sum(echo[14:34]) != 0xFFFF or ones_sum(echo[34:]) != 0xFFFF:
        raise Failure("echo reply: checksums")


# --- files and cables -----------------------------------------------------------------------------------------------------

def bad_files(context):
    """A file with a mistake, or a device that is not there: one line that says where, and no fabric."""
    fabric = context.make_fabric([])
    table = (("weft: 1\nfabric:\n  host: 2\n", ":3:3: unknown key 'host' in fabric; did you mean 'hosts'?", 2),
             ("weft: 1\nfabric: {outside: {a: {tap: t, rate: fast}}}\n", ":2:38: expected a rate such as 10G", 2),
             (topology("{pcap: /nonexistent.pcap}"), "no outside port far (pcap /nonexistent.pcap)", 1),
             (topology("{af_packet: nosuchif}"), "no outside port far (af_packet nosuchif)", 1))
    try:
        for text, expected, code in table:
            process = fabric.call("up", scenario(fabric.base, "bad.yaml", text), timeout=30)
            if process.popen.returncode != code or expected not in process.stderr:
                raise Failure(f"expected exit code {code} and '{expected}': {process.describe()}")
            if fabric.daemon_running():
                raise Failure("there is a fabric all the same")
    finally:
        fabric.down()


def veth(_fabric, index):
    return "{af_packet: weft-v%d}" % index


def over_a_cable(context):
    """Two fabrics on the ends of a veth pair, through packet sockets."""
    with NetworkNamespace():
        ip("link", "add", "weft-v0", "mtu", "9000", "type", "veth", "peer", "name", "weft-v1", "mtu", "9000")
        for name in ("weft-v0", "weft-v1"):
            ip("link", "set", name, "up")
        joined_perftest(PERFTEST[:5], veth)(context)


def has_link_local():
    """Not while Linux still asks whether somebody else has it."""
    shown = subprocess.run(["ip", "-6", "address", "show", "dev", "weft-t0"], stdout=subprocess.PIPE, text=True).stdout
    return "fe80::" in shown and "tentative" not in shown


def neighbour_of_linux(context):
    """Linux itself is on the tap: it finds the hosts by ARP and NDP, they answer its pings; quiet, it costs nothing."""
    with NetworkNamespace():
        fabric = context.make_fabric([])
        fabric.options.append(scenario(fabric.base, "tap.yaml", topology("{tap: weft-t0, attach: s0, rate: 10G}")))
        with fabric:
            ip("address", "add", "198.18.0.100/15", "dev", "weft-t0")
            wait_until(has_link_local, 10, lambda: "Linux gives the tap no link-local address")
            for target in ("198.18.0.1", "198.18.0.2", "fe80::57:ff:fe00:1%weft-t0"):
                ping = Process(["ping", "-c", "3", "-i", "0.2", "-s", "1400", "-W", "2", target])
                ping.wait(20).expect_exit(0)
            nobody = Process(["ping", "-c", "1", "-W", "1", "198.18.0.9"])
            nobody.wait(20)
            if nobody.popen.returncode == 0:
                raise Failure("an address that nobody has answered a ping")
            if metric(fabric, "neighbour_answers", what="echo") != 9:
                raise Failure(f"{metric(fabric, 'neighbour_answers', what='echo')} echo answers, expected 9")
            ports = {row["name"]: row for row in fabric.show("ports")}
            if ports["s0/2"]["peer"] != "far tap weft-t0":
                raise Failure(f"weft show ports: {ports}")
            sleeps = metric(fabric, "driver_rounds")
            time.sleep(1)  # the measurement itself
            if metric(fabric, "driver_rounds") - sleeps > 100:
                raise Failure("a quiet tap keeps the data plane awake")


def cases():
    ci = ("ci", "full", "outside")
    yield Case("outside/memif/perftest", joined_perftest(PERFTEST), ci + ("user",), 120)
    yield Case("outside/memif/drop-1%", joined_perftest([["ib_write_bw", "-n", "300", "-s", "65536", "-u", "12"],
                                                         ["ib_read_bw", "-n", "300", "-s", "65536", "-u", "12"]],
                                                        options=["--drop", "1%"]), ci, 120)
    yield Case("outside/memif/peer-killed", peer_killed, ci, 60)
    yield Case("outside/memif/peer-killed-in-traffic", peer_killed_in_traffic, ci, 60)
    yield Case("outside/pcap", played_capture(), ci + ("user",), 30)
    yield Case("outside/af_packet", over_a_cable, ci, 90)
    yield Case("outside/tap", neighbour_of_linux, ci, 60)
    yield Case("outside/bad-files", bad_files, ci, 60)
