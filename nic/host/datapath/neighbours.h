// SPDX-License-Identifier: Apache-2.0
//
// The hosts as neighbours of machines outside the fabric: they answer ARP, IPv6 neighbour solicitations and echo
// requests for their addresses, and ask who owns an address that is not of the fabric (RFC 826, 792, 4861).
//
//   on_frame(now, port, buffer, bytes)   a frame from an outside port that is no RoCE frame. kAnswer: the buffer now holds
//                                        the answer, of `bytes` bytes, to be sent out of the same port
//   resolve(now, token, endpoint, gid)   asks for an address; an Answer comes, ETIMEDOUT after the last try
//   pull(now, port, out)                 a question to be sent out of that port: its bytes, 0 when none is owed
//   take_answer(out)                     what resolve() came to; false: nothing new
//   on_timer(now), next_deadline()
//
// What is learned goes into the AddressMap: outside port p is destination `endpoints + p` from then on. Everything that
// comes in is hostile: the fabric's own addresses are never learned, what nobody asked for has bounded room of its own,
// and the oldest of it goes first; what a program asked for stays.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "nic/host/datapath/address_map.h"
#include "protocols/base/bytes.h"
#include "protocols/base/time.h"

namespace weft::nic {

struct NeighbourSettings {
  uint32_t endpoints = 0;
  uint32_t ports = 0;                    ///< outside ports, at most 16
  uint32_t tries = 4;
  Duration try_time = milliseconds(500); ///< the asking program waits for 3 s
  Duration valid = seconds(30);          ///< so long an answer is good for the next one who asks
  uint32_t max_overheard = 1024;         ///< addresses that asked us and that nobody asked for
  uint32_t max_asked = 8192;
  uint32_t max_questions = 256;          ///< at a time
};

struct NeighbourCounters {
  uint64_t arp_answers = 0;
  uint64_t echo_answers = 0;
  uint64_t questions = 0;   ///< sent
  uint64_t resolved = 0;
  uint64_t timeouts = 0;
  uint64_t foreign = 0;     ///< claimed an address of the fabric
};

enum class NeighbourVerdict : uint8_t { kNotOurs, kTaken, kAnswer };

struct NeighbourAnswer {
  uint64_t token = 0;
  int error = 0;  ///< 0 or errno: ETIMEDOUT nobody answered, ENOBUFS too many ask
  MacAddress mac{};
};

class Neighbours {
 public:
  static constexpr uint32_t kMaxQuestionBytes = 96;

  Neighbours(const NeighbourSettings& settings, AddressMap& map) : settings_(settings), map_(map) {}

  NeighbourVerdict on_frame(Instant now, uint32_t port, MutableBytes buffer, uint32_t& bytes);
  void resolve(Instant now, uint64_t token, uint32_t endpoint, const GidBytes& gid);
  uint32_t pull(Instant now, uint32_t port, MutableBytes out);
  bool owes(uint32_t port) const { return (owed_ports_ >> port & 1) != 0; }
  bool take_answer(NeighbourAnswer& out);
  Instant next_deadline() const { return deadline_; }
  void on_timer(Instant now);

  const NeighbourCounters& counters() const { return counters_; }
  size_t known() const { return known_.size(); }

 private:
  struct Known {
    MacAddress mac{};
    uint32_t port = 0;
    Instant heard{};
    bool asked = false;  ///< a program wanted it
  };
  struct Question {
    uint64_t token = 0;
    uint32_t endpoint = 0;
    GidBytes gid{};
    uint32_t tries_left = 0;
    uint32_t ports_owed = 0;  ///< bit mask
    Instant due{};
  };

  NeighbourVerdict on_arp(Instant now, uint32_t port, MutableBytes frame, uint32_t& bytes);
  NeighbourVerdict on_ipv4(MutableBytes frame, uint32_t& bytes);
  NeighbourVerdict on_ipv6(Instant now, uint32_t port, MutableBytes buffer, uint32_t& bytes);
  NeighbourVerdict on_solicitation(Instant now, uint32_t port, MutableBytes buffer, uint32_t& bytes);
  NeighbourVerdict on_advertisement(Instant now, uint32_t port, Bytes frame);
  NeighbourVerdict on_echo6(MutableBytes frame, uint32_t& bytes);
  bool is_ours(uint32_t endpoint) const { return endpoint < settings_.endpoints; }
  bool may_learn(const GidBytes& gid, const MacAddress& mac);
  void heard(Instant now, uint32_t port, const GidBytes& gid, const MacAddress& mac, bool overhear);
  void answer_questions(const GidBytes& gid, const Known& known);
  void owe(Question& question, Instant now);
  void forget_oldest_overheard();
  void find_deadline();

  const NeighbourSettings settings_;
  AddressMap& map_;
  std::map<GidBytes, Known> known_;
  uint32_t overheard_ = 0;
  std::vector<Question> questions_;
  std::vector<NeighbourAnswer> answers_;
  uint32_t owed_ports_ = 0;
  Instant deadline_ = kNever;
  NeighbourCounters counters_;
};

}  // namespace weft::nic
