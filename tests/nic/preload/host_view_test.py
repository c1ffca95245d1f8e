# SPDX-License-Identifier: Apache-2.0
"""Two hosts' programs on one machine, each with its own addresses, ports and name (nic_rules 10). No fabric runs: the
files that its daemon would write are enough, on a loopback network that no fabric takes."""
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import unittest

LIBRARY = os.path.abspath(sys.argv.pop(1))
LOOPBACK = '127.17.0'
PRELUDE = '''
import asyncio, ctypes, errno, fcntl, os, platform, select, socket, struct, sys
H0, H1 = "198.18.0.1", "198.18.0.2"
def fails(code, call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        assert error.errno == code, error
        return
    raise AssertionError(f"{call} {arguments} succeeded")
def told(*words):
    print(*words, flush=True)
def asked():
    return sys.stdin.readline().split()
'''


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as s:
            s.bind(('::1', 0))
        return True
    except OSError:
        return False


class Program:
    def __init__(self, test, host, script, **environment):
        env = {k: v for k, v in os.environ.items() if not k.startswith('WEFT_')}
        env.update(LD_PRELOAD=LIBRARY, WEFT_RUN=test.folder, WEFT_HOST=host, WEFT_NAME='t', **environment)
        self.test = test
        self.popen = subprocess.Popen([sys.executable, '-c', PRELUDE + textwrap.dedent(script)], env=env, text=True,
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def hear(self):
        words = self.popen.stdout.readline().split()
        if not words:
            self.test.fail(self.popen.communicate(timeout=30)[1])
        return words

    def tell(self, *words):
        self.popen.stdin.write(' '.join(map(str, words)) + '\n')
        self.popen.stdin.flush()

    def end(self):
        out, err = self.popen.communicate(timeout=30)
        self.test.assertEqual((self.popen.returncode, err), (0, ''))
        return out


class HostView(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix='weft-view-')
        self.addCleanup(shutil.rmtree, self.folder)
        self.write('hosts.map', ''.join(f'h{i} 198.18.0.{i + 1} {LOOPBACK}.{i + 1}\n' for i in range(3)))
        for i in range(3):
            self.write(f'hosts/h{i}/view', f'host {i}\nhosts 3\nnics 2\nloopback 17\n')
            for nic in range(2):
                self.write(f'hosts/h{i}/sys/class/infiniband_verbs/uverbs{nic}/ibdev', f'rxe{nic}\n')
                gids = f'hosts/h{i}/sys/class/infiniband/rxe{nic}/ports/1/gids/'
                for index, gid in enumerate(('0000:' * 7 + '0000', f'fe80:0000:0000:0000:0057:{nic:02x}ff:fe00:{i:04x}',
                                             f'0000:0000:0000:0000:0000:ffff:c612:{4 * nic + i + 1:04x}')):
                    self.write(gids + str(index), gid + '\n')
            self.write(f'hosts/h{i}/etc/hostname', f'h{i}\n')
            self.write(f'hosts/h{i}/proc/sys/kernel/random/boot_id', f'0000000{i}-0000-4000-8000-000000000000\n')

    def write(self, path, text):
        path = os.path.join(self.folder, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, 'w') as out:
            out.write(text)

    def start(self, host, script, **environment):
        program = Program(self, host, script, **environment)
        self.addCleanup(program.popen.kill)
        return program

    def run_on(self, host, script, **environment):
        return self.start(host, script, **environment).end()

    # ---- names

    def test_names_and_addresses(self):
        self.run_on('h1', '''
            assert socket.gethostbyname("h0") == H0 and socket.gethostbyname("H1") == H1
            assert socket.getaddrinfo("h2", 80, socket.AF_INET, socket.SOCK_STREAM)[0][4] == ("198.18.0.3", 80)
            found = socket.getaddrinfo("h0", 80, socket.AF_INET, socket.SOCK_STREAM, 0, socket.AI_CANONNAME)
            assert found[0][3] == "h0", found
            fails(socket.EAI_NONAME, socket.getaddrinfo, "h0", 80, 0, 0, 0, socket.AI_NUMERICHOST)
            fails(socket.EAI_NONAME, socket.getaddrinfo, "h3.invalid", 80)
            assert socket.gethostbyaddr(H0) == ("h0", [], [H0]), socket.gethostbyaddr(H0)
            assert socket.gethostbyaddr("198.18.0.6")[0] == "h1"  # the second NIC
            assert socket.getnameinfo((H0, 22), 0)[0] == "h0"
            assert socket.getnameinfo((H0, 22), socket.NI_NUMERICHOST | socket.NI_NUMERICSERV) == (H0, "22")
            assert socket.getfqdn() == "h1", socket.getfqdn()
        ''')

    def test_the_machine_s_name_and_number(self):
        out = self.run_on('h1', '''
            assert socket.gethostname() == platform.node() == os.uname().nodename == "h1"
            for path in ("/etc/hostname", "/proc//sys/kernel/random/boot_id"):
                with open(path) as file:
                    print(file.read().strip())
            libc = ctypes.CDLL(None, use_errno=True)
            buffer = ctypes.create_string_buffer(b"xxx")
            assert libc.gethostname(buffer, 2) == -1 and ctypes.get_errno() == errno.ENAMETOOLONG
            assert buffer.raw == b"h1x\\0"
            print(libc.gethostid())
        ''').split()
        self.assertEqual(out[:2], ['h1', '00000001-0000-4000-8000-000000000000'])
        self.assertNotEqual(out[2], self.run_on('h0', 'print(ctypes.CDLL(None).gethostid())').strip())

    def test_without_the_daemon_s_files_the_machine_s_are_seen(self):
        shutil.rmtree(os.path.join(self.folder, 'hosts'))
        with open('/proc/sys/kernel/random/boot_id') as file:
            boot_id = file.read()
        out = self.run_on('h1', '''
            sys.stdout.write(open("/proc/sys/kernel/random/boot_id").read())
            s = socket.socket()
            s.bind(("127.0.0.1", 0))
            assert s.getsockname()[0] == "127.0.0.1"
            assert os.path.isdir("/sys/class/net")
        ''')
        self.assertEqual(out, boot_id)

    def test_interfaces(self):
        self.run_on('h1', '''
            names = [name for _, name in socket.if_nameindex()]
            assert names == ["lo", "weft0", "weft1"], names
            assert socket.if_indextoname(socket.if_nametoindex("weft1")) == "weft1"
            fails(None, socket.if_nametoindex, "weft2")
            s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            def ask(request, name):
                return fcntl.ioctl(s, request, struct.pack("16s24x", name))[16:]
            assert socket.inet_ntoa(ask(0x8915, b"weft0")[4:8]) == H1
            assert socket.inet_ntoa(ask(0x8915, b"weft1")[4:8]) == "198.18.0.6"
            assert socket.inet_ntoa(ask(0x891b, b"weft0")[4:8]) == "255.254.0.0"
            assert ask(0x8927, b"weft1")[2:8] == bytes([2, 0x57, 1, 0, 0, 1])
            assert struct.unpack("i", ask(0x8921, b"weft0")[:4])[0] == 9000
            assert socket.inet_ntoa(ask(0x8915, b"lo")[4:8]) == "127.0.0.1"
            fails(errno.ENODEV, ask, 0x8913, b"weft7")
            fails(errno.ENODEV, ask, 0x8913, b"eth0")
            fails(errno.ENOTTY, fcntl.ioctl, os.open("/dev/null", os.O_RDWR), 0x8913, bytes(40))
            room = ctypes.create_string_buffer(40 * 8)
            conf = fcntl.ioctl(s, 0x8912, struct.pack("iP", len(room), ctypes.addressof(room)))
            size = struct.unpack("iP", conf)[0]
            listed = [room.raw[i:i + 16].rstrip(b"\\0") for i in range(0, size, 40)]
            assert listed == [b"lo", b"weft0", b"weft1"], listed
            assert struct.unpack("iP", fcntl.ioctl(s, 0x8912, struct.pack("iP", 79, ctypes.addressof(room))))[0] == 40
            assert struct.unpack("iP", fcntl.ioctl(s, 0x8912, struct.pack("iP", 0, 0)))[0] == 120
        ''')

    def test_getifaddrs(self):
        out = self.run_on('h1', '''
            class Ifaddrs(ctypes.Structure): pass
            Ifaddrs._fields_ = [("next", ctypes.POINTER(Ifaddrs)), ("name", ctypes.c_char_p), ("flags", ctypes.c_uint),
                                ("addr", ctypes.c_void_p), ("mask", ctypes.c_void_p), ("broad", ctypes.c_void_p),
                                ("data", ctypes.c_void_p)]
            libc = ctypes.CDLL(None)
            head = ctypes.POINTER(Ifaddrs)()
            assert libc.getifaddrs(ctypes.byref(head)) == 0
            at = head
            while at:
                entry = at.contents
                raw = ctypes.string_at(entry.addr, 18)
                family = struct.unpack("H", raw[:2])[0]
                text = {socket.AF_INET: lambda: socket.inet_ntoa(raw[4:8]),
                        socket.AF_PACKET: lambda: raw[12:18].hex(":")}.get(family, lambda: "-")()
                print(entry.name.decode(), family, text, int(entry.flags & 8 != 0))
                at = entry.next
            libc.freeifaddrs(head)
        ''')
        lines = [line.split() for line in out.splitlines()]
        self.assertIn(['weft0', '2', '198.18.0.2', '0'], lines)
        self.assertIn(['weft1', '2', '198.18.0.6', '0'], lines)
        self.assertIn(['weft1', '17', '02:57:01:00:00:01', '0'], lines)
        self.assertIn(['lo', '2', '127.0.0.1', '1'], lines)
        self.assertEqual({line[0] for line in lines}, {'lo', 'weft0', 'weft1'})

    # ---- TCP

    SERVER = '''
        s = socket.socket(FAMILY, socket.SOCK_STREAM)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind((WHERE, int(asked()[0])))
        s.listen()
        told("listens", *s.getsockname()[:2])
        c, peer = s.accept()
        told(*c.getsockname()[:2], *c.getpeername()[:2], *peer[:2])
        assert c.recv(10) == b"hello"
        c.sendall(socket.gethostname().encode())
        c.close()
    '''

    def server(self, host, where='', family='socket.AF_INET', port=0):
        program = self.start(host, self.SERVER.replace('WHERE', repr(where)).replace('FAMILY', family))
        program.tell(port)
        words = program.hear()
        return program, words[1], int(words[2])

    def test_two_hosts_serve_one_port(self):
        first, address, port = self.server('h0')
        self.assertEqual(address, '198.18.0.1')
        second, address, _ = self.server('h1', port=port)
        self.assertEqual(address, '198.18.0.2')
        client = '''
            for name, address in (("h0", H0), ("h1", H1)):
                s = socket.create_connection((name, %d))
                assert s.getpeername() == (address, %d), s.getpeername()
                assert s.getsockname()[0] == "198.18.0.3", s.getsockname()
                s.sendall(b"hello")
                assert s.recv(10) == name.encode()
                print(s.getsockname()[1])
        ''' % (port, port)
        ports = self.run_on('h2', client).split()
        for program, own, own_port in ((first, '198.18.0.1', ports[0]), (second, '198.18.0.2', ports[1])):
            self.assertEqual(program.hear(), [own, str(port), '198.18.0.3', own_port, '198.18.0.3', own_port])
            program.end()

    def test_the_same_port_twice_on_one_host(self):
        self.run_on('h1', '''
            a, b, c = (socket.socket() for _ in range(3))
            a.bind((H1, 0))
            port = a.getsockname()[1]
            a.listen()
            fails(errno.EADDRINUSE, b.bind, ("0.0.0.0", port))
            fails(errno.EADDRINUSE, b.bind, ("198.18.0.6", port))  # NICs share one place
            fails(errno.EADDRNOTAVAIL, c.bind, (H0, port))
            fails(errno.EINVAL, a.bind, (H1, port))
        ''')

    def test_outside_reaches_a_host_at_its_loopback_address(self):
        program, _, port = self.server('h1')
        with socket.create_connection((LOOPBACK + '.2', port)) as s:
            s.sendall(b'hello')
            self.assertEqual(s.recv(10), b'h1')
        self.assertEqual(program.hear()[2], '127.0.0.1')
        program.end()
        for other in ('127.0.0.1', LOOPBACK + '.1'):
            with self.assertRaises(ConnectionRefusedError):
                socket.create_connection((other, port))

    def test_localhost_is_the_hosts_own_server_if_there_is_one(self):
        program, _, port = self.server('h1')
        with socket.socket() as machine:
            machine.bind(('127.0.0.1', port))
            machine.listen()
            for name in ('127.0.0.1', 'localhost'):
                self.run_on('h0', f'''
                    s = socket.create_connection(({name!r}, {port}))
                    assert s.getpeername()[:2] in (("127.0.0.1", {port}), ("::1", {port})), s.getpeername()
                ''')
                machine.accept()[0].close()
            self.run_on('h1', f'''
                s = socket.socket()
                s.setblocking(False)
                assert s.connect_ex(("127.0.0.1", {port})) in (0, errno.EINPROGRESS)
                assert select.select([], [s], [], 10)[1]
                s.sendall(b"hello")
                assert select.select([s], [], [], 10)[0]
                assert s.recv(10) == b"h1"
            ''')
        program.end()

    def test_bound_to_127_0_0_1(self):
        self.run_on('h1', '''
            s = socket.socket()
            s.bind(("127.0.0.1", 0))
            s.listen()
            assert s.getsockname()[0] == "127.0.0.1"
            c = socket.create_connection(s.getsockname())
            peer = s.accept()[1]
            assert peer == c.getsockname() and peer[0] == "127.0.0.1"
        ''')

    @unittest.skipUnless(has_ipv6(), 'no IPv6 here')
    def test_dual_stack_servers(self):
        first, address, port = self.server('h0', '::', 'socket.AF_INET6')
        self.assertEqual(address, '::ffff:198.18.0.1')
        second, _, _ = self.server('h1', '::', 'socket.AF_INET6', port)
        self.run_on('h1', f'''
            s = socket.create_connection(("h0", {port}))
            s.sendall(b"hello")
            assert s.recv(10) == b"h0"
            # An IPv6 socket towards IPv4, by its own host's localhost.
            s = socket.socket(socket.AF_INET6)
            s.connect(("::1", {port}))
            assert s.getpeername()[0] == "::ffff:" + H1, s.getpeername()
            s.sendall(b"hello")
            assert s.recv(10) == b"h1"
        ''')
        self.assertEqual(first.hear()[2], '::ffff:198.18.0.2')
        self.assertEqual(second.hear()[0], '::ffff:198.18.0.2')
        first.end()
        second.end()

    @unittest.skipUnless(has_ipv6(), 'no IPv6 here')
    def test_servers_with_a_socket_of_each_family(self):
        """asyncio binds 0.0.0.0 and, IPv6 only, [::]: on two hosts at once."""
        script = '''
            async def serve(reader, writer):
                told(*writer.get_extra_info("peername")[:1])
                writer.close()
            async def main():
                server = await asyncio.start_server(serve, None, int(asked()[0]), reuse_address=False)
                names = {s.family: s.getsockname() for s in server.sockets}
                assert len(names) == 2, names
                assert names[socket.AF_INET6][0] == "::", names
                told(names[socket.AF_INET][1])
                await asyncio.get_running_loop().run_in_executor(None, asked)
            asyncio.run(main())
        '''
        with socket.socket() as s:
            s.bind(('127.0.0.1', 0))
            port = s.getsockname()[1]
        programs = [self.start(host, script) for host in ('h0', 'h1')]
        for program in programs:
            program.tell(port)
            program.hear()
        self.run_on('h2', f'socket.create_connection(("h0", {port})).recv(1); socket.create_connection(("h1", {port})).recv(1)')
        for program in programs:
            self.assertEqual(program.hear(), ['198.18.0.3'])
            program.tell('end')
            program.end()

    # ---- UDP

    def test_datagrams(self):
        echo = '''
            s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            s.setsockopt(socket.IPPROTO_IP, 8, 1)  # IP_PKTINFO
            s.bind(("", 0))
            told(s.getsockname()[1])
            for _ in range(3):
                data, control, flags, peer = s.recvmsg(100, 100)
                _, spec, to = struct.unpack("i4s4s", control[0][2])
                told(*peer, socket.inet_ntoa(to))
                s.sendmsg([data], [(socket.IPPROTO_IP, 8, struct.pack("i4s4s", 0, socket.inet_aton(H0), bytes(4)))], 0, peer)
        '''
        server = self.start('h0', echo)
        port = int(server.hear()[0])
        self.run_on('h1', f'''
            plain = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            plain.sendto(b"one", (H0, {port}))
            assert plain.recvfrom(10) == (b"one", (H0, {port}))
            connected = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            connected.connect(("h0", {port}))
            assert connected.getsockname()[0] == H1
            connected.send(b"two")
            assert connected.recv(10) == b"two"
            wild = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            wild.bind(("", 0))
            wild.sendmsg([b"three"], [], 0, (H0, {port}))
            assert wild.recvmsg(10)[3] == (H0, {port})
            told(plain.getsockname()[1], connected.getsockname()[1], wild.getsockname()[1])
        ''')
        for _ in range(3):
            source, _, to = server.hear()
            self.assertEqual((source, to), ('198.18.0.2', '198.18.0.1'))
        server.end()

    def test_many_datagrams_in_one_call(self):
        self.run_on('h1', '''
            class Iovec(ctypes.Structure):
                _fields_ = [("base", ctypes.c_char_p), ("len", ctypes.c_size_t)]
            class Msghdr(ctypes.Structure):
                _fields_ = [("name", ctypes.c_void_p), ("namelen", ctypes.c_uint), ("iov", ctypes.POINTER(Iovec)),
                            ("iovlen", ctypes.c_size_t), ("control", ctypes.c_void_p), ("controllen", ctypes.c_size_t),
                            ("flags", ctypes.c_int)]
            class Mmsghdr(ctypes.Structure):
                _fields_ = [("hdr", Msghdr), ("len", ctypes.c_uint)]
            libc = ctypes.CDLL(None, use_errno=True)
            a, b = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
            b.bind(("", 0))
            def messages(name):
                batch = (Mmsghdr * 3)()
                keep = []
                for m in batch:
                    address = ctypes.create_string_buffer(name, 16)
                    vector = Iovec(b"x" * 8, 8)
                    keep += [address, vector]
                    m.hdr.name, m.hdr.namelen = ctypes.addressof(address), 16
                    m.hdr.iov, m.hdr.iovlen = ctypes.pointer(vector), 1
                return batch, keep
            to = struct.pack("=H", socket.AF_INET) + struct.pack("!H", b.getsockname()[1]) + socket.inet_aton(H1) + bytes(8)
            out, keep_out = messages(to)
            assert libc.sendmmsg(a.fileno(), out, 3, 0) == 3
            assert [m.len for m in out] == [8, 8, 8]
            assert ctypes.string_at(out[0].hdr.name, 16) == to, "the program's address was changed"
            got, keep_in = messages(bytes(16))
            assert libc.recvmmsg(b.fileno(), got, 3, 0, None) == 3
            for m in got:
                assert socket.inet_ntoa(ctypes.string_at(m.hdr.name, 8)[4:8]) == H1
            bad, keep_bad = messages(struct.pack("=H", 99) + bytes(14))
            assert libc.sendmmsg(a.fileno(), bad, 3, 0) == -1 and ctypes.get_errno() == errno.EAFNOSUPPORT
        ''')

    # ---- what is not ours

    def test_other_sockets_and_bad_arguments_are_the_kernel_s(self):
        self.run_on('h1', '''
            libc = ctypes.CDLL(None, use_errno=True)
            def code(call, *arguments):
                ctypes.set_errno(0)
                return ctypes.get_errno() if call(*arguments) == -1 else 0
            s = socket.socket()
            for call in (libc.bind, libc.connect):
                assert code(call, s.fileno(), None, 16) == errno.EFAULT
                assert code(call, s.fileno(), b"x" * 16, 2) == errno.EINVAL
                assert code(call, 999, bytes(16), 16) == errno.EBADF
                assert code(call, 0, bytes(16), 16) == errno.ENOTSOCK
            for call in (libc.getsockname, libc.getpeername):
                assert code(call, 999, None, None) == errno.EBADF
            assert code(libc.getsockname, s.fileno(), None, None) == errno.EFAULT
            assert code(libc.sendmsg, s.fileno(), None, 0) == errno.EFAULT
            assert code(libc.recvmsg, s.fileno(), None, 0) == errno.EFAULT
            a, b = socket.socketpair()
            a.sendall(b"x")
            assert b.recvfrom(10) in ((b"x", None), (b"x", ""))
            socket.send_fds(a, [b"fd"], [0])
            assert socket.recv_fds(b, 10, 1)[0] == b"fd"
            u = socket.socket(socket.AF_UNIX)
            u.bind("\\0weft-view-test-%d" % os.getpid())
            fails(errno.ECONNREFUSED, socket.socket().connect, (H0, 1))
            # The kernel takes a wildcard of no family for IPv4's.
            assert code(libc.bind, s.fileno(), bytes(16), 16) == 0
            assert s.getsockname()[0] == H1
        ''')

    def test_shared_tcp_translates_nothing(self):
        self.run_on('h1', '''
            assert socket.gethostbyname("h0") == "%s.1"
            assert socket.gethostname() == "h1"
            s = socket.socket()
            s.bind(("", 0))
            assert s.getsockname()[0] == "0.0.0.0"
            assert "weft0" not in [name for _, name in socket.if_nameindex()]
        ''' % LOOPBACK, WEFT_SHARED_TCP='1')

    def test_in_children_of_fork_vfork_and_exec(self):
        self.run_on('h1', '''
            import subprocess
            script = "import socket; s = socket.socket(); s.bind(('', 0)); print(s.getsockname()[0], socket.gethostname())"
            for _ in range(3):
                assert subprocess.check_output([sys.executable, "-c", script], text=True) == H1 + " h1\\n"
            pid = os.fork()
            if pid == 0:
                s = socket.socket()
                s.bind(("", 0))
                os._exit(s.getsockname()[0] != H1)
            assert os.waitpid(pid, 0)[1] == 0
        ''')


if __name__ == '__main__':
    unittest.main(verbosity=2)
