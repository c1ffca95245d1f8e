// SPDX-License-Identifier: Apache-2.0
#include "tests/scenarios/clock/random_traffic.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace weft::test {

namespace {
constexpr uint64_t kTrafficComponent = 0x7261;
}

RandomTraffic::RandomTraffic(uint64_t seed, const TrafficShape& shape)
    : random_(seed, kTrafficComponent), shape_(shape) {
  constexpr std::array<uint32_t, 5> kMtus = {256, 512, 1024, 2048, 4096};
  mtu_ = shape.mtu_bytes != 0 ? shape.mtu_bytes : kMtus[random_.below(kMtus.size())];
  resources_ = static_cast<uint8_t>(1 + random_.below(16));
  VirtualWorld::Settings settings;
  settings.seed = seed;
  settings.peers = shape.peers;
  settings.memory_bytes = kLaneBytes * 2 * shape.connections;
  settings.transmit_slots = shape.transmit_slots;
  settings.answer_reserve = shape.answer_reserve;
  settings.link.loss = shape.loss;
  settings.link.duplicate = shape.duplicate;
  settings.link.reorder = shape.reorder;
  world_ = std::make_unique<VirtualWorld>(settings);
  world_->set_notices(shape.notices);
  for (uint32_t p = 0; p < shape.peers; ++p) {
    std::vector<uint8_t>& memory = world_->memory(p);
    for (size_t i = 0; i + 8 <= memory.size(); i += 8) {
      const uint64_t word = random_.next();
      std::memcpy(memory.data() + i, &word, 8);
    }
  }
  for (uint32_t c = 0; c < shape.connections; ++c) {
    const uint32_t a = static_cast<uint32_t>(random_.below(shape.peers));
    const uint32_t b = (a + 1 + static_cast<uint32_t>(random_.below(shape.peers - 1))) % shape.peers;
    const QpId first = world_->connect(a, b, draw_requester(), draw_responder());
    for (uint32_t side = 0; side < 2; ++side) {
      End& end = ends_.emplace_back();
      end.qp = first + side;
      end.peer = side == 0 ? a : b;
      end.lane = (2 * c + side) * kLaneBytes;
      end.atomic_offset = take(end, 8);
    }
  }
  for (uint32_t p = 0; p < shape.peers; ++p) expected_memory_.push_back(world_->memory(p));
  for (size_t i = 0; i < ends_.size(); ++i)
    for (uint32_t n = 0; n < shape.works_per_end; ++n) add_work(ends_[i], ends_[i ^ 1]);
}

RequesterConfig RandomTraffic::draw_requester() {
  RequesterConfig c;
  c.mtu_bytes = mtu_;
  // Half of the runs cross the end of the PSN circle.
  c.first_psn = random_.below(2) == 0 ? static_cast<uint32_t>(random_.next()) & kPsnMask
                                      : (kPsnMask - static_cast<uint32_t>(random_.below(40)));
  c.timeout = static_cast<uint8_t>(4 + random_.below(4));
  c.retry_count = 7;
  c.rnr_retry = 7;
  c.max_rd_atomic = static_cast<uint8_t>(1 + random_.below(resources_));
  c.window_packets = static_cast<uint32_t>(1 + random_.below(64));
  c.ack_every = static_cast<uint32_t>(1 + random_.below(64));
  c.patient = shape_.patient;
  return c;
}

ResponderConfig RandomTraffic::draw_responder() {
  ResponderConfig c;
  c.mtu_bytes = mtu_;
  c.max_dest_rd_atomic = resources_;
  c.min_rnr_timer = static_cast<uint8_t>(1 + random_.below(10));
  return c;
}

/// Where packets begin and end is where mistakes are.
uint32_t RandomTraffic::draw_length() {
  switch (random_.below(6)) {
    case 0:
      return static_cast<uint32_t>(random_.below(9));
    case 1:
      return mtu_ - 1 + static_cast<uint32_t>(random_.below(3));
    case 2:
      return 2 * mtu_ - 1 + static_cast<uint32_t>(random_.below(3));
    case 3:
      return static_cast<uint32_t>(random_.below(mtu_ + 1));
    default:
      return static_cast<uint32_t>(random_.below(std::min(6 * mtu_, 10000u)));
  }
}

/// A piece of an end's lane that nobody else uses.
uint32_t RandomTraffic::take(End& end, uint32_t bytes) {
  const uint32_t start = (end.used + 7) / 8 * 8;
  if (start + bytes > kLaneBytes) return UINT32_MAX;
  end.used = start + bytes;
  return end.lane + start;
}

void RandomTraffic::add_work(End& from, End& to) {
  SendWork work;
  work.signaled = random_.below(3) == 0;
  work.solicited = random_.below(4) == 0;
  work.fence = random_.below(8) == 0;
  work.rkey = VirtualWorld::kRkey;
  work.immediate = static_cast<uint32_t>(random_.next());
  constexpr std::array<WorkOpcode, 8> kOpcodes = {
      WorkOpcode::kSend,     WorkOpcode::kSendImm, WorkOpcode::kSendInvalidate, WorkOpcode::kWrite,
      WorkOpcode::kWriteImm, WorkOpcode::kRead,    WorkOpcode::kRead,           WorkOpcode::kCompareSwap};
  work.opcode = kOpcodes[random_.below(kOpcodes.size())];
  if (work.opcode == WorkOpcode::kCompareSwap) {
    if (random_.below(2) == 0) work.opcode = WorkOpcode::kFetchAdd;
    add_atomic(from, to, work);
  } else if (work.opcode == WorkOpcode::kRead) {
    add_read(from, to, work);
  } else {
    add_message(from, to, work);
  }
}

