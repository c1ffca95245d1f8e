// SPDX-License-Identifier: Apache-2.0
//
// The switch pipeline between two process ports, without a NIC engine: what the data plane alone can carry.
//
//   switch_bench [--seconds N] [--idle-ports N] [null BYTES | stream BYTES | pingpong BYTES | spin BYTES]...     default: all of the table
//
//   null      NICs and switch in a loop between ports that copy nothing: parse, check, forward, queue, demultiplex
//   stream    one process sends frames of BYTES payload, the other answers each with an ACK; both poll
//   pingpong  one frame back and forth, both processes poll inline
//   spin      the same, but both programs spin on memory as ib_write_lat does: a sleeping thread drives each port
//
// Prints one line per case: frames/s and GB/s, or half round trips in microseconds.
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "nic/host/datapath/host_nic.h"
#include "protocols/attach/process_port.h"
#include "protocols/wire/frame_template.h"
#include "scenarios/engine/data_plane.h"
#include "switch/core/switch_core.h"

namespace weft::bench {
namespace {

constexpr uint32_t kQpn[2] = {1 << 14, 2 << 14};

double now_seconds() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

/// What both processes and the parent see.
struct Shared {
  alignas(64) std::atomic<uint32_t> stop;
  alignas(64) std::atomic<uint64_t> received;
  alignas(64) std::atomic<uint32_t> samples;
  float half_rtt_us[1 << 20];
};

template <typename T>
T* map_shared(size_t bytes, int fd = -1) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, fd < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED, fd, 0);
  if (p == MAP_FAILED) {
    perror("switch_bench: mmap");
    exit(1);
  }
  return static_cast<T*>(p);
}

struct Port {
  attach::PortLayout layout = attach::port_layout(256, 256, 4096);
  uint8_t* memory = nullptr;
  attach::NoticeRing* notices = nullptr;
  int to_daemon[2];
  int to_process[2];
  attach::ProcessPort port;
  FrameTemplate frame;

  void open(DataPlane& plane, const FabricPlan& plan, uint32_t host, uint32_t seat) {
    const int fd = memfd_create("bench", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, layout.total) != 0 || pipe2(to_daemon, O_NONBLOCK) != 0 ||
        pipe2(to_process, O_NONBLOCK) != 0) {
      perror("switch_bench");
      exit(1);
    }
    memory = map_shared<uint8_t>(layout.total, fd);
    notices = map_shared<attach::NoticeRing>(sizeof(attach::NoticeRing));
    PortSetup setup;
    setup.host = host;
    setup.seat = seat;
    setup.qpn_base = seat << 14;
    setup.layout = layout;
    setup.memory = map_shared<uint8_t>(layout.total, fd);
    setup.kick_read = to_daemon[0];
    setup.kick_write = to_process[1];
    if (const int error = plane.attach_port(setup); error != 0) {
      fprintf(stderr, "switch_bench: attach: %s\n", strerror(error));
      exit(1);
    }
    port.open(memory, layout, plane.status(), notices);
    FrameAddress address;
    address.source_mac = plan.hosts[host].nics[0].mac;
    address.destination_mac = plan.hosts[1 - host].nics[0].mac;
    address.source_gid = gid_of_ipv4(plan.hosts[host].nics[0].ipv4);
    address.destination_gid = gid_of_ipv4(plan.hosts[1 - host].nics[0].ipv4);
    frame.prepare(address);
  }

  bool send(uint32_t qpn, Opcode opcode, uint32_t psn, const uint8_t* from, uint32_t bytes) {
    const uint32_t slot = port.begin_frame(0, opcode == Opcode::kRcAcknowledge);
    if (slot == attach::kNoSlot) return false;
    TransportHeader header;
    header.opcode = opcode;
    header.dest_qpn = qpn;
    header.psn = psn & kPsnMask;
    memcpy(port.payload(slot), from, bytes);
    port.publish(slot, 0, frame.encode(header, bytes, port.headroom_end(slot)), bytes);
    return true;
  }
  void flush() {
    if (!port.flush()) return;
    const uint8_t byte = 1;
    [[maybe_unused]] const ssize_t written = write(to_daemon[1], &byte, 1);
  }
  void sleep() {
    if (!port.prepare_sleep(false)) return;
    pollfd p{to_process[0], POLLIN, 0};
    uint8_t bytes[64];
    if (poll(&p, 1, 100) > 0) [[maybe_unused]] const ssize_t got = read(to_process[0], bytes, sizeof bytes);
    port.awake();
  }
};

struct Fabric {
  FabricPlan plan;
  std::unique_ptr<DataPlane> plane;
  Port ports[2];
  std::vector<std::unique_ptr<Port>> idle;  ///< attached, and nothing else
  Shared* shared = map_shared<Shared>(sizeof(Shared));

