// SPDX-License-Identifier: Apache-2.0
//
// One face for the sending halves of RC, UC and UD, so that the transmit path is written once (a template per service,
// no virtual call per packet). `now` is ignored where a service has no timers.
#pragma once

#include "protocols/base/time.h"
#include "protocols/rc/requester.h"
#include "protocols/rc/responder.h"
#include "protocols/transport/work.h"
#include "protocols/uc/uc.h"
#include "protocols/ud/ud.h"

namespace weft::nic {

struct RcMachines {
  RcRequester requester;
  RcResponder responder;

  bool can_post() const { return requester.can_post(); }
  void post(const SendWork& work) { requester.post(work); }
  bool wants(Instant now) const { return requester.wants_to_send(now); }
  bool pull(Instant now, OutFrame& out) { return requester.pull(now, out); }
  void fail(Instant now, WorkNumber work, WorkStatus status) { requester.fail(now, work, status); }
  void flush() { requester.flush(); }
  bool next_completion(SendCompletion& out) { return requester.next_completion(out); }
  bool failed() const { return requester.failed(); }
  bool idle() const { return requester.idle(); }
  bool all_sent() const { return requester.all_sent(); }
  bool fence_open() const { return !requester.reads_outstanding(); }
};

struct UcMachines {
  UcSender sender;
  UcReceiver receiver;

  bool can_post() const { return sender.can_post(); }
  void post(const SendWork& work) { sender.post(work); }
  bool wants(Instant) const { return sender.wants_to_send(); }
  bool pull(Instant, OutFrame& out) { return sender.pull(out); }
  void fail(Instant, WorkNumber work, WorkStatus status) { sender.fail(work, status); }
  void flush() { sender.flush(); }
  bool next_completion(SendCompletion& out) { return sender.next_completion(out); }
  bool failed() const { return sender.failed(); }
  bool idle() const { return sender.idle(); }
  bool all_sent() const { return sender.idle(); }  // a work completes when it has left
  bool fence_open() const { return true; }
};

struct UdMachines {
  UdSender sender;

  bool can_post() const { return sender.can_post(); }
  void post(const SendWork& work) { sender.post(work); }
  bool wants(Instant) const { return sender.wants_to_send(); }
  bool pull(Instant, OutFrame& out) { return sender.pull(out); }
  void fail(Instant, WorkNumber work, WorkStatus status) { sender.fail(work, status); }
  void flush() { sender.flush(); }
  bool next_completion(SendCompletion& out) { return sender.next_completion(out); }
  bool failed() const { return sender.failed(); }
  bool idle() const { return sender.idle(); }
  bool all_sent() const { return sender.idle(); }  // a work completes when it has left
  bool fence_open() const { return true; }
};

}  // namespace weft::nic
