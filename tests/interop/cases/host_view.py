# SPDX-License-Identifier: Apache-2.0
"""Every host is a machine: its own ports, addresses, name and number, for programs that know nothing of Weft."""
import http.client
import json
import shutil

from harness.pair import expect_rows, run_tool
from harness.process import Failure, Skip, listening_at, new_port, wait_until
from harness.report import Case

IPERF_PORT, PERFTEST_PORT = 5201, 18515


def fabric_of_three(context):
    return context.make_fabric(hosts=3)


def loopbacks(fabric):
    return {host["name"]: host["loopback"] for host in fabric.show("hosts")["hosts"]}


def address(fabric, host):
    return next(h["nics"][0]["ipv4"] for h in fabric.show("hosts")["hosts"] if h["name"] == host)


def wait_at(where, port, server):
    wait_until(lambda: listening_at(where, port) or not server.running(), 20,
               lambda: f"nobody listens at {where}:{port}: {server.describe()}")
    if not listening_at(where, port):
        raise Failure(f"ended before it listened: {server.describe()}")


def iperf3_on_three_hosts(context):
    """The same port on every host, clients across, and each end names the other's fabric address."""
    if not shutil.which("iperf3"):
        raise Skip("no iperf3")
    with fabric_of_three(context) as fabric:
        at = loopbacks(fabric)
        servers = {host: fabric.start(host, ["iperf3", "-s", "-1", "--json"]) for host in at}
        for host, server in servers.items():
            wait_at(at[host], IPERF_PORT, server)
        hosts = list(at)
        for client_host, server_host in zip(hosts[1:] + hosts[:1], hosts):
            client = fabric.start(client_host, ["iperf3", "-c", server_host, "-n", "2M", "--json"])
            report = json.loads(client.wait(30).expect_exit(0).stdout)
            ends = report["start"]["connected"][0]
            expected = (address(fabric, client_host), address(fabric, server_host), IPERF_PORT)
            if (ends["local_host"], ends["remote_host"], ends["remote_port"]) != expected:
                raise Failure(f"{client_host} to {server_host}: {ends}")
            seen = json.loads(servers[server_host].wait(30).expect_exit(0).stdout)["start"]["accepted_connection"]["host"]
            if seen != expected[0]:
                raise Failure(f"{server_host} saw {seen}, not {expected[0]}")


def iperf3_datagrams(context):
    if not shutil.which("iperf3"):
        raise Skip("no iperf3")
    with fabric_of_three(context) as fabric:
        server = fabric.start("h2", ["iperf3", "-s", "-1"])
        wait_at(loopbacks(fabric)["h2"], IPERF_PORT, server)
        client = fabric.start("h0", ["iperf3", "-c", "h2", "-u", "-b", "100M", "-n", "1M", "--json"])
        udp = json.loads(client.wait(30).expect_exit(0).stdout)["end"]["sum"]
        if udp["packets"] == 0 or udp["lost_packets"] == udp["packets"]:
            raise Failure(f"no datagram arrived: {udp}")
        server.wait(30).expect_exit(0)


def perftest_servers_on_one_port(context):
    """Servers of two hosts at the default port at once; a client on each, both at the same time."""
    fabric = context.shared_fabric()
    at = loopbacks(fabric)
    tool = ["ib_write_bw", "-s", "4096", "-n", "200"]
    servers = {host: fabric.start(host, tool) for host in ("h0", "h1")}
    for host, server in servers.items():
        wait_at(at[host], PERFTEST_PORT, server)
    clients = [fabric.start(client, tool + [server]) for client, server in (("h1", "h0"), ("h0", "h1"))]
    for process in clients + list(servers.values()):
        process.wait(60).expect_exit(0).expect_quiet()
    for client in clients:
        expect_rows(client, [4096], 200, 2)


def perftest_by_address(context):
    """By the address that the NIC has, and from a host to itself."""
    fabric = context.shared_fabric()
    server = fabric.start("h0", ["ib_send_lat", "-n", "20"])
    wait_at(loopbacks(fabric)["h0"], PERFTEST_PORT, server)
    fabric.start("h1", ["ib_send_lat", "-n", "20", address(fabric, "h0")]).wait(60).expect_exit(0).expect_quiet()
    server.wait(60).expect_exit(0).expect_quiet()
    server = fabric.start("h0", ["ib_send_lat", "-n", "20"])
    wait_at(loopbacks(fabric)["h0"], PERFTEST_PORT, server)
    fabric.start("h0", ["ib_send_lat", "-n", "20", "localhost"]).wait(60).expect_exit(0).expect_quiet()
    server.wait(60).expect_exit(0).expect_quiet()


