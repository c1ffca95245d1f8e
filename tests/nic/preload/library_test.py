# SPDX-License-Identifier: Apache-2.0
"""What libweft.so is made of (nic_rules 9): the exported list, the libraries it needs, the newest glibc symbol, and that
it loads, silently, into programs that have nothing to do with RDMA."""
import os
import re
import subprocess
import sys
import unittest

LIBRARY = os.path.abspath(sys.argv.pop(1))
MAP = os.path.abspath(sys.argv.pop(1))


def tool(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def run(program, **environment):
    env = {k: v for k, v in os.environ.items() if not k.startswith('WEFT_')}
    return subprocess.run(program, env={**env, 'LD_PRELOAD': LIBRARY, **environment}, capture_output=True, text=True,
                          timeout=60)


class Library(unittest.TestCase):
    def test_exports_exactly_what_the_map_says(self):
        with open(MAP) as file:
            text = file.read()
        listed = set(re.findall(r'^\s+(\w+);', text, re.M))
        exported = {line.split()[-1].split('@')[0] for line in tool('nm', '-D', '--defined-only', LIBRARY).splitlines()}
        self.assertGreater(len(listed), 60)
        self.assertEqual(exported, listed)

    def test_exports_no_unique_or_weak_symbol(self):
        kinds = {line.split()[-2] for line in tool('nm', '-D', '--defined-only', LIBRARY).splitlines()}
        self.assertEqual(kinds, {'T'})

    def test_needs_only_libc(self):
        needed = set(re.findall(r'\(NEEDED\).*\[(.*)\]', tool('readelf', '-d', LIBRARY)))
        self.assertIn('libc.so.6', needed)
        self.assertFalse(needed - {'libc.so.6', 'ld-linux-x86-64.so.2', 'ld-linux-aarch64.so.1'}, needed)

    def test_newest_glibc_symbol_is_2_17(self):
        versions = {}
        for line in tool('nm', '-D', '--undefined-only', LIBRARY).splitlines():
            found = re.search(r'(\w+)@GLIBC_(\d+)\.(\d+)', line)
            if found:
                versions[found[1]] = (int(found[2]), int(found[3]))
        self.assertGreater(len(versions), 5)
        too_new = {name: version for name, version in versions.items() if version > (2, 17)}
        self.assertEqual(too_new, {})

    def test_needs_no_executable_stack_and_no_text_relocation(self):
        self.assertNotIn('TEXTREL', tool('readelf', '-d', LIBRARY))
        stack = [line for line in tool('readelf', '-lW', LIBRARY).splitlines() if 'GNU_STACK' in line]
        self.assertTrue(stack and 'RWE' not in stack[0], stack)

    def test_has_no_thread_local_storage(self):
        self.assertNotIn(' TLS ', tool('readelf', '-lW', LIBRARY))


class Inert(unittest.TestCase):
    """Three environments in which there is nothing to emulate."""
    ENVIRONMENTS = ({}, {'WEFT_RUN': '/nonexistent/run', 'WEFT_HOST': 'h0'}, {'WEFT_RUN': '', 'WEFT_HOST': ''})

    def test_loads_into_programs_silently(self):
        commands = (['/bin/true'], ['/bin/sh', '-c', 'cat /dev/null; ls / > /dev/null'],
                    [sys.executable, '-c', 'import os, socket, subprocess; os.stat("/"); '
                     'subprocess.run(["true"], check=True); socket.getaddrinfo("localhost", 80)'])
        for environment in self.ENVIRONMENTS:
            for command in commands:
                with self.subTest(command=command[0], environment=environment):
                    done = run(command, **environment)
                    self.assertEqual((done.returncode, done.stdout, done.stderr), (0, '', ''))

    def test_results_and_errno_pass_through(self):
        script = '''
import ctypes, errno, fcntl, os, signal
libc = ctypes.CDLL(None, use_errno=True)
def fails(code, call, *arguments):
    ctypes.set_errno(0)
    assert call(*arguments) == -1, (call, arguments)
    assert ctypes.get_errno() == code, (call.__name__, ctypes.get_errno())
fails(errno.EBADF, libc.close, 999)
fails(errno.EBADF, libc.dup2, 999, 3)
fails(errno.EBADF, libc.write, 999, b"x", 1)
fails(errno.EBADF, libc.ioctl, 999, 0)
fails(errno.ENOENT, libc.open, b"/nonexistent", 0)
fails(errno.EFAULT, libc.open, None, 0)
fails(errno.EFAULT, libc.access, None, 0)
fails(errno.EBADF, libc.fcntl, 999, fcntl.F_GETFD)
fd = os.open("/tmp", os.O_RDWR | os.O_TMPFILE, 0o640)
assert os.fstat(fd).st_mode & 0o777 == 0o640, oct(os.fstat(fd).st_mode)
assert os.write(fd, b"abc") == 3
copy = os.dup(fd)
assert fcntl.fcntl(copy, fcntl.F_DUPFD_CLOEXEC, 100) >= 100
os.close(fd); os.close(copy)
hit = []
signal.signal(signal.SIGSEGV, lambda *_: hit.append(1))
os.kill(os.getpid(), signal.SIGSEGV)
assert hit == [1]
'''
        for environment in self.ENVIRONMENTS:
            with self.subTest(environment=environment):
                done = run([sys.executable, '-c', script], **environment)
                self.assertEqual((done.returncode, done.stderr), (0, ''))

    def test_no_fabric_is_one_line(self):
        environment = {'WEFT_RUN': '/nonexistent/run', 'WEFT_HOST': 'h0', 'WEFT_NAME': 'mine'}
        done = run(['ibv_devices'], **environment)
        lines = [line for line in done.stderr.splitlines() if line.startswith('weft:')]
        self.assertEqual(len(lines), 1, done.stderr)
        self.assertIn('/nonexistent/run', lines[0])
        self.assertIn('weft up --name mine', lines[0])

    def test_a_host_name_that_leaves_the_folder_is_refused(self):
        done = run(['/bin/cat', '/sys/class/infiniband_verbs/abi_version'], WEFT_RUN='/tmp', WEFT_HOST='../etc')
        self.assertIn('weft: WEFT_RUN or WEFT_HOST', done.stderr)
        self.assertEqual(done.returncode, 1)


if __name__ == '__main__':
    unittest.main(verbosity=2)
