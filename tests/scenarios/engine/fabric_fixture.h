// SPDX-License-Identifier: Apache-2.0
//
// A live fabric in the test's own process, and ports on it as a program would have them.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include "protocols/attach/process_port.h"
#include "protocols/wire/frame_template.h"
#include "protocols/wire/roce_frame.h"
#include "scenarios/engine/data_plane.h"

namespace weft::test {

inline FabricPlan make_plan(uint32_t hosts) {
  FabricPlan plan;
  plan.name = "test";
  for (uint32_t i = 0; i < hosts; ++i) {
    NicPlan nic;
    nic.mac = {0x02, 0x57, 0, 0, static_cast<uint8_t>(i >> 8), static_cast<uint8_t>(i)};
    nic.ipv4 = 0xC6120001 + i;
    plan.hosts.push_back({"h" + std::to_string(i), {nic}});
  }
  return plan;
}

inline std::unique_ptr<DataPlane> start(const FabricPlan& plan) {
  std::string error;
  std::unique_ptr<DataPlane> plane = start_data_plane(plan, error);
  INFO(error);
  REQUIRE(plane != nullptr);
  return plane;
}

inline double seconds_now() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

/// The sum of a metric over all samples that have these labels.
inline uint64_t metric(DataPlane& plane, const std::string& name,
                       const std::vector<std::pair<std::string, std::string>>& labels = {}) {
  uint64_t sum = 0;
  for (const MetricSample& sample : plane.metrics()) {
    bool match = sample.name == name;
    for (const auto& wanted : labels) {
      bool found = false;
      for (const auto& label : sample.labels) found = found || label == wanted;
      match = match && found;
    }
    if (match) sum += sample.value;
  }
  return sum;
}

/// One attached process: the port as a program maps it, the pipes, and the sleeping protocol of nic_rules 3.
class TestProcess {
 public:
  TestProcess(DataPlane& plane, const FabricPlan& plan, HostIndex host, SeatId seat, uint32_t tx_slots = 256,
              uint32_t rx_slots = 256)
      : plane_(plane), plan_(plan), host_(host), seat_(seat),
        layout_(attach::port_layout(tx_slots, rx_slots, attach::kDefaultSlotPayload)) {
    port_fd_ = memfd_create("test-port", MFD_CLOEXEC);
    notice_fd_ = memfd_create("test-notices", MFD_CLOEXEC);
    REQUIRE(ftruncate(port_fd_, layout_.total) == 0);
    REQUIRE(ftruncate(notice_fd_, sizeof(attach::NoticeRing)) == 0);
    memory_ = map(port_fd_, layout_.total, PROT_READ | PROT_WRITE);
    notices_ = reinterpret_cast<attach::NoticeRing*>(map(notice_fd_, sizeof(attach::NoticeRing), PROT_READ));
    int to_daemon[2];
    int to_process[2];
    REQUIRE(pipe2(to_daemon, O_CLOEXEC | O_NONBLOCK) == 0);
    REQUIRE(pipe2(to_process, O_CLOEXEC | O_NONBLOCK) == 0);
    kick_write_ = to_daemon[1];
    kick_read_ = to_process[0];
    setup_.host = host;
    setup_.seat = seat;
    setup_.qpn_base = (seat + 1) << 14;
    setup_.layout = layout_;
    setup_.memory = map(port_fd_, layout_.total, PROT_READ | PROT_WRITE);
    setup_.notices = reinterpret_cast<attach::NoticeRing*>(
        map(notice_fd_, sizeof(attach::NoticeRing), PROT_READ | PROT_WRITE));
    setup_.kick_read = to_daemon[0];
    setup_.kick_write = to_process[1];
    REQUIRE(port.open(memory_, layout_, plane.status(), notices_));
    REQUIRE(plane.attach_port(setup_) == 0);
  }
  ~TestProcess() {
    if (attached_) plane_.detach_port(seat_, 0, false);
    munmap(memory_, layout_.total);
    munmap(notices_, sizeof(attach::NoticeRing));
    for (const int fd : {port_fd_, notice_fd_, kick_write_, kick_read_}) {
      if (fd >= 0) close(fd);
    }
  }
  TestProcess(const TestProcess&) = delete;
  TestProcess& operator=(const TestProcess&) = delete;

