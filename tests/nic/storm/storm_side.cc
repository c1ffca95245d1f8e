// SPDX-License-Identifier: Apache-2.0
#include "tests/nic/storm/storm_side.h"

#include <poll.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

namespace weft::test {
namespace {

constexpr uint64_t kReceiveBit = 1ull << 32;
constexpr uint8_t kTypeRc = 2, kTypeUc = 3, kTypeUd = 4;
constexpr int kEventWaitMs = 20;

}  // namespace

void storm_failed(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  va_end(arguments);
  std::fputc('\n', stderr);
  std::abort();
}

void rig_failed(const char* file, int line, const char* what) { storm_failed("%s:%d: %s", file, line, what); }

StormSide::StormSide(StormFabric& fabric, uint32_t node, uint64_t jobs_to_do)
    : fabric_(fabric), client_(fabric.rig, node), target_(jobs_to_do), jobs_(kJobs) {
  channel_ = client_.create_channel();
  cq_ = client_.create_cq(4096, channel_);
  landing_.resize(kJobs * kBytes);
  receives_.resize(kQps * kReceives * kReceiveBytes);
  landing_mr_ = client_.reg_mr(landing_.data(), landing_.size());
  receives_mr_ = client_.reg_mr(receives_.data(), receives_.size());
  counter_mr_ = client_.reg_mr(&counter_, sizeof counter_);
  srq_ = client_.create_srq({.max_wr = kReceives});
  for (uint32_t q = 0; q < kQps; ++q) {
    QpOptions o;
    o.type = q == kUc ? kTypeUc : q == kUd ? kTypeUd : kTypeRc;
    o.send_wr = 8;  // fewer than the jobs: queues run full
    o.recv_wr = kReceives;
    o.srq = q == kShared ? &srq_ : nullptr;
    qps_[q] = client_.create_qp(cq_, cq_, o);
  }
  for (uint32_t i = 0; i < kJobs; ++i) {
    Job& job = jobs_[i];
    job.qp = i % kQps;
    job.kind = job.qp >= kUc || i % 4 == 0 ? Kind::kMessage : i % 4 == 1 ? Kind::kCount : Kind::kWriteRead;
    job.source.resize(kBytes);
    job.back.resize(kBytes);
    source_mr_.push_back(client_.reg_mr(job.source.data(), kBytes));
    back_mr_.push_back(client_.reg_mr(job.back.data(), kBytes));
    ready_.push_back(i);
  }
}

void StormSide::connect(StormSide& a, StormSide& b) {
  ConnectOptions o;
  o.timeout = 8;  // 1 ms: a lost last packet costs little
  for (uint32_t q = 0; q < kQps; ++q) test::connect(a.client_, a.qps_[q], b.client_, b.qps_[q], o);
  for (StormSide* side : {&a, &b}) {
    side->peer_ = side == &a ? &b : &a;
    side->ah_ = side->client_.create_ah(side->peer_->client_.node);
    for (uint32_t q = 0; q < kQps; ++q) {
      for (uint32_t slot = 0; slot < kReceives; ++slot) side->post_receive(q, slot);
    }
  }
}

void StormSide::post_receive(uint32_t qp, uint32_t slot) {
  const std::lock_guard guard(receive_lock_[qp]);
  const uint8_t* at = &receives_[(qp * kReceives + slot) * kReceiveBytes];
  const uint64_t id = kReceiveBit | qp << 8 | slot;
  const std::vector<rxe_sge> target = {sge(at, kReceiveBytes, receives_mr_.lkey)};
  if (qp == kShared) {
    client_.post_srq_recv(srq_, id, target);
  } else {
    client_.post_recv(qps_[qp], id, target);
  }
}

void StormSide::ready(uint32_t index) {
  const std::lock_guard guard(ready_lock_);
  ready_.push_back(index);
}

// A job is in one thread's hands from the ready list to its completion.
bool StormSide::post(uint32_t index) {
  Job& job = jobs_[index];
  Post p;
  p.wr_id = index;
  const uint32_t turn = static_cast<uint32_t>(done_.load()) * kJobs + index;
  if (!job.reading) {
    job.length = job.kind == Kind::kWriteRead ? 1 + (turn * 977) % kBytes : 1 + (turn * 131) % 1000;
    job.fill = static_cast<uint8_t>(turn);
    std::fill_n(job.source.begin(), job.length, job.fill);
  }
  p.sges = {sge(job.source.data(), job.length, source_mr_[index].lkey)};
  p.remote_addr = reinterpret_cast<uint64_t>(&peer_->landing_[index * kBytes]);
  p.rkey = peer_->landing_mr_.rkey;
  if (job.kind == Kind::kWriteRead) {
    p.opcode = job.reading ? kRead : kWrite;
    if (job.reading) p.sges[0] = sge(job.back.data(), job.length, back_mr_[index].lkey);
  } else if (job.kind == Kind::kCount) {
    p.opcode = kFetchAdd;
    p.compare_add = 1;
    p.sges = {sge(job.back.data(), 8, back_mr_[index].lkey)};
    p.remote_addr = reinterpret_cast<uint64_t>(&peer_->counter_);
    p.rkey = peer_->counter_mr_.rkey;
  }
  if (job.qp == kUd) {
    p.remote_qpn = peer_->qps_[kUd].qpn;
    p.remote_qkey = 0x11111111;
    p.ah_num = ah_;
  }
  const std::lock_guard guard(send_lock_[job.qp]);
  return client_.post(qps_[job.qp], p) >= 0;
}

bool StormSide::work() {
  ib_uverbs_wc wc[4];
  int count = 0;
  fabric_.progress(client_.node);
  {
    const std::lock_guard guard(cq_lock_);
    while (count < 4 && client_.poll(cq_, wc[count])) ++count;
  }
  for (int i = 0; i < count; ++i) handle(wc[i]);
  uint32_t index = 0;
  {
    const std::lock_guard guard(ready_lock_);
    if (ready_.empty() || done_ >= target_) return count != 0;
    index = ready_.front();
    ready_.pop_front();
    ++flying_;
  }
  if (!post(index)) {
    --flying_;
    ready(index);
    return count != 0;
  }
  return true;
}

void StormSide::handle(const ib_uverbs_wc& wc) {
  if (wc.status != 0)
    storm_failed("completion of %llx with status %u", static_cast<unsigned long long>(wc.wr_id), wc.status);
  if ((wc.wr_id & kReceiveBit) != 0) return received(wc);
  if (wc.wr_id >= kJobs)
    storm_failed("a completion that nobody asked for: %llx", static_cast<unsigned long long>(wc.wr_id));
  finish(jobs_[wc.wr_id], static_cast<uint32_t>(wc.wr_id));
}

void StormSide::finish(Job& job, uint32_t index) {
  const bool first_half = job.kind == Kind::kWriteRead && !job.reading;
  if (job.kind == Kind::kWriteRead && job.reading) {
    for (uint32_t i = 0; i < job.length; ++i) {
      if (job.back[i] != job.fill)
        storm_failed("byte %u of %u is %02x, not %02x", i, job.length, job.back[i], job.fill);
    }
  }
  job.reading = first_half;
  if (job.kind == Kind::kCount) ++atomics_;
  if (job.kind == Kind::kMessage && job.qp < kUc) ++reliable_sends_;
  if (!first_half) ++done_;
  ready(index);
  --flying_;
}

void StormSide::received(const ib_uverbs_wc& wc) {
  const uint32_t qp = static_cast<uint32_t>(wc.wr_id >> 8) & 0xff, slot = static_cast<uint32_t>(wc.wr_id) & 0xff;
  const uint8_t* at = &receives_[(qp * kReceives + slot) * kReceiveBytes];
  const uint32_t from = qp == kUd ? 40 : 0;  // the GRH
  for (uint32_t i = from; i < wc.byte_len; ++i) {
    if (at[i] != at[from]) storm_failed("a message of %u bytes is torn at %u", wc.byte_len, i);
  }
  if (qp < kUc) ++received_;
  post_receive(qp, slot);
}

void StormSide::wait_events(const std::atomic<bool>& stop) {
  while (!stop) {
    client_.arm(cq_);
    pollfd entry = {channel_, POLLIN, 0};
    if (poll(&entry, 1, kEventWaitMs) != 1) continue;
    uint64_t element = 0;
    if (read(channel_, &element, sizeof element) != sizeof element) storm_failed("a short event");
    if (element != cq_.user_handle) storm_failed("an event of another CQ");
    ++events_;
  }
}

void StormSide::check(const StormSide& peer) const {
  if (counter_ != peer.atomics_) {
    storm_failed("counter %llu after %llu FETCH_ADDs", static_cast<unsigned long long>(counter_),
                 static_cast<unsigned long long>(peer.atomics_.load()));
  }
  if (received_ != peer.reliable_sends_) {
    storm_failed("%llu received of %llu", static_cast<unsigned long long>(received_.load()),
                 static_cast<unsigned long long>(peer.reliable_sends_.load()));
  }
  if (events_ == 0) storm_failed("no completion event in all that");
}

}  // namespace weft::test