  explicit Fabric(uint32_t idle_ports) {
    for (uint32_t i = 0; i < 2; ++i) {
      NicPlan nic;
      nic.mac = {0x02, 0x57, 0, 0, 0, static_cast<uint8_t>(i)};
      nic.ipv4 = 0xC6120001 + i;
      plan.hosts.push_back({"h" + std::to_string(i), {nic}});
    }
    std::string error;
    plane = start_data_plane(plan, error);
    if (plane == nullptr) {
      fprintf(stderr, "switch_bench: %s\n", error.c_str());
      exit(1);
    }
    for (uint32_t i = 0; i < 2; ++i) ports[i].open(*plane, plan, i, i + 1);
    idle.resize(idle_ports);
    for (uint32_t i = 0; i < idle_ports; ++i) {
      idle[i] = std::make_unique<Port>();
      idle[i]->open(*plane, plan, i % 2, i + 3);
    }
  }
};

void stream_sender(Fabric& f, uint32_t bytes) {
  Port& p = f.ports[0];
  std::vector<uint8_t> memory(1 << 16, 1);
  uint32_t psn = 0;
  while (f.shared->stop.load(std::memory_order_relaxed) == 0) {
    p.port.note_poll();
    uint32_t work = 0;
    attach::ReceivedFrame ack;
    while (work < 64 && p.port.receive(ack)) {
      p.port.release(ack.slot);
      ++work;
    }
    for (uint32_t i = 0; i < 32 && p.send(kQpn[1], Opcode::kRcSendMiddle, psn, &memory[psn % 16 * 4096], bytes); ++i) {
      ++psn;
      ++work;
    }
    p.flush();
    if (work == 0) sched_yield();
  }
}

void stream_receiver(Fabric& f) {
  Port& p = f.ports[1];
  std::vector<uint8_t> memory(1 << 16);
  uint64_t count = 0;
  uint64_t owed = 0;
  while (f.shared->stop.load(std::memory_order_relaxed) == 0) {
    p.port.note_poll();
    uint32_t work = 0;
    attach::ReceivedFrame frame;
    while (work < 64 && p.port.receive(frame)) {
      memcpy(&memory[count % 16 * 4096], frame.payload, frame.payload_bytes);
      p.port.release(frame.slot);
      ++count;
      ++work;
      ++owed;
    }
    while (owed > 0 && p.send(kQpn[0], Opcode::kRcAcknowledge, 0, memory.data(), 0)) --owed;
    p.flush();
    f.shared->received.store(count, std::memory_order_relaxed);
    if (work == 0) sched_yield();
  }
}

void pingpong(Fabric& f, uint32_t me, uint32_t bytes) {
  Port& p = f.ports[me];
  std::vector<uint8_t> memory(4096, 1);
  uint32_t sample = 0;
  double sent_at = now_seconds();
  if (me == 0) {
    p.send(kQpn[1], Opcode::kRcSendOnly, 0, memory.data(), bytes);
    p.flush();
  }
  while (f.shared->stop.load(std::memory_order_relaxed) == 0) {
    p.port.note_poll();
    attach::ReceivedFrame frame;
    if (!p.port.receive(frame)) {
      sched_yield();
      continue;
    }
    p.port.release(frame.slot);
    if (me == 0) {
      const double t = now_seconds();
      if (sample < 1 << 20) f.shared->half_rtt_us[sample++] = static_cast<float>((t - sent_at) * 0.5e6);
      f.shared->samples.store(sample, std::memory_order_relaxed);
      sent_at = t;
    }
    p.send(kQpn[1 - me], Opcode::kRcSendOnly, 0, memory.data(), bytes);
    p.flush();
  }
}

/// The program only looks at a word of its memory; a thread of its own does everything else.
void spin(Fabric& f, uint32_t me, uint32_t bytes) {
  Port& p = f.ports[me];
  std::atomic<uint32_t> word{0};
  std::atomic_flag lock = ATOMIC_FLAG_INIT;
  std::atomic<bool> done{false};
  std::vector<uint8_t> memory(4096, 1);
  std::thread thread([&] {
    while (!done.load()) {
      attach::ReceivedFrame frame;
      bool any = false;
      while (lock.test_and_set(std::memory_order_acquire)) sched_yield();
      while (p.port.receive(frame)) {
        p.port.release(frame.slot);
        any = true;
      }
      p.flush();
      lock.clear(std::memory_order_release);
      if (any) word.fetch_add(1, std::memory_order_release);
      p.sleep();
    }
  });
  uint32_t sample = 0;
  uint32_t seen = 0;
  const auto post = [&] {
    while (lock.test_and_set(std::memory_order_acquire)) sched_yield();
    p.send(kQpn[1 - me], Opcode::kRcSendOnly, 0, memory.data(), bytes);
    p.flush();
    lock.clear(std::memory_order_release);
  };
  double sent_at = now_seconds();
  if (me == 0) post();
  while (f.shared->stop.load(std::memory_order_relaxed) == 0) {
    if (word.load(std::memory_order_acquire) == seen) continue;
    ++seen;
    if (me == 0) {
      const double t = now_seconds();
      if (sample < 1 << 20) f.shared->half_rtt_us[sample++] = static_cast<float>((t - sent_at) * 0.5e6);
      f.shared->samples.store(sample, std::memory_order_relaxed);
      sent_at = t;
    }
    post();
  }
  done = true;
  thread.join();
}

