// SPDX-License-Identifier: Apache-2.0
//
// Random work for a VirtualWorld from one seed, and the reference of what must come of it: every byte of every memory,
// every receive, every completion. The reference knows nothing of packets: it executes the works one after another.
//
//   RandomTraffic traffic(seed, shape);  traffic.run();
//   REQUIRE(traffic.verdict() == "");     // else: the first thing that was wrong
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "protocols/base/random.h"
#include "scenarios/clock/virtual_driver.h"

namespace weft::test {

struct TrafficShape {
  Probability loss;
  Probability duplicate;
  Probability reorder;
  uint32_t works_per_end = 40;
  uint32_t connections = 2;
  uint32_t peers = 2;
  bool late_receives = false;  ///< receives are posted while the run goes on: RNR NAKs
  bool patient = false;
  bool notices = false;
  uint32_t transmit_slots = 64;
  uint32_t answer_reserve = 4;
  uint32_t mtu_bytes = 0;     ///< 0: drawn
  bool alter_memory = false;  ///< canary: flip one delivered byte behind the reference's back
};

class RandomTraffic {
 public:
  RandomTraffic(uint64_t seed, const TrafficShape& shape);
  void run();
  std::string verdict();
  VirtualWorld& world() { return *world_; }
  uint32_t mtu_bytes() const { return mtu_; }

 private:
  static constexpr uint32_t kLaneBytes = 160 << 10;  ///< memory of one end of one connection, both roles
  struct ExpectedReceive {
    uint32_t bytes;
    bool with_immediate;
    bool with_invalidate;
    uint32_t immediate;
  };
  struct End {
    QpId qp = 0;
    uint32_t peer = 0;
    uint32_t lane = 0;           ///< offset of its memory in its peer
    uint32_t used = 0;           ///< of its lane
    uint32_t atomic_offset = 0;  ///< in its lane: the word that the other end's atomics work on
    std::vector<SendWork> works;
    std::vector<uint32_t> local_offsets;
    std::vector<ExpectedReceive> receives;
    std::vector<std::pair<uint32_t, uint32_t>> receive_buffers;
    size_t receives_given = 0;
    size_t works_given = 0;
  };

  RequesterConfig draw_requester();
  ResponderConfig draw_responder();
  uint32_t draw_length();
  uint32_t take(End& end, uint32_t bytes);
  void add_work(End& from, End& to);
  void add_message(End& from, End& to, SendWork& work);
  void add_read(End& from, End& to, SendWork& work);
  void add_atomic(End& from, End& to, SendWork& work);
  void give_some();
  bool all_given() const;

  Random random_;
  TrafficShape shape_;
  uint32_t mtu_ = 1024;
  uint8_t resources_ = 1;
  std::unique_ptr<VirtualWorld> world_;
  std::vector<End> ends_;
  std::vector<std::vector<uint8_t>> expected_memory_;
};

}  // namespace weft::test
