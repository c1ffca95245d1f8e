// SPDX-License-Identifier: Apache-2.0
//
// A small world in virtual time for the transport machines: peers with memory, a NIC port of bounded transmit slots and
// a bounded receive ring each, RC queue pairs between them, links that lose, duplicate and reorder. What tests of the
// machines run in, and the first driver of the virtual clock.
//
//   VirtualWorld world(settings);
//   QpId a = world.connect(0, 1, requester, responder);       // returns the end at peer 0; a + 1 is the other end
//   world.post_receive(a + 1, offset, bytes);
//   world.post_send(a, work, local_offset);
//   world.run_until(limit);                                    // or run(): until nothing can happen any more
//   world.completions(a), world.receives(a + 1), world.memory(1), world.hash()
//
// Like a lossless fabric, a frame waits in its sender's slot while the receiver's ring is full. Answers go before
// requests and may use the slots of the reserve (nic_rules 1). `answer_inside_receive` breaks that rule on purpose, to
// show that a test would notice. A stopped peer takes nothing from its ring, as a process under SIGSTOP.
//
// A frame is charged its payload and kFrameOverhead bytes on the wire. Everything is drawn from the seed: same settings
// and calls, same hash(). Programmer's errors assert; machines see only what links deliver. Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "protocols/rc/requester.h"
#include "protocols/rc/responder.h"
#include "scenarios/clock/event_queue.h"
#include "scenarios/clock/link_model.h"

namespace weft {

using QpId = uint32_t;

class VirtualWorld {
 public:
  static constexpr uint64_t kMemoryBase = 0x10000000;  ///< virtual address of byte 0 of every peer's memory
  static constexpr uint32_t kRkey = 0x1234;
  static constexpr uint32_t kFrameOverhead = 82;  ///< preamble to gap of an untagged RoCEv2/IPv4 middle packet

  struct Settings {
    uint64_t seed = 1;
    uint32_t peers = 2;
    uint32_t memory_bytes = 1 << 20;
    uint32_t transmit_slots = 64;
    uint32_t answer_reserve = 4;  ///< of the transmit slots
    uint32_t receive_slots = 64;
    LinkSettings link;
    Duration bucket_width = nanoseconds(16);
    bool answer_inside_receive = false;
  };
  struct Completion {
    SendCompletion what;
    Instant at;
  };
  struct Receive {
    uint32_t number = 0;  ///< of the receive request
    uint32_t bytes = 0;
    bool with_immediate = false;
    bool with_invalidate = false;
    uint32_t immediate = 0;
    Instant at;
  };

  explicit VirtualWorld(const Settings& settings);

  QpId connect(uint32_t peer_a, uint32_t peer_b, const RequesterConfig& requester, const ResponderConfig& responder);
  void post_send(QpId qp, const SendWork& work, uint32_t local_offset);
  void post_receive(QpId qp, uint32_t offset, uint32_t bytes);

  /// Executes everything due at or before `limit`; now() is `limit` then.
  void run_until(Instant limit);
  /// The same, but leaves now() at the last event.
  void run(Instant limit = Instant{seconds(3600)});

  void stop(uint32_t peer);
  void resume(uint32_t peer);
  /// Frames to and from the peer vanish; `notify`: their senders are told (patient timers).
  void kill(uint32_t peer, bool notify);
  /// A loss of a frame is reported to the machines it concerns, as the daemon does.
  void set_notices(bool on) { notices_ = on; }
  void set_loss(uint32_t peer, Probability loss) { peers_[peer].link.set_loss(loss); }

  Instant now() const { return queue_.now(); }
  uint64_t hash() const { return hash_; }
  uint64_t events() const { return queue_.executed(); }
  std::vector<uint8_t>& memory(uint32_t peer) { return peers_[peer].memory; }
  const std::vector<Completion>& completions(QpId qp) const { return qps_[qp].completions; }
  const std::vector<Receive>& receives(QpId qp) const { return qps_[qp].receives; }
  const RcRequester& requester(QpId qp) const { return qps_[qp].requester; }
  const RcResponder& responder(QpId qp) const { return qps_[qp].responder; }
  const LinkModel& link(uint32_t peer) const { return peers_[peer].link; }
  uint64_t frames_received(uint32_t peer) const { return peers_[peer].received; }
  /// When this QP's requester sent the frames of a PSN: for laws about times. Kept while recording is on.
  struct Transmission {
    uint32_t psn;
    Instant at;
  };
  void record_transmissions(bool on) { recording_ = on; }
  const std::vector<Transmission>& transmissions(QpId qp) const { return qps_[qp].transmissions; }
  /// All frames have gone and all slots are free.
  bool quiet() const;

