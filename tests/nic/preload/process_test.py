# SPDX-License-Identifier: Apache-2.0
"""libweft in the life of a process (nic_rules 4): attach and its refusals, fork, vfork, subprocess, closefrom, dup2,
exec, exit, the death of the daemon, signals; against a fake daemon that moves no frames. The subjects are Python
programs that speak the uverbs write() ABI themselves, so that nothing of libibverbs is in between."""
import os
import subprocess
import sys
import textwrap
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fake_daemon as fake  # noqa: E402

LIBRARY = os.path.abspath(sys.argv.pop(1))
SUBJECT = os.path.abspath(sys.argv.pop(1))

PRELUDE = '''
import ctypes, errno, fcntl, os, select, signal, socket, stat, struct, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def words(count):
    return (ctypes.c_uint32 * count)()
def command(fd, number, words_in, response, *fields):
    """A plain uverbs command: header, response pointer, 32-bit fields. Returns the response or raises OSError."""
    body = struct.pack('<IHH', number, words_in, len(response)) + struct.pack('<Q', ctypes.addressof(response))
    body += b''.join(f if isinstance(f, bytes) else struct.pack('<I', f) for f in fields)
    assert len(body) == words_in * 4, (len(body), words_in)
    assert os.write(fd, body) == len(body)
    return response
def get_context(fd):
    return command(fd, 0, 4, words(2))
def alloc_pd(fd):
    return command(fd, 3, 4, words(1))[0]
def reg_mr(fd, pd, address, size):
    fields = struct.pack('<QQQII', address, size, address, pd, 1)
    return command(fd, 9, 12, words(3), fields)
def fails(code, call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        assert error.errno == code, error
    else:
        raise AssertionError(f'{call.__name__}{arguments} did not fail')
def open_device(n=0):
    return os.open(f'/dev/infiniband/uverbs{n}', os.O_RDWR | os.O_CLOEXEC)
def private_fds():
    """Descriptors of libweft: a socket, pipes, an eventfd above the first hundred."""
    return [int(n) for n in os.listdir('/proc/self/fd') if int(n) >= 100]
'''