void print_latency(const char* name, uint32_t bytes, Shared& s) {
  std::vector<float> v(s.half_rtt_us, s.half_rtt_us + s.samples.load());
  std::sort(v.begin(), v.end());
  if (v.empty()) {
    printf("%-9s %5u B: nothing came back\n", name, bytes);
    return;
  }
  const auto at = [&](double q) { return v[static_cast<size_t>(q * static_cast<double>(v.size() - 1))]; };
  printf("%-9s %5u B: half round trip p50 %.2f p90 %.2f p99 %.2f max %.0f us (%zu samples)\n", name, bytes, at(0.5),
         at(0.9), at(0.99), v.back(), v.size());
}

void print_driver(DataPlane& plane) {
  printf("         ");
  uint64_t cpu_ns = 0;
  uint64_t frames = 0;
  for (const MetricSample& m : plane.metrics()) {
    if (m.name == "driver_cpu_ns") cpu_ns = m.value;
    if (m.name == "nic_tx_packets") frames += m.value;
    if (m.name.rfind("driver_", 0) == 0 || m.name == "packets_parked") {
      printf(" %s %llu", m.name.c_str(), static_cast<unsigned long long>(m.value));
    }
  }
  printf(" (%.0f ns of the data plane a frame)\n", static_cast<double>(cpu_ns) / static_cast<double>(frames));
}

