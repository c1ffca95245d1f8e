# SPDX-License-Identifier: Apache-2.0
"""A host's end of the attach channel, just enough to bring up libweft without a fabric: it answers HELLO and RESOLVE,
records what programs say, and moves no frame. The layouts are those of protocols/attach; a difference makes the attach
fail, which is what the tests would then show."""
import array
import fcntl
import os
import select
import socket
import struct
import tempfile
import threading

MESSAGE = 256
HELLO, WELCOME, REFUSED, RESOLVE, RESOLVED, QP_STATE, EVENT, BYE = 1, 2, 3, 4, 5, 7, 9, 10
VERSION = 2
PAGE = os.sysconf('SC_PAGESIZE')


def align(value, to):
    return (value + to - 1) // to * to


def port_bytes(tx_slots, rx_slots, payload):
    """protocols/attach/port_layout.h, port_layout()."""
    control = 64 + 64 + 8 * 128 + 3 * 128 + 64 + 64 * 8
    tx_return = align(control, 64) + 8 * tx_slots * 16
    rx_ring = align(tx_return + tx_slots * 4, 64)
    rx_return = rx_ring + rx_slots * 16
    tx_slot = align(rx_return + rx_slots * 4, PAGE)
    rx_slot = align(tx_slot + tx_slots * (256 + payload), PAGE)
    return align(rx_slot + rx_slots * (256 + payload), PAGE)


def memfd(size):
    fd = os.memfd_create('fake')
    os.ftruncate(fd, size)
    return fd


def write_tree(root, nics):
    def file(path, text):
        path = os.path.join(root, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, 'w') as out:
            out.write(text + '\n')

    file('class/infiniband_verbs/abi_version', '6')
    for i in range(nics):
        file(f'class/infiniband_verbs/uverbs{i}/ibdev', f'rxe{i}')
        file(f'class/infiniband_verbs/uverbs{i}/dev', f'231:{192 + i}')
        file(f'class/infiniband_verbs/uverbs{i}/abi_version', '2')
        file(f'class/infiniband/rxe{i}/node_type', '1: CA')
        file(f'class/infiniband/rxe{i}/node_guid', f'0057:{i:02x}ff:fe00:0001')
        port = f'class/infiniband/rxe{i}/ports/1'
        for index, gid in enumerate([f'fe80:0000:0000:0000:0057:{i:02x}ff:fe00:0001',
                                     f'0000:0000:0000:0000:0000:ffff:c612:{i:02x}01']):
            file(f'{port}/gids/{index}', gid)
            file(f'{port}/gid_attrs/types/{index}', 'RoCE v2')
            file(f'{port}/gid_attrs/ndevs/{index}', f'weft{i}')
        file(f'{port}/pkeys/0', '0xffff')