 private:
  enum EventKind : uint32_t { kArrival = 1, kDeparture = 2, kTimer = 3 };

  struct Frame {
    OutFrame out;
    std::vector<uint8_t> payload;
    QpId from = 0;
    bool answer = false;
    bool lost = false;
    uint32_t references = 0;  ///< of events and rings
  };
  struct PostedWork {
    SendWork work;
    uint32_t local_offset = 0;
  };
  struct ReceiveRequest {
    uint32_t number = 0;
    uint32_t offset = 0;
    uint32_t bytes = 0;
  };
  struct Qp {
    uint32_t peer = 0;
    QpId other = 0;
    uint32_t mtu_bytes = 0;
    RcRequester requester;
    RcResponder responder;
    std::deque<PostedWork> backlog;
    std::vector<uint32_t> local_offsets;  ///< by work number
    std::deque<ReceiveRequest> receive_queue;
    uint32_t receives_posted = 0;
    bool receive_taken = false;  ///< the head of receive_queue belongs to the message under way
    bool error = false;
    EventSource timer;
    Instant timer_queued = kNever;  ///< due time of the one queued timer event
    std::vector<Completion> completions;
    std::vector<Receive> receives;
    std::vector<Transmission> transmissions;
  };
  struct Peer {
    Peer(const LinkSettings& link_settings, uint64_t seed, uint32_t id) : link(link_settings, seed, id) {}
    std::vector<uint8_t> memory;
    std::vector<QpId> qps;
    size_t turn = 0;  ///< round robin among qps
    uint32_t slots_used = 0;
    uint32_t answer_slots_used = 0;
    std::deque<uint32_t> transmit_ring;  ///< frames, oldest first
    bool sending = false;                ///< the link is busy
    std::deque<uint32_t> receive_ring;
    uint32_t receive_reserved = 0;  ///< ring entries taken, by frames on their way too
    std::vector<uint32_t> waiting;  ///< peers whose oldest frame waits for room here
    bool stopped = false;
    bool dead = false;
    bool dead_notify = false;
    uint64_t received = 0;
    LinkModel link;
    EventSource source;
  };

  void handle(const Event& event);
  void drain(uint32_t peer);
  bool may_take(uint32_t peer, const Frame& frame) const;
  void deliver(const Frame& frame);
  void on_request(Qp& qp, const Frame& frame);
  void on_response(Qp& qp, const Frame& frame);
  Outcome perform(Qp& qp, const Demand& demand, const Frame& frame, uint64_t& original);
  Outcome place(Qp& qp, const Demand& demand, const Frame& frame);
  bool accessible(const Peer& peer, uint64_t va, uint64_t bytes, uint32_t rkey) const;

  void pump(uint32_t peer);
  bool pull_answer(uint32_t peer);
  bool pull_request(uint32_t peer);
  void publish(Qp& qp, QpId id, OutFrame& out, bool answer);
  void start_sending(uint32_t peer);
  void on_departure(uint32_t peer, uint32_t frame);
  void tell_loss(const Frame& frame);

  void feed(Qp& qp);
  void collect(QpId id);
  void arm(QpId id);
  uint32_t new_frame();
  void drop_reference(uint32_t frame);
  void mix(uint64_t value);

  Settings settings_;
  EventQueue queue_;
  std::vector<Peer> peers_;
  std::deque<Qp> qps_;
  std::deque<Frame> frames_;  ///< a deque: frames stay where they are while others are made
  std::vector<uint32_t> free_frames_;
  bool notices_ = false;
  bool recording_ = false;
  uint64_t hash_ = 0xcbf29ce484222325u;
};

}  // namespace weft