void RandomTraffic::add_message(End& from, End& to, SendWork& work) {
  work.length = draw_length();
  const uint32_t source = take(from, work.length);
  const bool write = work.opcode == WorkOpcode::kWrite || work.opcode == WorkOpcode::kWriteImm;
  const uint32_t slack = write ? 0 : static_cast<uint32_t>(random_.below(3));
  const uint32_t target = take(to, work.length + slack);
  if (source == UINT32_MAX || target == UINT32_MAX) return;
  const auto& bytes = expected_memory_[from.peer];
  std::copy_n(bytes.begin() + source, work.length, expected_memory_[to.peer].begin() + target);
  if (write) work.remote_addr = VirtualWorld::kMemoryBase + target;
  if (work.opcode != WorkOpcode::kWrite) {
    const bool immediate = work.opcode == WorkOpcode::kSendImm || work.opcode == WorkOpcode::kWriteImm;
    const bool invalidate = work.opcode == WorkOpcode::kSendInvalidate;
    to.receives.push_back({work.length, immediate, invalidate, immediate || invalidate ? work.immediate : 0});
    to.receive_buffers.push_back(write ? std::pair{to.lane, 0u} : std::pair{target, work.length + slack});
  }
  from.works.push_back(work);
  from.local_offsets.push_back(source);
}

void RandomTraffic::add_read(End& from, End& to, SendWork& work) {
  work.length = draw_length();
  // Sources of READs are pieces of their own, so that their content does not depend on when they are executed.
  const uint32_t source = take(to, work.length);
  const uint32_t target = take(from, work.length);
  if (source == UINT32_MAX || target == UINT32_MAX) return;
  work.remote_addr = VirtualWorld::kMemoryBase + source;
  std::copy_n(expected_memory_[to.peer].begin() + source, work.length, expected_memory_[from.peer].begin() + target);
  from.works.push_back(work);
  from.local_offsets.push_back(target);
}

void RandomTraffic::add_atomic(End& from, End& to, SendWork& work) {
  const uint32_t target = take(from, 8);
  if (target == UINT32_MAX) return;
  uint8_t* word = expected_memory_[to.peer].data() + to.atomic_offset;
  uint64_t value = 0;
  std::memcpy(&value, word, 8);
  work.length = 8;
  work.remote_addr = VirtualWorld::kMemoryBase + to.atomic_offset;
  std::memcpy(expected_memory_[from.peer].data() + target, &value, 8);
  if (work.opcode == WorkOpcode::kFetchAdd) {
    work.compare_add = random_.next();
    value += work.compare_add;
  } else {
    work.compare_add = random_.below(3) == 0 ? value + 1 : value;
    work.swap = random_.next();
    if (work.compare_add == value) value = work.swap;
  }
  std::memcpy(word, &value, 8);
  from.works.push_back(work);
  from.local_offsets.push_back(target);
}

bool RandomTraffic::all_given() const {
  return std::all_of(ends_.begin(), ends_.end(), [](const End& e) {
    return e.works_given == e.works.size() && e.receives_given == e.receive_buffers.size();
  });
}

/// Posts the next few works and receives of every end.
void RandomTraffic::give_some() {
  for (End& end : ends_) {
    size_t receives = shape_.late_receives ? random_.below(4) : end.receive_buffers.size();
    for (; receives > 0 && end.receives_given < end.receive_buffers.size(); --receives) {
      const auto [offset, bytes] = end.receive_buffers[end.receives_given++];
      world_->post_receive(end.qp, offset, bytes);
    }
    for (size_t works = random_.below(20); works > 0 && end.works_given < end.works.size(); --works) {
      world_->post_send(end.qp, end.works[end.works_given], end.local_offsets[end.works_given]);
      ++end.works_given;
    }
  }
}

void RandomTraffic::run() {
  while (!all_given()) {
    give_some();
    world_->run_until(world_->now() + picoseconds(static_cast<int64_t>(random_.below(50'000'000))));
  }
  world_->run(Instant{seconds(3600)});
  if (shape_.alter_memory) world_->memory(0)[ends_[0].lane + 8] ^= 1;
}

std::string RandomTraffic::verdict() {
  for (End& end : ends_) {
    const std::string who = "end " + std::to_string(end.qp) + ": ";
    const auto& done = world_->completions(end.qp);
    if (done.size() != end.works.size())
      return who + std::to_string(done.size()) + " completions of " + std::to_string(end.works.size());
    for (size_t i = 0; i < done.size(); ++i) {
      if (done[i].what.work != i) return who + "completion out of order at " + std::to_string(i);
      if (done[i].what.status != WorkStatus::kSuccess)
        return who + "work " + std::to_string(i) + " ended in " + std::to_string(static_cast<int>(done[i].what.status));
    }
    const auto& receives = world_->receives(end.qp);
    if (receives.size() != end.receives.size())
      return who + std::to_string(receives.size()) + " receives of " + std::to_string(end.receives.size());
    for (size_t i = 0; i < receives.size(); ++i) {
      const ExpectedReceive& e = end.receives[i];
      const VirtualWorld::Receive& r = receives[i];
      if (r.number != i || r.bytes != e.bytes || r.with_immediate != e.with_immediate ||
          r.with_invalidate != e.with_invalidate || r.immediate != e.immediate)
        return who + "receive " + std::to_string(i) + " differs";
    }
  }
  for (uint32_t p = 0; p < shape_.peers; ++p) {
    const auto& memory = world_->memory(p);
    const auto& expected = expected_memory_[p];
    const auto at = std::mismatch(memory.begin(), memory.end(), expected.begin());
    if (at.first != memory.end())
      return "memory of peer " + std::to_string(p) + " differs at " + std::to_string(at.first - memory.begin());
  }
  if (!world_->quiet()) return "frames or slots were left over";
  return "";
}

}  // namespace weft::test