class FakeDaemon:
    def __init__(self, host='h0', nics=1, refuse=None, silent=False, port_size_error=0):
        self.folder = tempfile.mkdtemp(prefix='weft-test-')
        self.host, self.nics, self.refuse, self.silent = host, nics, refuse, silent
        self.port_size_error = port_size_error
        host_folder = os.path.join(self.folder, 'hosts', host)
        write_tree(os.path.join(host_folder, 'sys'), nics)
        with open(os.path.join(self.folder, 'hosts.map'), 'w') as out:
            out.write('# name fabric loopback\nh0 198.18.0.1 127.0.0.1\nh1 198.18.0.2\t127.0.0.2\n')
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(os.path.join(host_folder, 'attach'))
        self.listener.listen(16)
        self.status = memfd(4096)
        os.pwrite(self.status, struct.pack('<IIII', 1, 1, VERSION, 0), 0)
        self.messages, self.hung_up, self.clients, self.keep = [], 0, [], []
        self.changed = threading.Condition()
        self.stopping = False
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def environment(self, library, **extra):
        return {**os.environ, 'LD_PRELOAD': library, 'WEFT_RUN': self.folder, 'WEFT_HOST': self.host,
                'WEFT_NAME': 'fake', 'WEFT_RUN_ID': '77', **extra}

    def serve(self):
        while not self.stopping:
            ready, _, _ = select.select([self.listener, *self.clients], [], [], 0.2)
            for sock in ready:
                if sock is self.listener:
                    self.clients.append(sock.accept()[0])
                    continue
                data = sock.recv(MESSAGE + 1)
                with self.changed:
                    if not data:
                        self.hung_up += 1
                        self.clients.remove(sock)
                        sock.close()
                    else:
                        self.messages.append(data)
                    self.changed.notify_all()
                if data:
                    self.answer(sock, data)

    def answer(self, sock, data):
        kind, tag = struct.unpack_from('<II', data)
        if self.silent:
            return
        if kind == HELLO and self.refuse:
            sock.send(struct.pack('<IIiI192s', REFUSED, tag, 13, VERSION, self.refuse.encode()).ljust(MESSAGE, b'\0'))
        elif kind == HELLO:
            for nic in range(self.nics):
                self.welcome(sock, tag, nic)
        elif kind == RESOLVE:
            known = data[16:32][-1] == 2
            sock.send(struct.pack('<IIi6sBB', RESOLVED, tag, 0 if known else 110, b'\x02\x57\0\0\0\1', 0, 0)
                      .ljust(MESSAGE, b'\0'))

    def welcome(self, sock, tag, nic):
        size = port_bytes(256, 256, 4096)
        to_us, to_them = os.pipe(), os.pipe()
        fcntl.fcntl(to_us[0], fcntl.F_SETFL, os.O_NONBLOCK)
        port, notices = memfd(size), memfd(align(64 + 256 * 32, PAGE))
        mac = bytes([2, 0x57, nic, 0, 0, 0])
        gids = (bytes.fromhex('fe80000000000000005700fffe000001') + bytes(10) + b'\xff\xff\xc6\x12\0\1').ljust(64, b'\0')
        head = struct.pack('<IIIIIIIIIIII6sBBI4xQ', WELCOME, tag, VERSION, 0, nic, self.nics, 1 << 14, 14, 256, 256, 4096,
                           size + self.port_size_error, mac, 5, 2, 0xc6120001, 0x005700fffe000001)
        tail = struct.pack('<Q10I16s', 100_000_000_000, *[0] * 10, f'rxe{nic}'.encode())
        fds = array.array('i', [port, to_them[0], to_us[1], self.status, notices])
        message = (head + gids + tail).ljust(MESSAGE, b'\0')
        sock.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        for fd in (notices, to_them[0], to_us[1]):
            os.close(fd)
        self.keep += [to_us[0], to_them[1], port]
        self.port = port

    def poll_seq(self):
        """How often programs have driven the engine: the first word of the port."""
        return struct.unpack('<I', os.pread(self.port, 4, 0))[0]

    def wait_for(self, kind, timeout=10):
        """The first message of that kind, or None."""
        def find():
            return next((m for m in self.messages if struct.unpack_from('<I', m)[0] == kind), None)
        with self.changed:
            self.changed.wait_for(find, timeout)
            return find()

    def wait_for_hang_up(self, count=1, timeout=10):
        with self.changed:
            return self.changed.wait_for(lambda: self.hung_up >= count, timeout)

    def send_event(self, event):
        for sock in self.clients:
            sock.send(struct.pack('<IIIIII', EVENT, 0, 0, event, 1, 0).ljust(MESSAGE, b'\0'))

    def die(self):
        """What the kernel does to a killed daemon's descriptors."""
        self.stopping = True
        self.thread.join()
        for sock in [self.listener, *self.clients]:
            sock.close()
        for fd in self.keep:
            os.close(fd)
        self.clients, self.keep = [], []

    def close(self):
        import shutil
        if not self.stopping:
            self.die()
        os.close(self.status)
        shutil.rmtree(self.folder, ignore_errors=True)
