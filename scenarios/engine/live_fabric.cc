// SPDX-License-Identifier: Apache-2.0
#include "scenarios/engine/live_fabric.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>

#include "protocols/icrc/icrc.h"
#include "protocols/wire/transport_header.h"

namespace weft::engine {

using attach::kBurst;
using attach::NoticeReason;

namespace {

constexpr Duration kParkDelay = microseconds(50);  // longer links keep frames in switch memory (engine_rules 4)
constexpr uint32_t kMaxSeats = 0xFFFE;

dpdk::PacketMemorySettings memory_for(size_t endpoints) {
  dpdk::PacketMemorySettings memory;
  memory.large_mbufs = static_cast<uint32_t>(std::clamp<size_t>(endpoints * 128, 2048, 16384));
  memory.small_mbufs = memory.large_mbufs;
  return memory;
}

EventQueue::Settings event_settings() {
  EventQueue::Settings settings;
  settings.bucket_width = microseconds(1);
  return settings;
}

NoticeReason notice_reason(DropReason reason) {
  switch (reason) {
    case DropReason::kNoRoute: return NoticeReason::kNoRoute;
    case DropReason::kLinkDrop: return NoticeReason::kFaultDrop;
    case DropReason::kLinkDown: return NoticeReason::kLinkDown;
    case DropReason::kBufferFull: return NoticeReason::kBufferDrop;
    case DropReason::kNoSuchQpn:
    case DropReason::kReceiverGone: return NoticeReason::kNoSuchQpn;
    case DropReason::kNoMember: return NoticeReason::kNone;  // nobody was meant to get it
    case DropReason::kReceiverStalled: return NoticeReason::kNone;  // the requester goes on trying (nic_rules 6)
    default: return NoticeReason::kBadFrame;
  }
}

}  // namespace

LiveSeat::~LiveSeat() {
  if (setup.memory != nullptr) munmap(setup.memory, setup.layout.total);
  if (setup.notices != nullptr) munmap(setup.notices, sizeof(attach::NoticeRing));
  if (setup.kick_read >= 0) close(setup.kick_read);
  if (setup.kick_write >= 0) close(setup.kick_write);
}

// --- building -------------------------------------------------------------------------------------------------------

LiveFabric::LiveFabric(const FabricPlan& plan)
    : plan_(plan), events_(event_settings()), by_event_(plan.link_delay > Duration::zero()),
      park_all_(plan.link_delay > kParkDelay) {}

LiveFabric::~LiveFabric() = default;

uint32_t LiveFabric::megabytes_for(size_t endpoints) {
  return std::max<uint32_t>(128, memory_for(endpoints).megabytes() + 32);
}

bool LiveFabric::open(std::string& error) {
  std::vector<nic::EndpointAddress> addresses;
  for (const HostPlan& host : plan_.hosts) {
    first_endpoint_.push_back(static_cast<uint32_t>(addresses.size()));
    for (const NicPlan& nic : host.nics) addresses.push_back({nic.mac, nic.ipv4});
  }
  const uint32_t count = static_cast<uint32_t>(addresses.size());
  if (count == 0 || count >= fabric::kNoSwitchPort) {
    error = "a fabric has between 1 and 65534 NICs";
    return false;
  }
  if (!map_.build(addresses)) {
    error = "two NICs have the same address, or the addresses are too far apart";
    return false;
  }
  if (!store_.open(32768 + 1024 * count, memory_for(count), error)) return false;
  fabric::SwitchSettings settings;
  settings.ports = settings.endpoints = count + static_cast<uint32_t>(plan_.outside.size());
  settings.cell_bytes = 256;  // what a small frame costs in the arena and beside it
  switch_ = std::make_unique<fabric::SwitchCore>(settings, store_.arena());
  switch_->set_copies(store_);
  endpoints_.reserve(count);
  for (HostIndex host = 0; host < plan_.hosts.size(); ++host) {
    for (uint32_t n = 0; n < plan_.hosts[host].nics.size(); ++n) {
      const uint32_t index = static_cast<uint32_t>(endpoints_.size());
      switch_->set_route(index, static_cast<fabric::SwitchPort>(index));
      nic::HostNicSettings nic_settings;
      nic_settings.identity = {index, addresses[index]};
      nic_settings.stall_time = plan_.stall_time;
      const std::string name = plan_.hosts[host].name + (n > 0 ? "/" + std::to_string(n) : "");
      endpoints_.push_back(
          {host, n, std::make_unique<nic::HostNic>(nic_settings, store_.arena(), store_, map_, *this),
           LinkDirection(plan_.seed, link_id(index, Direction::kUp), name + "->" + plan_.switch_name, plan_.drop),
           LinkDirection(plan_.seed, link_id(index, Direction::kDown), plan_.switch_name + "->" + name, plan_.drop),
           EventSource{link_id(index, Direction::kUp)}, false, {}, {}});
    }
  }
  applied_pause_.assign(count, 0);
  return open_outside(error);
}

uint32_t LiveFabric::endpoint_of(HostIndex host, uint32_t nic) const {
  if (host >= plan_.hosts.size() || nic >= plan_.hosts[host].nics.size()) return kNoEndpoint;
  return first_endpoint_[host] + nic;
}

// --- seats ----------------------------------------------------------------------------------------------------------

LiveSeat* LiveFabric::attach(const PortSetup& setup, int& error) {
  const uint32_t endpoint = endpoint_of(setup.host, setup.nic);
  const attach::PortLayout& l = setup.layout;
  error = EINVAL;
  if (endpoint == kNoEndpoint || setup.memory == nullptr || find(setup.seat, setup.nic) != nullptr) return nullptr;
  if (!std::has_single_bit(l.tx_slots) || !std::has_single_bit(l.rx_slots) || l.tx_slots < 32 || l.rx_slots < 32) {
    return nullptr;
  }
  uint32_t index;
  if (!free_tags_.empty()) {
    index = free_tags_.back();
  } else {
    index = static_cast<uint32_t>(seats_.size());
    error = EMFILE;
    if (index >= kMaxSeats) return nullptr;
    seats_.emplace_back();
    generation_.push_back(0);
    free_tags_.push_back(index);
  }
  const uint32_t tag = static_cast<uint32_t>(++generation_[index]) << 16 | (index + 1);
  auto seat = std::make_unique<LiveSeat>(store_, setup, tag, endpoint);
  Endpoint& e = endpoints_[endpoint];
  error = EADDRINUSE;
  if (!e.nic->attach(seat->nic_seat)) {
    seat->disown();
    return nullptr;
  }
  error = 0;
  seat->on_nic = true;
  e.seats.push_back(seat.get());
  free_tags_.pop_back();
  seats_[index] = std::move(seat);
  return seats_[index].get();
}

LiveSeat* LiveFabric::find(SeatId seat, uint32_t nic) {
  for (const auto& s : seats_) {
    if (s != nullptr && s->state == SeatState::kAttached && s->setup.seat == seat && s->setup.nic == nic) return s.get();
  }
  return nullptr;
}

void LiveFabric::start_draining(Instant now, LiveSeat& seat) {
  if (seat.state == SeatState::kDraining) return;
  seat.state = SeatState::kDraining;
  seat.port.close();
  Endpoint& e = endpoints_[seat.endpoint];
  leave_groups(seat);
  for (uint32_t i = 0; i < kNicCounters; ++i) {
    e.gone_counters[i] += seat.port.counters().get(static_cast<NicCounter>(i));
  }
  e.nic->detach(now, seat.nic_seat);
  seat.on_nic = false;
  finish_nic(now, seat.endpoint);
  drain(now);
}

int LiveFabric::set_member(LiveSeat& seat, const GidBytes& group, bool join) {
  const auto member = std::find(seat.groups.begin(), seat.groups.end(), group);
  nic::HostNic& nic = *endpoints_[seat.endpoint].nic;
  const auto port = static_cast<fabric::SwitchPort>(seat.endpoint);
  if (join) {
    if (member != seat.groups.end()) return 0;
    const uint32_t destination = map_.enter_group(group);
    if (destination == kNoEndpoint) return gid_is_multicast(group) ? ENOMEM : EINVAL;
    seat.groups.push_back(group);
    if (nic.join(destination, seat.nic_seat)) switch_->join(destination & ~kGroupDestination, port);
    return 0;
  }
  if (member == seat.groups.end()) return EINVAL;
  const uint32_t destination = map_.find(group);
  if (nic.leave(destination, seat.nic_seat)) switch_->leave(destination & ~kGroupDestination, port);
  map_.leave_group(group);
  seat.groups.erase(member);
  return 0;
}

void LiveFabric::leave_groups(LiveSeat& seat) {
  while (!seat.groups.empty()) (void)set_member(seat, GidBytes(seat.groups.back()), false);
}

void LiveFabric::announce_death(const LiveSeat& dead) {
  attach::Notice notice{};
  notice.address = endpoints_[dead.endpoint].nic->identity().address.ipv4;
  notice.qpn = dead.setup.qpn_base;
  notice.psn_last = kPsnMask;
  notice.reason = NoticeReason::kPeerDied;
  notice.place = link_id(dead.endpoint, Direction::kDown);
  for (const auto& seat : seats_) {
    if (seat != nullptr && seat->state == SeatState::kAttached) seat->port.notice(notice);
  }
}

bool LiveFabric::drained(LiveSeat& seat) const {
  return seat.state == SeatState::kDraining && seat.port.pending() == 0 && seat.port.idle();
}

void LiveFabric::destroy(LiveSeat& seat) {
  const uint32_t index = tag_index(seat.tag);
  std::erase(endpoints_[seat.endpoint].seats, &seat);
  std::erase(resumed_, &seat);
  std::erase(store_.unpublished(), &seat.port);
  seats_[index].reset();
  free_tags_.push_back(index);
}

// --- the way of a frame ---------------------------------------------------------------------------------------------

uint8_t LiveFabric::takeable(LiveSeat& seat) const {
  if (store_.arena().available() == 0) return 0;  // frames stay in their rings until something leaves
  return static_cast<uint8_t>(seat.port.pending() & ~switch_->paused(static_cast<fabric::SwitchPort>(seat.endpoint)));
}

bool LiveFabric::poll(Instant now, LiveSeat& seat) {
  uint8_t mask = takeable(seat);
  if (mask == 0) return false;
  nic::HostNic& nic = *endpoints_[seat.endpoint].nic;
  for (; mask != 0; mask = static_cast<uint8_t>(mask & (mask - 1))) {
    std::array<PacketRef, kBurst> burst;
    const uint32_t count = nic.collect(now, seat.nic_seat, static_cast<uint8_t>(std::countr_zero(mask)), burst);
    for (uint32_t i = 0; i < count; ++i) cross(now, seat.endpoint, Direction::kUp, burst[i]);
    drain(now);  // after each burst, or bursts look like congestion
  }
  return true;
}

void LiveFabric::serve(Instant now, LiveSeat& seat) {
  endpoints_[seat.endpoint].nic->serve(now, seat.nic_seat);
  finish_nic(now, seat.endpoint);
  drain(now);
}

/// A frame enters one direction of a link.
void LiveFabric::cross(Instant now, uint32_t endpoint, Direction direction, PacketRef packet) {
  LinkDirection& link = this->link(endpoint, direction);
  if (direction == Direction::kUp && plan_.force_icrc) {
    store_.at(packet).icrc = icrc(store_.headers(packet), store_.payload(packet));
    store_.arena()[packet].flags |= kPacketIcrcChecked;
  }
  if (link.lose()) {
    dropped(now, packet, link.down ? DropReason::kLinkDown : DropReason::kLinkDrop, endpoint);
    return;
  }
  ++link.packets;
  link.bytes += store_.arena()[packet].wire_bytes;
  if (link.tapped) capture(now, link, packet);
  if (!by_event_) {
    arrive(now, endpoint, direction, packet);
    return;
  }
  if (park_all_) store_.park(packet);
  events_.schedule(now + plan_.link_delay, kArrival, link.events, packet,
                   static_cast<uint64_t>(endpoint) << 1 | static_cast<uint64_t>(direction));
}

/// A frame leaves the link at its other end.
void LiveFabric::arrive(Instant now, uint32_t endpoint, Direction direction, PacketRef packet) {
  PacketDescriptor& d = store_.arena()[packet];
  d.head = d.tail = now;
  if (direction == Direction::kUp) {
    const fabric::Arrival arrival = switch_->receive(now, static_cast<fabric::SwitchPort>(endpoint), packet);
    if (arrival.drop != DropReason::kNone) {
      dropped(now, packet, arrival.drop, endpoint);
    } else if (arrival.waits) {
      store_.park(packet);
    }
    return;
  }
  if (endpoint >= endpoints_.size()) {
    arrive_outside(endpoint - static_cast<uint32_t>(endpoints_.size()), packet);
    return;
  }
  nic::HostNic& nic = *endpoints_[endpoint].nic;
  if ((d.flags & kPacketIcrcChecked) != 0 &&
      icrc(store_.headers(packet), store_.payload(packet)) != store_.at(packet).icrc) {
    nic.count_drop(DropReason::kBadIcrc);
    dropped(now, packet, DropReason::kBadIcrc, endpoint);
    return;
  }
  nic.receive(now, packet);
}

/// Serves egress until everything that may go has gone; in bursts, because a NIC may pause in between.
void LiveFabric::drain(Instant now) {
  for (fabric::SwitchPort port; (port = switch_->take_ready_port()) != fabric::kNoSwitchPort;) {
    for (bool more = true; more;) {
      for (uint32_t i = 0; i < kBurst && more; ++i) {
        const PacketRef packet = switch_->transmit(now, port);
        more = packet != kNoPacket;
        if (more) cross(now, port, Direction::kDown, packet);
      }
      if (!by_event_) finish_nic(now, port);
    }
  }
  for (fabric::SwitchPort port; (port = switch_->take_changed_port()) != fabric::kNoSwitchPort;) {
    if (port >= endpoints_.size()) continue;  // the driver asks outside_paused()
    for (LiveSeat* seat : endpoints_[port].seats) resumed_.push_back(seat);
  }
}

/// Hands over what the NIC received and tells the switch what it may send.
void LiveFabric::finish_nic(Instant now, uint32_t endpoint) {
  if (endpoint >= endpoints_.size()) {
    finish_outside(now, endpoint - static_cast<uint32_t>(endpoints_.size()));
    return;
  }
  Endpoint& e = endpoints_[endpoint];
  e.nic->deliver(now);
  const uint8_t paused = e.nic->paused();
  for (uint8_t changed = paused ^ applied_pause_[endpoint]; changed != 0;
       changed = static_cast<uint8_t>(changed & (changed - 1))) {
    const uint8_t priority = static_cast<uint8_t>(std::countr_zero(changed));
    switch_->set_paused(static_cast<fabric::SwitchPort>(endpoint), priority, (paused >> priority & 1) != 0);
  }
  applied_pause_[endpoint] = paused;
  schedule_stall(e);
}

void LiveFabric::schedule_stall(Endpoint& e) {
  const Instant deadline = e.nic->next_deadline();
  if (deadline == kNever || e.stall_queued) return;  // one queued event a NIC; it looks again when it is due
  e.stall_queued = true;
  events_.schedule(deadline, kStall, e.stall_events, e.nic->identity().endpoint);
}

void LiveFabric::run_due(Instant now) {
  if (events_.empty()) return;
  const auto handle = [&](const Event& event) {
    if (event.kind() == kArrival) {
      const uint32_t endpoint = static_cast<uint32_t>(event.b >> 1);
      arrive(event.due, endpoint, static_cast<Direction>(event.b & 1), static_cast<PacketRef>(event.a));
      finish_nic(event.due, endpoint);
      drain(event.due);
      return;
    }
    if (event.kind() == kOutsideRetry) return retry_outside(event.due, static_cast<uint32_t>(event.a));
    if (event.kind() == kNeighbour) return neighbour_timer(event.due);
    Endpoint& e = endpoints_[event.a];
    e.stall_queued = false;
    e.nic->on_timer(event.due);
    finish_nic(event.due, static_cast<uint32_t>(event.a));
    drain(event.due);
  };
  events_.run_until(now, handle);
}

// --- drops and captures ---------------------------------------------------------------------------------------------

void LiveFabric::dropped(Instant /*now*/, PacketRef packet, DropReason reason, uint32_t endpoint) {
  notify(packet, reason, endpoint);
  store_.release(packet);
}

void LiveFabric::notify(PacketRef packet, DropReason reason, uint32_t endpoint) {
  const NoticeReason why = notice_reason(reason);
  if (why == NoticeReason::kNone) return;
  const PacketDescriptor& d = store_.arena()[packet];
  attach::Notice notice{};
  notice.address = d.destination_address;
  notice.qpn = d.dest_qpn;
  notice.psn_first = notice.psn_last = d.psn;
  notice.reason = why;
  notice.place = link_id(endpoint, endpoint == d.source ? Direction::kUp : Direction::kDown);
  LiveSeat* const sender = seat_of_tag(d.seat);
  if (sender != nullptr && sender->state == SeatState::kAttached) sender->port.notice(notice);
  if ((d.flags & kPacketAnswer) == 0 || d.destination >= endpoints_.size()) return;
  attach::FramePort* const waiting = endpoints_[d.destination].nic->owner(d.dest_qpn);
  if (waiting != nullptr) waiting->notice(notice);
}

void LiveFabric::capture(Instant now, const LinkDirection& link, PacketRef packet) {
  const std::span<const uint8_t> headers = store_.headers(packet);
  const std::span<const uint8_t> payload = store_.payload(packet);
  const bool known = (store_.arena()[packet].flags & kPacketIcrcChecked) != 0;
  std::array<uint8_t, 4> trailer;
  store_icrc(known ? store_.at(packet).icrc : icrc(headers, payload), trailer.data());
  const int64_t ns = std::chrono::duration_cast<std::chrono::nanoseconds>(now.time_since_epoch()).count();
  tap_.put(static_cast<uint64_t>(ns + unix_offset_ns_), link.events.id, headers, payload, trailer);
}

}  // namespace weft::engine
