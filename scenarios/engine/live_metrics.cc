// SPDX-License-Identifier: Apache-2.0
//
// The live fabric's counters in the registry's vocabulary: name, labels, value (DECISIONS 31). Zeros of classes that
// were never used are left out; a priority's or a reason's first use brings its samples.
#include "scenarios/engine/live_fabric.h"

namespace weft::engine {
namespace {

using Labels = std::vector<std::pair<std::string, std::string>>;

class Samples {
 public:
  explicit Samples(std::vector<MetricSample>& out) : out_(out) {}
  void add(const char* name, Labels labels, uint64_t value, bool always = true) {
    if (value != 0 || always) out_.push_back({name, std::move(labels), value});
  }

 private:
  std::vector<MetricSample>& out_;
};

Labels with(Labels labels, const char* key, std::string value) {
  labels.emplace_back(key, std::move(value));
  return labels;
}

void nic_samples(Samples& out, const Labels& nic, const nic::NicCounters& c) {
  for (uint32_t p = 0; p < kPriorityCount; ++p) {
    const Labels labels = with(nic, "priority", std::to_string(p));
    const bool always = p == 0;
    out.add("nic_tx_packets", labels, c.tx_packets[p], always);
    out.add("nic_tx_bytes", labels, c.tx_bytes[p], always);
    out.add("nic_rx_packets", labels, c.rx_packets[p], always);
    out.add("nic_rx_bytes", labels, c.rx_bytes[p], always);
    out.add("nic_pauses", labels, c.pauses[p], false);
  }
  for (uint32_t r = 1; r < kDropReasons; ++r) {
    out.add("nic_drops", with(nic, "reason", drop_reason_name(static_cast<DropReason>(r))), c.drops[r], false);
  }
  out.add("nic_receiver_stalls", nic, c.stalls, false);
  out.add("nic_rx_multicast", nic, c.rx_multicast, false);
}

void port_samples(Samples& out, const Labels& port, const fabric::SwitchCore& core, fabric::SwitchPort index) {
  for (uint8_t p = 0; p < kPriorityCount; ++p) {
    const Labels labels = with(port, "priority", std::to_string(p));
    const bool always = p == 0;
    const fabric::IngressClass& in = core.ingress(index, p);
    const fabric::EgressQueue& queue = core.queue(index, p);
    out.add("switch_rx_packets", labels, in.packets, always);
    out.add("switch_rx_bytes", labels, in.bytes, always);
    out.add("switch_xoffs", labels, in.xoffs, false);
    out.add("switch_tx_packets", labels, queue.packets, always);
    out.add("switch_tx_bytes", labels, queue.bytes, always);
    out.add("switch_queue_bytes", labels, queue.held_bytes, always);
    out.add("switch_queue_max_bytes", labels, queue.max_bytes, always);
    out.add("switch_paused", labels, queue.pauses, false);
  }
  out.add("switch_multicast_in", port, core.multicast_in(index), false);
  out.add("switch_multicast_out", port, core.multicast_out(index), false);
  for (uint32_t r = 1; r < kDropReasons; ++r) {
    const DropReason reason = static_cast<DropReason>(r);
    out.add("switch_drops", with(port, "reason", drop_reason_name(reason)), core.drops(index, reason), false);
  }
}

void outside_samples(Samples& out, const Labels& port, const OutsideEnd& end) {
  const dpdk::OutsideCounters& c = end.port->counters();
  const Labels labels = with(port, "outside", end.plan.name);
  out.add("outside_rx_frames", labels, c.rx_frames);
  out.add("outside_rx_bytes", labels, c.rx_bytes);
  out.add("outside_tx_frames", labels, c.tx_frames);
  out.add("outside_tx_bytes", labels, c.tx_bytes);
  out.add("outside_tx_refused", labels, c.tx_refused, false);
  out.add("outside_link_up", labels, end.port->link_up());
  for (uint32_t r = 1; r < kDropReasons; ++r) {
    out.add("outside_drops", with(labels, "reason", drop_reason_name(static_cast<DropReason>(r))), end.drops[r], false);
  }
  out.add("outside_drops", with(labels, "reason", "too_long"), c.too_long, false);
}

void neighbour_samples(Samples& out, const nic::Neighbours& neighbours) {
  const nic::NeighbourCounters& c = neighbours.counters();
  out.add("neighbours_known", {}, neighbours.known());
  out.add("neighbour_answers", {{"what", "address"}}, c.arp_answers);
  out.add("neighbour_answers", {{"what", "echo"}}, c.echo_answers);
  out.add("neighbour_questions", {}, c.questions);
  out.add("neighbours_resolved", {}, c.resolved);
  out.add("neighbour_timeouts", {}, c.timeouts);
  out.add("neighbour_foreign", {}, c.foreign);
}

}  // namespace

NicTotals LiveFabric::totals(uint32_t endpoint) const {
  const Endpoint& e = endpoints_[endpoint];
  const nic::NicCounters& c = e.nic->counters();
  NicTotals totals;
  for (uint32_t p = 0; p < kPriorityCount; ++p) {
    totals.tx_packets += c.tx_packets[p];
    totals.tx_bytes += c.tx_bytes[p];
    totals.rx_packets += c.rx_packets[p];
    totals.rx_bytes += c.rx_bytes[p];
  }
  totals.tx_multicast = switch_->multicast_in(static_cast<fabric::SwitchPort>(endpoint));
  totals.rx_multicast = c.rx_multicast;
  for (uint32_t r = static_cast<uint32_t>(DropReason::kTruncated); r <= static_cast<uint32_t>(DropReason::kForeignSource); ++r) {
    totals.refused += c.drops[r];
  }
  totals.bad_icrc = c.drops[static_cast<uint32_t>(DropReason::kBadIcrc)];
  totals.transport = e.gone_counters;
  for (const LiveSeat* seat : e.seats) {
    if (seat->state != SeatState::kAttached) continue;  // its last values are among the gone ones
    for (uint32_t i = 0; i < kNicCounters; ++i) totals.transport[i] += seat->port.counters().get(static_cast<NicCounter>(i));
  }
  return totals;
}

std::vector<MetricSample> LiveFabric::metrics() {
  std::vector<MetricSample> samples;
  Samples out(samples);
  uint64_t attached = 0;
  uint64_t draining = 0;
  for (const auto& seat : seats_) {
    if (seat != nullptr) ++(seat->state == SeatState::kAttached ? attached : draining);
  }
  out.add("process_ports", {}, attached);
  out.add("seats_draining", {}, draining);
  for (uint32_t i = 0; i < endpoints_.size(); ++i) {
    const Endpoint& e = endpoints_[i];
    const std::string& host = plan_.hosts[e.host].name;
    const Labels nic = {{"host", host}, {"nic", "rxe" + std::to_string(e.nic_index)}};
    nic_samples(out, nic, e.nic->counters());
    const NicTotals nic_totals = totals(i);
    for (uint32_t c = 0; c < kNicCounters; ++c) {
      out.add(nic_counter_info(static_cast<NicCounter>(c)).metric, nic, nic_totals.transport[c], false);
    }
  }
  for (uint32_t i = 0; i < ports(); ++i) {
    const Labels port = {{"switch", plan_.switch_name}, {"port", std::to_string(i)}};
    port_samples(out, port, *switch_, static_cast<fabric::SwitchPort>(i));
    if (i >= endpoints_.size()) outside_samples(out, port, *outside_[i - endpoints_.size()]);
    for (const Direction direction : {Direction::kUp, Direction::kDown}) {
      const LinkDirection& link = this->link(i, direction);
      out.add("link_packets", {{"link", link.name}}, link.packets);
      out.add("link_bytes", {{"link", link.name}}, link.bytes);
      out.add("link_drops", {{"link", link.name}, {"reason", "link_drop"}}, link.drops, false);
      out.add("link_drops", {{"link", link.name}, {"reason", "link_down"}}, link.down_drops, false);
    }
  }
  if (neighbours_ != nullptr) neighbour_samples(out, *neighbours_);
  out.add("packets_live", {}, store_.arena().live());
  out.add("packets_parked", {}, store_.parked());
  out.add("packets_cloned", {}, store_.cloned());
  out.add("park_failures", {}, store_.park_failures());
  out.add("packet_memory_in_use", {}, store_.memory().in_use());
  out.add("capture_lost_frames", {}, tap_.lost());
  return samples;
}

}  // namespace weft::engine
