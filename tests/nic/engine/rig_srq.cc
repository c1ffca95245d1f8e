// SPDX-License-Identifier: Apache-2.0
//
// Client: shared receive queues, as the rxe provider uses them; and the async fd.
#include "tests/nic/engine/rig.h"

// Without Catch, as in rig.cc.
#define REQUIRE(...) ((__VA_ARGS__) ? void() : ::weft::test::rig_failed(__FILE__, __LINE__, #__VA_ARGS__))

namespace weft::test {

ib_uverbs_async_event_desc Client::next_async() {
  ib_uverbs_async_event_desc event = {};
  if (recv(async_fd, &event, sizeof event, MSG_DONTWAIT) != sizeof event) event.event_type = 99;
  return event;
}

long Client::try_create_srq(const SrqOptions& options, Srq& srq) {
  CreatedSrq out = {};
  ib_uverbs_create_srq in = {};
  in.response = reinterpret_cast<uint64_t>(&out);
  in.user_handle = next_handle_ += 0x100;
  in.pd_handle = options.pd != 0 ? options.pd : pd;
  in.max_wr = options.max_wr;
  in.max_sge = options.max_sge;
  in.srq_limit = options.limit;
  const long result = plain(IB_USER_VERBS_CMD_CREATE_SRQ, &in, sizeof in, sizeof out);
  if (result < 0) return result;
  srq.handle = out.handle;
  srq.number = out.srqn;
  srq.max_wr = out.max_wr;
  srq.max_sge = out.max_sge;
  srq.user_handle = in.user_handle;
  srq.ring = map(out.map);
  REQUIRE(out.number == out.srqn);
  return result;
}

Srq Client::create_srq(const SrqOptions& options) {
  Srq srq;
  REQUIRE(try_create_srq(options, srq) == 40);
  return srq;
}

long Client::modify_srq(Srq& srq, uint32_t mask, uint32_t max_wr, uint32_t limit) {
  mminfo fresh = {};
  struct {
    uint32_t handle, mask, max_wr, limit;
    uint64_t map;
  } in = {srq.handle, mask, max_wr, limit, reinterpret_cast<uint64_t>(&fresh)};
  const long result = plain(IB_USER_VERBS_CMD_MODIFY_SRQ, &in, sizeof in, 0);
  if (result > 0 && (mask & 1) != 0) srq.ring = map(fresh);
  return result;
}

ib_uverbs_query_srq_resp Client::query_srq(const Srq& srq) {
  ib_uverbs_query_srq_resp out = {};
  ib_uverbs_query_srq in = {};
  in.response = reinterpret_cast<uint64_t>(&out);
  in.srq_handle = srq.handle;
  REQUIRE(plain(IB_USER_VERBS_CMD_QUERY_SRQ, &in, sizeof in, sizeof out) == 24);
  return out;
}

long Client::destroy_srq(const Srq& srq, uint32_t* events) {
  ib_uverbs_destroy_srq in = {};
  ib_uverbs_destroy_srq_resp out = {};
  in.response = reinterpret_cast<uint64_t>(&out);
  in.srq_handle = srq.handle;
  const long result = plain(IB_USER_VERBS_CMD_DESTROY_SRQ, &in, sizeof in, sizeof out);
  if (events != nullptr) *events = out.events_reported;
  return result;
}

void Client::post_srq_recv(const Srq& srq, uint64_t wr_id, const std::vector<rxe_sge>& sges) {
  Qp view;
  view.receive = srq.ring;
  post_recv(view, wr_id, sges);
}

}  // namespace weft::test