def get(where, port):
    connection = http.client.HTTPConnection(where, port, timeout=10)
    connection.request("GET", "/etc/hostname")
    return connection.getresponse().read().decode()


def curl(fabric, host, url):
    process = fabric.start(host, ["curl", "-sS", url])
    process.wait(20)
    return process


def web_servers(context):
    """One port on two hosts; reached from outside at the addresses that `weft show hosts` prints, and by localhost inside."""
    if not shutil.which("curl"):
        raise Skip("no curl")
    fabric = context.shared_fabric()
    at = loopbacks(fabric)
    port = new_port()
    servers = {host: fabric.start(host, ["python3", "-m", "http.server", str(port), "--directory", "/"]) for host in ("h0", "h1")}
    for host, server in servers.items():
        wait_at(at[host], port, server)
    for host in servers:
        if get(at[host], port) != host + "\n":
            raise Failure(f"{at[host]}:{port} is not {host}'s server")
        for client, url in ((host, "localhost"), ("h1" if host == "h0" else "h0", host)):
            process = curl(fabric, client, f"http://{url}:{port}/etc/hostname").expect_exit(0)
            if process.stdout != host + "\n":
                raise Failure(f"{client} got {process.stdout!r} from {url}, not {host}")
    for server in servers.values():
        server.stop()


def server_at_127_0_0_1(context):
    """Bound to 127.0.0.1 inside a host: its own programs reach it, by localhost; other hosts do not by the host's name."""
    fabric = context.shared_fabric()
    port = new_port()
    server = fabric.start("h1", ["python3", "-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", "/"])
    wait_at("127.0.0.1", port, server)
    process = curl(fabric, "h1", f"http://localhost:{port}/etc/hostname").expect_exit(0)
    if process.stdout != "h1\n":
        raise Failure(f"got {process.stdout!r}")
    process = curl(fabric, "h0", f"http://h1:{port}/etc/hostname")
    if process.popen.returncode != 7:  # could not connect
        raise Failure(f"h0 reached what listens at h1's 127.0.0.1: {process.describe()}")
    server.stop()


def fabrics_side_by_side(context):
    """Two fabrics have the same names and addresses, and nothing in common."""
    with context.make_fabric() as one, context.make_fabric() as other:
        places = [loopbacks(fabric)["h0"] for fabric in (one, other)]
        if places[0] == places[1]:
            raise Failure(f"both at {places[0]}")
        tool = ["ib_write_lat", "-n", "20"]
        servers = [fabric.start("h0", tool) for fabric in (one, other)]
        for place, server in zip(places, servers):
            wait_at(place, PERFTEST_PORT, server)
        clients = [fabric.start("h1", tool + ["h0"]) for fabric in (one, other)]
        for process in clients + servers:
            process.wait(60).expect_exit(0).expect_quiet()
    if listening_at(places[0], PERFTEST_PORT):
        raise Failure("a server was left behind")


def shared_tcp(context):
    """Turned off for a fabric, and for one program of a fabric that has it on."""
    script = ("import socket; s = socket.socket(); s.bind(('', 0)); "
              "print(s.getsockname()[0], socket.gethostbyname('h1'), socket.gethostname())")

    def said(fabric, words, env=None):
        process = fabric.call("run", *words, "--", "python3", "-c", script, env=env).expect_exit(0)
        return process.stdout.split()

    fabric = context.shared_fabric()
    place = loopbacks(fabric)["h1"]
    for got, expected in ((said(fabric, ["h0"]), ["198.18.0.1", "198.18.0.2", "h0"]),
                          (said(fabric, ["h0", "--shared-tcp"]), ["0.0.0.0", place, "h0"]),
                          (said(fabric, ["h0"], {"WEFT_SHARED_TCP": "1"}), ["0.0.0.0", place, "h0"])):
        if got != expected:
            raise Failure(f"{got}, expected {expected}")
    with context.make_fabric(["--shared-tcp"]) as shared:
        if said(shared, ["h0"]) != ["0.0.0.0", "127.0.0.1", "h0"] or loopbacks(shared)["h1"] != "127.0.0.1":
            raise Failure(f"weft up --shared-tcp: {said(shared, ['h0'])}")
        run_tool(shared, ["ib_write_bw", "-n", "20"])