class Process(unittest.TestCase):
    def setUp(self):
        self.daemon = None

    def tearDown(self):
        if self.daemon:
            self.daemon.close()

    def start(self, script, daemon=None, executable=sys.executable, **environment):
        self.daemon = daemon or fake.FakeDaemon()
        return subprocess.Popen([executable, '-c', PRELUDE + textwrap.dedent(script)],
                                env=self.daemon.environment(LIBRARY, **environment), stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run_subject(self, script, daemon=None, code=0, executable=sys.executable, **environment):
        subject = self.start(script, daemon, executable, **environment)
        out, err = subject.communicate(timeout=60)
        self.assertEqual(subject.returncode, code, err)
        return out, err

    def silent(self, script, **kwargs):
        out, err = self.run_subject(script, **kwargs)
        self.assertEqual(err, '')
        return out

    # ---- the device

    def test_device_is_a_character_device_everywhere(self):
        self.silent('''
            path = '/dev/infiniband/uverbs0'
            for s in (os.stat(path), os.lstat(path), os.fstat(open_device())):
                assert stat.S_ISCHR(s.st_mode) and s.st_rdev == os.makedev(231, 192), s
            assert os.stat(path).st_mtime == os.fstat(open_device()).st_mtime
            assert os.access(path, os.R_OK | os.W_OK) and not os.access(path, os.X_OK)
            fails(errno.ENOENT, os.stat, '/dev/infiniband/uverbs1')
            fails(errno.ENOENT, os.open, '/dev/infiniband/uverbs1', os.O_RDWR)
            fails(errno.ENOENT, os.open, '/dev/infiniband/rdma_cm', os.O_RDWR)
        ''')

    def test_sysfs_is_the_hosts_own(self):
        self.silent('''
            assert os.listdir('/sys/class/infiniband') == ['rxe0']
            assert sorted(os.listdir('/sys//class/infiniband_verbs')) == ['abi_version', 'uverbs0']
            assert open('/sys/class/infiniband_verbs/abi_version').read() == '6\\n'
            assert os.path.isdir('/sys/class/net')
            libc.fopen.restype = ctypes.c_void_p
            assert libc.fopen(b'/sys/class/infiniband/rxe0/node_type', b'r')
            libc.realpath.restype = ctypes.c_char_p
            assert libc.realpath(b'/sys/class/infiniband/rxe0', None).startswith(os.environ['WEFT_RUN'].encode())
        ''')

    def test_netlink_and_ioctl_are_refused(self):
        self.silent('''
            fails(errno.EPROTONOSUPPORT, socket.socket, socket.AF_NETLINK, socket.SOCK_RAW, 20)
            socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
            fd = open_device()
            fails(errno.ENOTTY, fcntl.ioctl, fd, 0xc0181b01, bytes(64))
            fails(errno.EINVAL, os.read, fd, 8)
        ''')

    def test_commands(self):
        self.silent('''
            fd = open_device()
            context = get_context(fd)
            assert fcntl.fcntl(context[0], fcntl.F_GETFD) & fcntl.FD_CLOEXEC
            fails(errno.EINVAL, get_context, fd)
            pd = alloc_pd(fd)
            memory = ctypes.create_string_buffer(8192)
            assert reg_mr(fd, pd, ctypes.addressof(memory), 8192)[0] >= 0
            fails(errno.EINVAL, os.write, fd, b'')
            fails(errno.EFAULT, os.write, open_device(), struct.pack('<IHHQ', 0, 4, 2, 16))
        ''')

    def test_attach_is_lazy_and_says_bye(self):
        self.silent('os.stat("/dev/infiniband/uverbs0"); os.listdir("/sys/class/infiniband")')
        self.assertEqual(self.daemon.messages, [])
        self.daemon.close()
        self.silent('open_device(); open_device(); time.sleep(0)')
        hello = self.daemon.wait_for(fake.HELLO)
        self.assertEqual(int.from_bytes(hello[8:12], 'little'), fake.VERSION)
        self.assertIn(b'python', hello[24:88])
        self.assertEqual(int.from_bytes(hello[88:96], 'little'), 77)
        self.assertIsNotNone(self.daemon.wait_for(fake.BYE))
        self.assertEqual(sum(m[0] == fake.HELLO for m in self.daemon.messages), 1)

    def test_several_nics(self):
        daemon = fake.FakeDaemon(nics=3)
        self.silent('''
            for n in range(3):
                fd = open_device(n)
                assert os.fstat(fd).st_rdev == os.makedev(231, 192 + n)
                get_context(fd)
            assert socket.if_nametoindex('weft2') == socket.if_nametoindex('weft0') + 2
            assert socket.if_indextoname(socket.if_nametoindex('weft1')) == 'weft1'
            try: socket.if_nametoindex('weft3')
            except OSError: pass
            else: raise AssertionError('weft3')
            assert socket.if_nametoindex('lo') == 1
        ''', daemon=daemon)

    def test_names(self):
        self.silent('''
            assert socket.gethostbyname('h1') == '127.0.0.2'
            assert socket.gethostbyname('H0') == '127.0.0.1'
            assert socket.getaddrinfo('h1', 18515, socket.AF_INET, socket.SOCK_STREAM)[0][4] == ('127.0.0.2', 18515)
            assert socket.gethostbyname('localhost') == '127.0.0.1'
            fails(socket.EAI_NONAME, socket.getaddrinfo, 'h1.invalid', 1)
        ''')

    # ---- refusals: one line, the right errno

    def refusal(self, daemon, code, *parts):
        out, err = self.run_subject(f'fails({code}, open_device)', daemon=daemon)
        lines = err.splitlines()
        self.assertEqual(len(lines), 1, err)
        self.assertTrue(lines[0].startswith('weft: '))
        for part in parts:
            self.assertIn(part, lines[0])

    def test_refused_by_the_daemon(self):
        self.refusal(fake.FakeDaemon(refuse='host h0 has no seat left'), 'errno.EACCES', 'host h0 has no seat left')

    def test_other_version(self):
        self.refusal(fake.FakeDaemon(port_size_error=4096), 'errno.EPROTO', 'of different versions')

    def test_silent_daemon(self):
        self.refusal(fake.FakeDaemon(silent=True), 'errno.ETIMEDOUT', 'does not answer', 'weft show hosts')

    def test_daemon_gone(self):
        daemon = fake.FakeDaemon()
        daemon.die()
        self.refusal(daemon, 'errno.ENODEV', 'the fabric is gone', 'type: weft up --name fake')

    def test_descriptor_limit(self):
        out, err = self.run_subject('''
            import resource
            resource.setrlimit(resource.RLIMIT_NOFILE, (12, 12))
            held = []
            try:
                while True: held.append(os.open('/dev/null', os.O_RDONLY))
            except OSError: pass
            os.close(held.pop()); os.close(held.pop())
            try: open_device()
            except OSError as error: assert error.errno in (errno.EMFILE, errno.ENODEV), error
            else: raise AssertionError('opened')
        ''')
        self.assertEqual(len(err.splitlines()), 1, err)
        self.assertIn('ulimit -n', err)

    # ---- descriptors

    def test_the_program_cannot_close_ours(self):
        self.silent('''
            fd = open_device(); get_context(fd)
            mine = private_fds()
            assert len(mine) >= 4, mine
            for n in mine:
                fails(errno.EBADF, os.close, n)
            libc.closefrom(fd + 1)
            assert set(private_fds()) == set(mine), (private_fds(), mine)
            alloc_pd(fd)
            assert libc.close_range(fd + 1, 0xffffffff, 0) == 0
            assert set(private_fds()) == set(mine)
            alloc_pd(fd)
            os.closerange(100, 5000)
            assert set(private_fds()) == set(mine)
            alloc_pd(fd)
        ''')

    def test_closing_everything_closes_the_device(self):
        self.silent('''
            fd = open_device(); get_context(fd)
            copy = os.dup(fd)
            libc.closefrom(3)
            fails(errno.EBADF, alloc_pd, fd)
            fails(errno.EBADF, alloc_pd, copy)
            other = open_device()
            get_context(other)
        ''')

    def test_dup2_over_ours_moves_ours(self):
        self.silent('''
            fd = open_device(); get_context(fd)
            moved = 0
            for n in private_fds():
                try:
                    os.dup2(1, n)
                except OSError as error:
                    assert error.errno == errno.EBUSY, error
                    continue
                moved += 1
                os.close(n)
            assert moved >= 3, moved
            alloc_pd(fd)
        ''')
        self.assertIsNotNone(self.daemon.wait_for(fake.BYE))

    def test_copies_of_the_command_fd(self):
        self.silent('''
            fd = open_device(); get_context(fd)
            copies = [os.dup(fd), fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 50), os.dup2(fd, 60)]
            os.close(fd)
            for copy in copies:
                alloc_pd(copy)
                assert stat.S_ISCHR(os.fstat(copy).st_mode)
            for copy in copies[:-1]: os.close(copy)
            alloc_pd(60)
            # A number that names something else now is not the device any more.
            os.dup2(1, 60)
            assert not os.fstat(60).st_rdev == os.makedev(231, 192)
        ''')

    def test_closed_behind_our_back(self):
        self.silent('''
            fd = open_device(); get_context(fd)
            libc.syscall(3, fd)                       # close
            null = os.open('/dev/null', os.O_RDWR)
            assert null == fd, (null, fd)
            assert os.write(null, b'x' * 100) == 100
            assert os.fstat(null).st_rdev == os.makedev(1, 3)
        ''')

    def test_many_opens(self):
        self.silent('''
            counts = set()
            for i in range(1500):
                fd = open_device()
                async_fd = get_context(fd)[0]
                alloc_pd(fd)
                os.close(async_fd)
                os.close(fd)
                counts.add(len(os.listdir('/proc/self/fd')))
            assert len(counts) == 1, counts
        ''')

    # ---- children

    def test_subprocess_leaves_the_device_alone(self):
        self.silent('''
            fd = open_device(); get_context(fd)
            for i in range(5):
                subprocess.run(['true'], check=True, close_fds=True)
                subprocess.run(['true'], check=True, close_fds=False)
                os.system('true')
                os.posix_spawn('/bin/true', ['true'], {})
            alloc_pd(fd)
            assert len(private_fds()) >= 4
        ''')

    def test_vfork_child_that_closes_everything(self):
        """Debian's Python uses vfork and calls close_range(3, ...) in the parent's memory."""
        self.silent('''
            fd = open_device(); get_context(fd)
            mine = private_fds()
            for i in range(5):
                subprocess.run(['/bin/true'], pass_fds=(), check=True)
            assert private_fds() == mine
            alloc_pd(fd)
        ''', executable='/usr/bin/python3')

    def test_forked_child_is_detached_and_may_attach_itself(self):
        self.silent('''
            fd = open_device(); get_context(fd)
            pid = os.fork()
            if pid == 0:
                try:
                    fails(errno.EIO, alloc_pd, fd)
                    os.close(fd)
                    mine = open_device(); get_context(mine); alloc_pd(mine)
                    os._exit(0)
                except BaseException as error:
                    print(error, file=sys.stderr); os._exit(1)
            assert os.waitpid(pid, 0)[1] == 0
            alloc_pd(fd)
        ''')
        self.assertEqual(sum(m[0] == fake.HELLO for m in self.daemon.messages), 2)

    def test_forked_child_keeps_no_socket(self):
        subject = self.start('''
            fd = open_device(); get_context(fd)
            if os.fork() == 0:
                print('child', flush=True)
                sys.stdin.read()
                os._exit(0)
            time.sleep(60)
        ''')
        self.assertEqual(subject.stdout.readline(), 'child\n')
        subject.kill()
        self.assertTrue(self.daemon.wait_for_hang_up(1), 'a forked child holds the attach socket')
        subject.communicate(timeout=10)

    def test_forks_while_another_thread_opens(self):
        self.silent('''
            stop = False
            def opener():
                while not stop:
                    os.close(open_device())
            thread = threading.Thread(target=opener); thread.start()
            for i in range(40):
                pid = os.fork()
                if pid == 0:
                    os._exit(0)
                assert os.waitpid(pid, 0)[1] == 0
            stop = True
            thread.join()
        ''')

    def test_exec_ends_the_seat(self):
        self.silent('''
            open_device()
            os.execv('/bin/sleep', ['sleep', '0.2'])
        ''')
        self.assertTrue(self.daemon.wait_for_hang_up(1))

    # ---- the daemon dies, the daemon speaks

    DEATH = '''
        fd = open_device(); async_fd = get_context(fd)[0]
        print('up', flush=True)
        ready = select.select([async_fd], [], [], 10)[0]
        assert ready, 'no event'
        event = struct.unpack('<QII', os.read(async_fd, 16))
        print('event', event[1], flush=True)
    '''

    def test_daemon_death_is_device_fatal(self):
        subject = self.start(self.DEATH + '''
        sys.stdin.readline()
        os.close(fd)
        fails(errno.ENODEV, open_device)
        ''')
        self.assertEqual(subject.stdout.readline(), 'up\n')
        self.daemon.die()
        self.assertEqual(subject.stdout.readline(), 'event 8\n')
        out, err = subject.communicate('\n', timeout=20)
        self.assertEqual(subject.returncode, 0, err)
        self.assertIn('the fabric is gone', err)

    def test_events_of_the_daemon_reach_the_program(self):
        subject = self.start(self.DEATH)
        self.assertEqual(subject.stdout.readline(), 'up\n')
        self.daemon.send_event(10)
        self.assertEqual(subject.stdout.readline(), 'event 10\n')
        subject.communicate(timeout=20)
        self.assertEqual(subject.returncode, 0)

    # ---- signals

    SEGV = '''
        fd = open_device(); get_context(fd); pd = alloc_pd(fd)
        memory = ctypes.create_string_buffer(8192)
        reg_mr(fd, pd, ctypes.addressof(memory), 8192)
    '''

    def test_the_programs_own_handler_still_gets_its_faults(self):
        for when in ('before', 'after'):
            with self.subTest(when=when):
                order = ('import faulthandler; faulthandler.enable()\n' + textwrap.dedent(self.SEGV),
                         textwrap.dedent(self.SEGV) + 'import faulthandler; faulthandler.enable()\n')[when == 'after']
                out, err = self.run_subject(order + 'ctypes.string_at(16)\n', code=-11)
                self.assertIn('Segmentation fault', err)
                self.daemon.close()
        self.daemon = None

    def test_a_program_without_handler_dies_of_its_fault(self):
        out, err = self.run_subject(textwrap.dedent(self.SEGV) + 'ctypes.string_at(16)\n', code=-11)
        self.assertEqual(err, '')
        self.daemon.close()
        self.run_subject(textwrap.dedent(self.SEGV) + 'os.kill(os.getpid(), signal.SIGBUS)\ntime.sleep(5)\n', code=-7)

    def test_handlers_read_back_as_set(self):
        self.silent(textwrap.dedent(self.SEGV) + textwrap.dedent('''
            hit = []
            assert signal.getsignal(signal.SIGSEGV) == signal.SIG_DFL
            signal.signal(signal.SIGSEGV, lambda number, frame: hit.append(number))
            old = signal.signal(signal.SIGSEGV, signal.getsignal(signal.SIGSEGV))
            os.kill(os.getpid(), signal.SIGSEGV)
            assert hit == [11], hit
            libc.signal.restype = ctypes.c_void_p
            libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
            handler = libc.signal(11, 1)
            assert handler not in (0, 1, None)
            os.kill(os.getpid(), signal.SIGSEGV)
            assert libc.signal(11, handler) == 1
        '''))

    def test_faults_are_never_blocked(self):
        self.silent(textwrap.dedent(self.SEGV) + textwrap.dedent('''
            signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))
            blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
            assert signal.SIGINT in blocked and not {signal.SIGSEGV, signal.SIGBUS} & blocked, blocked
            fails(errno.EFAULT, os.write, open_device(), struct.pack('<IHHQ', 0, 4, 2, 16))
        '''))

    def test_the_thread_takes_no_signal_of_the_program(self):
        self.silent('''
            open_device()
            names = {}
            while 'weft-nic' not in names:   # it names itself when it starts
                names = {open(f'/proc/self/task/{t}/comm').read().strip(): t for t in os.listdir('/proc/self/task')}
            status = open(f'/proc/self/task/{names["weft-nic"]}/status').read()
            blocked = int(next(l for l in status.splitlines() if l.startswith('SigBlk')).split()[1], 16)
            is_blocked = lambda n: blocked >> (n - 1) & 1
            assert all(is_blocked(n) for n in (1, 2, 10, 12, 13, 14, 15, 17)), hex(blocked)
            assert not any(is_blocked(n) for n in (4, 7, 8, 11)), hex(blocked)
        ''')

    # ---- inline progress, with the real libibverbs

    def verbs(self, mode, **environment):
        self.daemon = fake.FakeDaemon()
        done = subprocess.run([SUBJECT, mode], env=self.daemon.environment(LIBRARY, **environment),
                              capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, ''))
        self.assertIsNotNone(self.daemon.wait_for(fake.BYE))

    def test_polling_drives_the_engine(self):
        self.verbs('hooks')
        self.assertGreaterEqual(self.daemon.poll_seq(), 3000)

    def test_polling_drives_nothing_without_inline_progress(self):
        self.verbs('hooks', WEFT_INLINE='0')
        self.assertLess(self.daemon.poll_seq(), 1000)

    def test_receives_posted_in_error_are_flushed(self):
        self.verbs('flush')
        self.daemon.close()
        self.verbs('flush', WEFT_INLINE='0')

    def test_contexts_come_and_go_in_threads(self):
        self.verbs('threads')

    def test_handles_of_something_else_are_left_alone(self):
        self.silent('''
            fd = open_device(); get_context(fd)
            page = ctypes.create_string_buffer(8192)
            base = ctypes.addressof(page) + 64 & ~7
            handles = [0, 1, 7, 16, 1 << 47, 0xdeadbeef000, 2**64 - 8, base, libc._handle, base + 4]
            for target in (16, base, 0xdeadbeef000, 2**64 - 64):
                ctypes.c_uint64.from_address(base).value = target
                handles.append(base)
                for handle in handles:
                    fields = struct.pack('<QIIiI', handle, 16, 0, -1, 0)
                    command(fd, 18, 10, words(6), fields)
        ''')

    # ---- idle

    def test_an_attached_program_that_sleeps_costs_nothing(self):
        self.silent('''
            open_device(); time.sleep(0.3)
            before = time.process_time()
            switches = sum(int(l.split()[1]) for t in os.listdir('/proc/self/task')
                           for l in open(f'/proc/self/task/{t}/status') if l.startswith('voluntary'))
            time.sleep(2)
            after = sum(int(l.split()[1]) for t in os.listdir('/proc/self/task')
                        for l in open(f'/proc/self/task/{t}/status') if l.startswith('voluntary'))
            assert after - switches <= 6, after - switches
            assert time.process_time() - before < 0.05
        ''')


if __name__ == '__main__':
    unittest.main(verbosity=2)
