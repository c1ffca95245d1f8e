# SPDX-License-Identifier: Apache-2.0
"""An independent reader of captures and judge of RoCE v2 frames: pcap, pcapng, Ethernet to ICRC.

Written from the formats' specifications (pcapng: draft-ietf-opsawg-pcapng; RoCE v2: IBTA Annex A17; ICRC: IBTA Vol 1,
7.8.1 and Annex A17.3.3), sharing nothing with the code under test.
"""
import struct
import zlib

ROCE_PORT = 4791
OPCODES = {
    0x00: "RC SEND first", 0x01: "RC SEND middle", 0x02: "RC SEND last", 0x03: "RC SEND last imm", 0x04: "RC SEND only",
    0x05: "RC SEND only imm", 0x06: "RC WRITE first", 0x07: "RC WRITE middle", 0x08: "RC WRITE last",
    0x09: "RC WRITE last imm", 0x0a: "RC WRITE only", 0x0b: "RC WRITE only imm", 0x0c: "RC READ request",
    0x0d: "RC READ response first", 0x0e: "RC READ response middle", 0x0f: "RC READ response last",
    0x10: "RC READ response only", 0x11: "RC ACK", 0x12: "RC ATOMIC ACK", 0x13: "RC CMP SWAP", 0x14: "RC FETCH ADD",
    0x24: "UC SEND only", 0x64: "UD SEND only", 0x65: "UD SEND only imm", 0x81: "CNP",
}


class Malformed(Exception):
    pass


def read_capture(path):
    """[(interface name or number, frame bytes)…] of a pcap or pcapng file; Malformed when it is neither or is cut."""
    with open(path, "rb") as file:
        data = file.read()
    if len(data) < 24:
        raise Malformed(f"{len(data)} bytes are no capture")
    magic = struct.unpack_from("<I", data)[0]
    if magic == 0x0A0D0D0A:
        return _read_pcapng(data)
    if magic in (0xA1B2C3D4, 0xA1B23C4D):
        return _read_pcap(data)
    raise Malformed(f"magic {magic:#x}")


def _read_pcap(data):
    frames, at = [], 24
    while at < len(data):
        _, _, captured, original = struct.unpack_from("<IIII", data, at)
        if captured != original or at + 16 + captured > len(data):
            raise Malformed(f"record at {at}")
        frames.append((0, data[at + 16:at + 16 + captured]))
        at += 16 + captured
    return frames


def _options(data):
    at = 0
    while at + 4 <= len(data):
        code, length = struct.unpack_from("<HH", data, at)
        if code == 0:
            return
        yield code, data[at + 4:at + 4 + length]
        at += 4 + (length + 3) // 4 * 4


def _read_pcapng(data):
    frames, interfaces, at, last_time = [], [], 0, 0
    while at < len(data):
        kind, length = struct.unpack_from("<II", data, at)
        if length % 4 or length < 12 or at + length > len(data):
            raise Malformed(f"block at {at}: length {length}")
        if struct.unpack_from("<I", data, at + length - 4)[0] != length:
            raise Malformed(f"block at {at}: lengths differ")
        body = data[at + 8:at + length - 4]
        if kind == 1:  # interface description
            name = dict(_options(body[8:])).get(2, b"").decode()
            if struct.unpack_from("<H", body)[0] != 1:
                raise Malformed("an interface that is not Ethernet")
            interfaces.append(name or len(interfaces))
        elif kind == 6:  # enhanced packet
            index, high, low, captured, original = struct.unpack_from("<IIIII", body)
            if index >= len(interfaces) or captured != original or 20 + captured > len(body):
                raise Malformed(f"packet block at {at}")
            time = high << 32 | low
            if time == 0 or time < last_time:
                raise Malformed(f"packet block at {at}: time {time} after {last_time}")
            last_time = time
            frames.append((interfaces[index], body[20:20 + captured]))
        elif kind not in (0x0A0D0D0A, 4, 5):
            raise Malformed(f"block type {kind:#x} at {at}")
        at += length
    return frames


class RoceFrame:
    """Fields of one frame, and whether its lengths, checksums and ICRC hold."""

    def __init__(self, frame):
        self.frame = frame
        ethertype, at = struct.unpack_from(">H", frame, 12)[0], 14
        if ethertype == 0x8100:
            ethertype, at = struct.unpack_from(">H", frame, 16)[0], 18
        if ethertype != 0x0800:
            raise Malformed(f"ethertype {ethertype:#06x}")
        self._parse_ip(frame[at:])

    def _parse_ip(self, ip):
        if len(ip) < 20 + 8 + 12 + 4:
            raise Malformed(f"{len(ip)} bytes of IP")
        first, self.tos, total, _, fragment, self.ttl, protocol, _ = struct.unpack_from(">BBHHHBBH", ip)
        if first != 0x45 or total != len(ip) or fragment & 0x3FFF or protocol != 17:
            raise Malformed("IPv4 header")
        if ones_sum(ip[:20]) != 0xFFFF:
            raise Malformed("IPv4 header checksum")
        self.source, self.destination = ip[12:16], ip[16:20]
        self.source_port, port, length, checksum = struct.unpack_from(">HHHH", ip, 20)
        if port != ROCE_PORT or length != total - 20 or checksum not in (0,):
            raise Malformed(f"UDP header: port {port}, length {length}, checksum {checksum:#x}")
        self._parse_bth(ip)

    def _parse_bth(self, ip):
        bth = ip[28:40]
        self.opcode, flags, self.pkey = struct.unpack_from(">BBH", bth)
        self.qpn = int.from_bytes(bth[5:8], "big")
        self.ack_request, self.psn = bth[8] >> 7, int.from_bytes(bth[9:12], "big")
        self.pad = flags >> 4 & 3
        if flags & 0x0F or self.pkey not in (0xFFFF, 0x7FFF) or (len(ip) - 28) % 4:
            raise Malformed(f"BTH: flags {flags:#x}, pkey {self.pkey:#x}, {len(ip) - 28} bytes")
        self.icrc = struct.unpack("<I", ip[-4:])[0]
        self.expected_icrc = icrc(ip[:-4])

    @property
    def icrc_good(self):
        return self.icrc == self.expected_icrc

    @property
    def name(self):
        return OPCODES.get(self.opcode, f"opcode {self.opcode:#x}")


def ones_sum(data):
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def icrc(ip):
    """CRC-32 over eight bytes of ones and the packet with the fields that switches may change set to ones."""
    masked = bytearray(b"\xff" * 8 + ip)
    masked[8 + 1] = 0xFF                     # TOS
    masked[8 + 8] = 0xFF                     # TTL
    masked[8 + 10:8 + 12] = b"\xff\xff"      # IPv4 header checksum
    masked[8 + 26:8 + 28] = b"\xff\xff"      # UDP checksum
    masked[8 + 32] = 0xFF                    # BTH resv8a
    return zlib.crc32(bytes(masked)) & 0xFFFFFFFF