def names_and_numbers(context):
    fabric = context.shared_fabric()
    words = {}
    for host in ("h0", "h1"):
        script = "hostname; uname -n; cat /etc/hostname /proc/sys/kernel/hostname; cat /proc/sys/kernel/random/boot_id"
        words[host] = fabric.start(host, ["sh", "-c", script]).wait(20).expect_exit(0).stdout.split()
        if words[host][:4] != [host] * 4:
            raise Failure(f"{host} calls itself {words[host]}")
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        numbers = {words["h0"][4], words["h1"][4], file.read().strip()}
    if len(numbers) != 3:
        raise Failure(f"boot ids {numbers}")


def one_program_for_two_hosts(context):
    """rxe0 is h0's, rxe1 is h1's: a server on the one and a client on the other, under one `weft run`."""
    fabric = context.shared_fabric()
    words = fabric.start("h0,h1", ["sh", "-c", "hostname; ls /sys/class/net; cat /sys/class/infiniband/rxe*/ports/1/gids/1; ibv_devices"])
    said = words.wait(20).expect_exit(0).stdout.split()
    for word in ("h0", "weft0", "weft1", "rxe0", "rxe1", "0000:0000:0000:0000:0000:ffff:c612:0001", "0000:0000:0000:0000:0000:ffff:c612:0002"):
        if word not in said:
            raise Failure(f"no {word}: {words.describe()}")
    before = switched(fabric)
    process = fabric.start("h0,h1", [context.program("two_hosts")]).wait(60).expect_exit(0).expect_quiet()
    if switched(fabric) - before < 4 * 100000 // 4096:
        raise Failure(f"h0 sent fewer frames than its messages have: {process.describe()}")
    for place, text in (("h0,h9", "h9"), ("h0,h0", "twice"), ("h0,", "''")):
        refused = fabric.call("run", place, "--", "true")
        if refused.popen.returncode != 125 or text not in refused.stderr:
            raise Failure(f"weft run {place}: {refused.describe()}")


def second_nics(context):
    """`weft up --nics 2`: each host has rxe1 and weft1 too, with an address that names the same machine."""
    with context.make_fabric(["--nics", "2"]) as fabric:
        second = fabric.show("hosts")["hosts"][0]["nics"][1]
        if (second["device"], second["netdev"]) != ("rxe1", "weft1"):
            raise Failure(f"the second NIC is {second}")
        tool = ["ib_write_bw", "-d", "rxe1", "-n", "100"]
        server = fabric.start("h0", tool)
        wait_at(loopbacks(fabric)["h0"], PERFTEST_PORT, server)
        fabric.start("h1", tool + [second["ipv4"]]).wait(60).expect_exit(0).expect_quiet()
        server.wait(60).expect_exit(0).expect_quiet()
        sent = {m["labels"]["nic"]: m["value"] for m in fabric.show("metrics") if m["name"] == "nic_tx_packets" and
                m["labels"]["host"] == "h1" and m["value"]}
        if set(sent) != {"rxe1"}:
            raise Failure(f"frames left h1 by {sent}")


def switched(fabric):
    """Frames that h0's NIC sent into the fabric."""
    return sum(m["value"] for m in fabric.show("metrics") if m["name"] == "nic_tx_packets" and m["labels"]["host"] == "h0")


def cases():
    ci = ("ci", "full", "host-view")
    yield Case("host-view/iperf3-on-three-hosts", iperf3_on_three_hosts, ci, 120)
    yield Case("host-view/iperf3-datagrams", iperf3_datagrams, ci)
    yield Case("host-view/perftest-servers-on-one-port", perftest_servers_on_one_port, ci + ("user",), 120)
    yield Case("host-view/perftest-by-address", perftest_by_address, ci)
    yield Case("host-view/web-servers", web_servers, ci)
    yield Case("host-view/server-at-127.0.0.1", server_at_127_0_0_1, ci)
    yield Case("host-view/fabrics-side-by-side", fabrics_side_by_side, ci, 120)
    yield Case("host-view/shared-tcp", shared_tcp, ci)
    yield Case("host-view/second-nics", second_nics, ci)
    yield Case("host-view/one-program-for-two-hosts", one_program_for_two_hosts, ci)
    yield Case("host-view/names-and-numbers", names_and_numbers, ci + ("user",))
