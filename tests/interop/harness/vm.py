# SPDX-License-Identifier: Apache-2.0
"""A small virtual machine with Linux's own soft-RoCE: a real RoCE v2 peer.

    files = build(cache_folder)                    kernel and initramfs; Skip when this machine cannot make them
    vm = Vm(fabric_like, files, address, tap, script)

It boots in ten seconds under software emulation, runs a script as root and powers off. rxe0 sits on eth0, which is the tap;
eth1 is for the programs' own TCP: inside, 192.168.76.2 is this machine's loopback, and ports in `forward` lead inside.
"""
import base64
import glob
import os
import shutil
import subprocess
import tempfile

from .process import Failure, Process, Skip

MODULES = "virtio_pci virtio_net crc32_generic rdma_rxe ib_uverbs"
TOOLS = ("ibv_devinfo", "ibv_rc_pingpong", "ib_send_bw", "ib_write_bw", "ib_read_bw", "ib_atomic_bw")
LIBRARIES = "usr/lib/x86_64-linux-gnu"

INIT = f"""#!/bin/sh
export PATH=/usr/bin:/bin:/sbin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev; mount -t tmpfs tmp /tmp
mkdir -p /dev/shm; mount -t tmpfs shm /dev/shm
for w in $(cat /proc/cmdline); do case $w in vm.*=*) eval "$(echo "${{w#vm.}}" | sed 's/=/="/; s/$/"/')";; esac; done
for m in {MODULES}; do modprobe $m; done
echo "root:x:0:0:root:/:/bin/sh" >/etc/passwd; ulimit -l unlimited
ip link set lo up
ip link set eth0 up mtu "$mtu"; ip addr add "$ip" dev eth0
ip link set eth1 up; ip addr add 192.168.76.15/24 dev eth1
rdma link add rxe0 type rxe netdev eth0
echo "$cmd" | base64 -d >/tmp/cmd
echo "== ready"; sh /tmp/cmd; echo "== exit $?"
poweroff -f
"""


def call(argv, **options):
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
    if done.returncode != 0:
        raise Skip(f"{argv[0]} failed: {(done.stderr or done.stdout).strip().splitlines()[-1:]}")
    return done.stdout


def build(folder):
    """vmlinuz and initrd.gz in `folder`, made once."""
    if os.path.exists(os.path.join(folder, "initrd.gz")):
        return folder
    for tool in ("qemu-system-x86_64", "apt-get", "dpkg-deb", "depmod", "modprobe", "cpio", "busybox", "ib_write_bw", "rdma"):
        if shutil.which(tool) is None:
            raise Skip(f"no {tool}; packages: qemu-system-x86 busybox-static kmod cpio perftest ibverbs-utils iproute2")
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        depends = call(["apt-cache", "depends", "linux-image-amd64"])
        package = next((line.split()[1] for line in depends.splitlines() if "Depends:" in line), None)
        if package is None:
            raise Skip("apt knows no linux-image-amd64; apt-get update")
        call(["apt-get", "-qq", "download", package], cwd=work)
        kernel, root = os.path.join(work, "kernel"), os.path.join(work, "root")
        call(["dpkg-deb", "-x", *glob.glob(os.path.join(work, "*.deb")), kernel])
        version = package[len("linux-image-"):]
        fill_root(root, kernel, version)
        names = "\n".join(os.path.relpath(os.path.join(top, name), root)
                          for top, folders, files in os.walk(root) for name in folders + files)
        archive = subprocess.run(["cpio", "-o", "-H", "newc", "--quiet"], cwd=root, input=names.encode(), stdout=subprocess.PIPE, check=True)
        shutil.copy(os.path.join(kernel, "boot", "vmlinuz-" + version), os.path.join(folder, "vmlinuz"))
        packed = subprocess.run(["gzip", "-1"], input=archive.stdout, stdout=subprocess.PIPE, check=True).stdout
        with open(os.path.join(folder, "initrd.new"), "wb") as file:
            file.write(packed)
        os.rename(os.path.join(folder, "initrd.new"), os.path.join(folder, "initrd.gz"))
    return folder