  void detach(bool died = false) {
    plane_.detach_port(seat_, 0, died);
    attached_ = false;
  }
  uint32_t qpn() const { return setup_.qpn_base + 17; }
  const attach::PortLayout& layout() const { return layout_; }
  uint8_t* memory() const { return memory_; }
  attach::PortControl* control() const { return reinterpret_cast<attach::PortControl*>(memory_); }

  FrameTemplate frames_to(HostIndex to) const {
    FrameAddress address;
    address.source_mac = plan_.hosts[host_].nics[0].mac;
    address.destination_mac = plan_.hosts[to].nics[0].mac;
    address.source_gid = gid_of_ipv4(plan_.hosts[host_].nics[0].ipv4);
    address.destination_gid = gid_of_ipv4(plan_.hosts[to].nics[0].ipv4);
    FrameTemplate frame;
    frame.prepare(address);
    return frame;
  }

  /// False: no slot. Not visible before flush().
  bool send(FrameTemplate& frame, uint32_t qpn, uint32_t psn, uint32_t payload_bytes, uint8_t priority = 0,
            Opcode opcode = Opcode::kRcSendMiddle) {
    const uint32_t slot = port.begin_frame(priority, false);
    if (slot == attach::kNoSlot) return false;
    TransportHeader header;
    header.opcode = opcode;
    header.dest_qpn = qpn;
    header.psn = psn & kPsnMask;
    uint8_t* const payload = port.payload(slot);
    for (uint32_t i = 0; i < payload_bytes; i += 4) memcpy(payload + i, &psn, 4);
    const uint32_t bytes = frame.encode(header, payload_bytes, port.headroom_end(slot));
    port.publish(slot, priority, bytes, payload_bytes);
    return true;
  }
  void flush() {
    if (port.flush()) kick();
  }
  void kick() {
    const uint8_t byte = 1;
    [[maybe_unused]] const ssize_t written = write(kick_write_, &byte, 1);
  }

  void close_kick() {
    close(kick_write_);
    kick_write_ = -1;
  }

  /// Waits as a program's background thread does: asleep, woken by the daemon. False: nothing within `seconds`.
  bool wait(double seconds, bool starved = false) {
    const double limit = seconds_now() + seconds;
    while (!port.receive_pending()) {
      if (port.prepare_sleep(starved)) {
        pollfd p{kick_read_, POLLIN, 0};
        const double left = limit - seconds_now();
        const int ready = left > 0 ? poll(&p, 1, static_cast<int>(left * 1000) + 1) : 0;
        port.awake();
        if (ready > 0) {
          uint8_t bytes[64];
          while (read(kick_read_, bytes, sizeof bytes) > 0) ++kicks;
          if (starved) return true;
        }
        if (ready == 0) return port.receive_pending();
      } else if (starved) {
        return true;
      }
    }
    return true;
  }
  /// For a process whose thread sleeps all the time: until a byte comes.
  bool wait_for_kick(double seconds) {
    pollfd p{kick_read_, POLLIN, 0};
    if (poll(&p, 1, static_cast<int>(seconds * 1000)) != 1) return false;
    uint8_t bytes[64];
    while (read(kick_read_, bytes, sizeof bytes) > 0) ++kicks;
    return true;
  }
  bool next(attach::ReceivedFrame& out, double seconds = 2) {
    return wait(seconds) && port.receive(out);
  }
  /// The next notice, waited for by asking again: the daemon sends no kick for one.
  bool next_notice(attach::Notice& out, double seconds = 2) {
    for (const double limit = seconds_now() + seconds; seconds_now() < limit; usleep(1000)) {
      if (port.next_notice(out)) return true;
    }
    return false;
  }

  attach::ProcessPort port;
  uint64_t kicks = 0;

 private:
  static uint8_t* map(int fd, size_t bytes, int protection) {
    void* memory = mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
    REQUIRE(memory != MAP_FAILED);
    return static_cast<uint8_t*>(memory);
  }

  DataPlane& plane_;
  const FabricPlan& plan_;
  const HostIndex host_;
  const SeatId seat_;
  const attach::PortLayout layout_;
  PortSetup setup_;
  uint8_t* memory_ = nullptr;
  attach::NoticeRing* notices_ = nullptr;
  int port_fd_ = -1;
  int notice_fd_ = -1;
  int kick_write_ = -1;
  int kick_read_ = -1;
  bool attached_ = true;
};

}  // namespace weft::test