void run(const std::string& name, uint32_t bytes, double seconds, uint32_t idle_ports) {
  Fabric f(idle_ports);
  fflush(stdout);
  pid_t children[2];
  for (uint32_t me = 0; me < 2; ++me) {
    children[me] = fork();
    if (children[me] != 0) continue;
    if (name == "stream") {
      me == 0 ? stream_sender(f, bytes) : stream_receiver(f);
    } else if (name == "pingpong") {
      pingpong(f, me, bytes);
    } else {
      spin(f, me, bytes);
    }
    _exit(0);
  }
  usleep(200'000);
  const uint64_t before = f.shared->received.load();
  const double start = now_seconds();
  usleep(static_cast<useconds_t>(seconds * 1e6));
  const double elapsed = now_seconds() - start;
  const uint64_t frames = f.shared->received.load() - before;
  f.shared->stop = 1;
  for (const pid_t child : children) waitpid(child, nullptr, 0);
  if (name == "stream") {
    printf("%-9s %5u B: %.2f M frames/s %.2f GB/s\n", name.c_str(), bytes, static_cast<double>(frames) / elapsed / 1e6,
           static_cast<double>(frames) * bytes / elapsed / 1e9);
  } else {
    print_latency(name.c_str(), bytes, *f.shared);
  }
  print_driver(*f.plane);
}

// --- the pipeline alone -------------------------------------------------------------------------------------------------

/// Ports whose frames are one prepared frame and whose deliveries go nowhere.
struct NullPort final : attach::FramePort {
  uint32_t take(uint8_t, std::span<attach::TakenFrame> out) override {
    for (attach::TakenFrame& frame : out) {
      const PacketRef packet = arena->allocate();
      (*arena)[packet] = PacketDescriptor{};
      frame = {packet, header_bytes, payload_bytes, headers};
    }
    return static_cast<uint32_t>(out.size());
  }
  uint32_t deliver(std::span<const PacketRef> packets) override {
    for (const PacketRef packet : packets) arena->release(packet);
    delivered += packets.size();
    return static_cast<uint32_t>(packets.size());
  }
  bool collect() override { return false; }
  void notice(const attach::Notice&) override {}

  PacketArena* arena = nullptr;
  uint32_t header_bytes = 0;
  uint32_t payload_bytes = 0;
  uint8_t bytes[attach::kMaxFrameHeaderBytes]{};
  const uint8_t* headers = nullptr;
  uint64_t delivered = 0;
};

struct NoBytes final : attach::FrameBytes, nic::NicDrops {
  std::span<const uint8_t> headers(PacketRef) const override { return {}; }
  std::span<const uint8_t> payload(PacketRef) const override { return {}; }
  bool park(PacketRef) override { return true; }
  PacketRef clone(PacketRef) override { return kNoPacket; }
  void release(PacketRef) override {}
  void dropped(Instant, PacketRef packet, DropReason, uint32_t) override {
    arena->release(packet);
    ++drops;
  }
  PacketArena* arena = nullptr;
  uint64_t drops = 0;
};

void run_null(uint32_t bytes, double seconds) {
  PacketArena arena;
  if (!arena.reserve(4096)) exit(1);
  NoBytes store;
  store.arena = &arena;
  nic::AddressMap map;
  const std::vector<nic::EndpointAddress> hosts = {{{2, 0x57, 0, 0, 0, 0}, 0xC6120001}, {{2, 0x57, 0, 0, 0, 1}, 0xC6120002}};
  if (!map.build(hosts)) exit(1);
  fabric::SwitchSettings settings;
  settings.ports = settings.endpoints = 2;
  fabric::SwitchCore core(settings, arena);
  std::vector<std::unique_ptr<nic::HostNic>> nics;
  NullPort ports[2];
  nic::NicSeat seats[2];
  for (uint32_t i = 0; i < 2; ++i) {
    core.set_route(i, static_cast<fabric::SwitchPort>(i));
    nic::HostNicSettings nic_settings;
    nic_settings.identity = {i, hosts[i]};
    nics.push_back(std::make_unique<nic::HostNic>(nic_settings, arena, store, map, store));
    ports[i].arena = &arena;
    FrameAddress address{hosts[1 - i].mac, hosts[i].mac, gid_of_ipv4(hosts[i].ipv4), gid_of_ipv4(hosts[1 - i].ipv4)};
    FrameTemplate frame;
    frame.prepare(address);
    TransportHeader header;
    header.dest_qpn = kQpn[1 - i];
    uint8_t* const end = ports[i].bytes + sizeof ports[i].bytes;
    ports[i].header_bytes = frame.encode(header, bytes, end);
    ports[i].payload_bytes = bytes;
    ports[i].headers = end - ports[i].header_bytes;
    seats[i].port = &ports[i];
    seats[i].qpn_base = kQpn[i];
    if (!nics[i]->attach(seats[i])) exit(1);
  }
  const double start = now_seconds();
  const Instant now{};
  while (now_seconds() - start < seconds) {
    for (int round = 0; round < 1000; ++round) {
      const uint32_t from = static_cast<uint32_t>(round & 1);
      PacketRef burst[attach::kBurst];
      const uint32_t count = nics[from]->collect(now, seats[from], 0, burst);
      for (uint32_t i = 0; i < count; ++i) core.receive(now, static_cast<fabric::SwitchPort>(from), burst[i]);
      for (fabric::SwitchPort port; (port = core.take_ready_port()) != fabric::kNoSwitchPort;) {
        for (PacketRef p; (p = core.transmit(now, port)) != kNoPacket;) nics[port]->receive(now, p);
        nics[port]->deliver(now);
      }
    }
  }
  const double elapsed = now_seconds() - start;
  const double frames = static_cast<double>(ports[0].delivered + ports[1].delivered);
  printf("%-9s %5u B: %.2f M frames/s, %.1f ns a frame, %llu drops\n", "null", bytes, frames / elapsed / 1e6,
         elapsed * 1e9 / frames, static_cast<unsigned long long>(store.drops));
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) {
  double seconds = 2;
  uint32_t idle_ports = 0;
  std::vector<std::pair<std::string, uint32_t>> cases;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string word = argv[i];
    if (word == "--seconds") {
      seconds = atof(argv[i + 1]);
    } else if (word == "--idle-ports") {
      idle_ports = static_cast<uint32_t>(std::clamp(atoi(argv[i + 1]), 0, 900));
    } else if (word == "null" || word == "stream" || word == "pingpong" || word == "spin") {
      cases.emplace_back(word, std::min(4096, atoi(argv[i + 1]) / 4 * 4));
    } else {
      fprintf(stderr, "usage: switch_bench [--seconds N] [--idle-ports N] [null BYTES | stream BYTES | pingpong BYTES | spin BYTES]...\n");
      return 2;
    }
  }
  if (cases.empty()) cases = {{"null", 64}, {"stream", 4096}, {"stream", 64}, {"pingpong", 8}, {"pingpong", 4096}, {"spin", 8}};
  for (const auto& [name, bytes] : cases) {
    name == "null" ? weft::bench::run_null(bytes, seconds) : weft::bench::run(name, bytes, seconds, idle_ports);
  }
  return 0;
}