def fill_root(root, kernel, version):
    for name in ("bin", "sbin", "lib64", "etc/libibverbs.d", "proc", "sys", "dev", "tmp", "usr/bin", LIBRARIES + "/libibverbs"):
        os.makedirs(os.path.join(root, name))
    os.makedirs(os.path.join(root, "lib/modules", version))
    shutil.copy(shutil.which("busybox"), os.path.join(root, "bin/busybox"))
    for name in call(["busybox", "--list"]).split():
        if name != "busybox":
            os.symlink("busybox", os.path.join(root, "bin", name))
    copy_modules(root, kernel, version)
    programs = [os.path.realpath(shutil.which(tool)) for tool in (*TOOLS, "ip", "rdma", "tc") if shutil.which(tool)]
    wanted = set(glob.glob("/lib/x86_64-linux-gnu/libgcc_s.so.1"))
    for tool in (*TOOLS, "ip", "rdma", "tc"):
        if os.path.lexists(os.path.join(root, "bin", tool)):
            os.unlink(os.path.join(root, "bin", tool))
    for tool, path in zip([t for t in (*TOOLS, "ip", "rdma", "tc") if shutil.which(t)], programs):
        shutil.copy(path, os.path.join(root, "usr/bin", tool))
        wanted |= {line.split("=> ")[1].split()[0] for line in call(["ldd", path]).splitlines() if "=> /" in line}
    for path in sorted(wanted):
        shutil.copy(os.path.realpath(path), os.path.join(root, LIBRARIES, os.path.basename(path)))
    shutil.copy(os.path.realpath("/lib64/ld-linux-x86-64.so.2"), os.path.join(root, "lib64/ld-linux-x86-64.so.2"))
    for path in glob.glob(f"/{LIBRARIES}/libibverbs/librxe-rdmav*.so"):
        shutil.copy(os.path.realpath(path), os.path.join(root, LIBRARIES, "libibverbs", os.path.basename(path)))
    shutil.copy("/etc/libibverbs.d/rxe.driver", os.path.join(root, "etc/libibverbs.d/"))
    os.symlink("../" + LIBRARIES, os.path.join(root, "lib/x86_64-linux-gnu"))
    with open(os.path.join(root, "init"), "w", encoding="ascii") as file:
        file.write(INIT)
    os.chmod(os.path.join(root, "init"), 0o755)


def copy_modules(root, kernel, version):
    call(["depmod", "-b", kernel, version])
    target = os.path.join(root, "lib/modules", version)
    for path in glob.glob(os.path.join(kernel, "lib/modules", version, "modules.*")):
        shutil.copy(path, target)
    for module in MODULES.split():
        for line in call(["modprobe", "-S", version, "-d", kernel, "--show-depends", module]).splitlines():
            if not line.startswith("insmod"):
                continue
            path = line.split()[1]
            copy = os.path.join(root, os.path.relpath(path, kernel))
            os.makedirs(os.path.dirname(copy), exist_ok=True)
            shutil.copy(path, copy)
    call(["depmod", "-b", root, version])


def start(files, address, tap, script, forward=(), mtu=9000, wrap=()):
    """Boots it; the Process prints the script's output between '== ready' and '== exit N'."""
    net = "user,id=oob,net=192.168.76.0/24,host=192.168.76.2" + "".join(f",hostfwd=tcp:127.0.0.1:{p}-:{p}" for p in forward)
    command = base64.b64encode(script.encode()).decode()
    return Process([*wrap, "qemu-system-x86_64", "-accel", "tcg", "-m", "512", "-smp", "1", "-nographic", "-no-reboot",
                    "-kernel", os.path.join(files, "vmlinuz"), "-initrd", os.path.join(files, "initrd.gz"),
                    "-netdev", f"tap,id=f,ifname={tap},script=no,downscript=no",
                    "-device", "virtio-net-pci,netdev=f,mac=52:54:00:00:00:64,host_mtu=9000",
                    "-netdev", net, "-device", "virtio-net-pci,netdev=oob,mac=52:54:00:00:01:64",
                    "-append", f"console=ttyS0 panic=-1 quiet vm.ip={address} vm.mtu={mtu} vm.cmd={command}"])


def expect_exit(vm, code=0):
    text = vm.stdout.replace("\r", "")
    if f"== exit {code}\n" not in text:
        raise Failure(f"the virtual machine's script did not end with {code}:\n" + text[-3000:])
