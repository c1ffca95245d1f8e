// SPDX-License-Identifier: Apache-2.0
#include "tests/tools/fake_data_plane.h"

#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <new>

#include "protocols/base/assert.h"

namespace weft {
namespace {
constexpr size_t kPage = 4096;
constexpr size_t kNoticeBytes = attach::align_up(sizeof(attach::NoticeRing), kPage);
}  // namespace

FakeDataPlane::FakeDataPlane(const FabricPlan& p) : plan(p) {
  status_fd_ = memfd_create("fake-status", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  WEFT_ASSERT(status_fd_ >= 0 && ftruncate(status_fd_, kPage) == 0);
  void* page = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, status_fd_, 0);
  WEFT_ASSERT(page != MAP_FAILED);
  status_ = new (page) attach::StatusPage{};
  status_->daemon_alive = 1;
  status_->daemon_sleeping = 1;
  status_->version = 1;
  event_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
}

FakeDataPlane::~FakeDataPlane() {
  status_->daemon_alive = 0;
  for (const auto& [key, port] : ports) release(port);
  munmap(status_, kPage);
  close(status_fd_);
  close(event_fd_);
}

void FakeDataPlane::release(const PortSetup& port) {
  munmap(port.memory, port.layout.total);
  munmap(port.notices, kNoticeBytes);
  close(port.kick_read);
  close(port.kick_write);
}

int FakeDataPlane::attach_port(const PortSetup& setup) {
  if (attach_error != 0) return attach_error;
  return ports.emplace(std::make_pair(setup.seat, setup.nic), setup).second ? 0 : EEXIST;
}

void FakeDataPlane::detach_port(SeatId seat, uint32_t nic, bool died) {
  detached.push_back({seat, nic, died});
  const auto it = ports.find({seat, nic});
  if (it == ports.end()) return;
  release(it->second);
  ports.erase(it);
}

std::vector<MetricSample> FakeDataPlane::metrics() {
  std::vector<MetricSample> samples = extra;
  samples.push_back({"process_ports", {}, ports.size()});
  return samples;
}

int FakeDataPlane::start_capture(const std::string& place, std::function<void(CapturedFrame&&)> sink) {
  if (place != "h0" && place != "h1") return -1;
  captures_.emplace(next_capture_, std::move(sink));
  wake();
  return next_capture_++;
}

void FakeDataPlane::stop_capture(int id) { captures_.erase(id); }

void FakeDataPlane::wake() {
  const uint64_t one = 1;
  WEFT_ASSERT(write(event_fd_, &one, sizeof one) == sizeof one);
}

void FakeDataPlane::pump() {
  uint64_t count = 0;
  if (read(event_fd_, &count, sizeof count) != static_cast<ssize_t>(sizeof count)) return;
  for (const auto& [id, sink] : captures_) {
    CapturedFrame frame;
    frame.unix_ns = 1'700'000'000'000'000'000u + static_cast<uint64_t>(id);
    frame.interface = "h0->s0";
    frame.bytes.assign(60, 0x5A);
    sink(std::move(frame));
  }
}

std::unique_ptr<DataPlane> start_data_plane(const FabricPlan& plan, std::string& error) {
  error.clear();
  return std::make_unique<FakeDataPlane>(plan);
}

}  // namespace weft
