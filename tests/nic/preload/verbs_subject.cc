// SPDX-License-Identifier: Apache-2.0
//
// A program of libibverbs that looks at what libweft did to it; run by process_test.py. Says what is wrong and ends
// with 1. The offsets that nic/preload/inline_progress.h believes are compared with verbs.h when this is compiled.
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "nic/preload/inline_progress.h"

namespace offsets = weft::preload::inline_progress;
static_assert(offsetof(ibv_context, ops) == offsets::kContextOps);
static_assert(offsetof(ibv_context_ops, poll_cq) == offsets::kOpsPollCq);
static_assert(offsetof(ibv_context_ops, post_recv) == offsets::kOpsPostRecv);
static_assert(offsetof(ibv_context, cmd_fd) == offsets::kContextCommandFd);
static_assert(offsetof(ibv_cq, context) == 0 && offsetof(ibv_cq_ex, context) == 0 && offsetof(ibv_qp, context) == 0);
static_assert(offsetof(ibv_cq_ex, status) == offsets::kExtendedStatus);
static_assert(sizeof(ibv_wc) == offsets::kWcBytes && offsetof(ibv_wc, status) == offsets::kWcStatus);
static_assert(offsetof(ibv_cq_ex, start_poll) == offsets::kExtendedStartPoll);
static_assert(offsetof(ibv_cq_ex, next_poll) == offsets::kExtendedNextPoll);
static_assert(offsetof(ibv_cq_ex, end_poll) == offsets::kExtendedEndPoll);
static_assert(offsetof(ibv_qp, state) == offsets::kQpState && IBV_QPS_ERR == offsets::kErrorState);

namespace {

void require(bool condition, const char* what) {
  if (condition) return;
  fprintf(stderr, "verbs_subject: %s\n", what);
  exit(1);
}

template <typename Function>
bool in_libweft(Function* function) {
  Dl_info info{};
  return dladdr(reinterpret_cast<void*>(function), &info) != 0 && strstr(info.dli_fname, "libweft.so") != nullptr;
}

struct Verbs {
  explicit Verbs(bool extended) {
    int count = 0;
    ibv_device** devices = ibv_get_device_list(&count);
    require(count >= 1, "no device");
    context = ibv_open_device(devices[0]);
    require(context != nullptr, "ibv_open_device");
    ibv_free_device_list(devices);
    pd = ibv_alloc_pd(context);
    channel = ibv_create_comp_channel(context);
    require(pd != nullptr && channel != nullptr, "pd or channel");
    if (extended) {
      ibv_cq_init_attr_ex attributes{};
      attributes.cqe = 64;
      attributes.wc_flags = IBV_WC_EX_WITH_BYTE_LEN;
      cq_ex = ibv_create_cq_ex(context, &attributes);
      require(cq_ex != nullptr, "ibv_create_cq_ex");
      cq = ibv_cq_ex_to_cq(cq_ex);
    } else {
      cq = ibv_create_cq(context, 64, nullptr, channel, 0);
    }
    require(cq != nullptr, "cq");
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq;
    init.cap = {8, 8, 1, 1, 0};
    init.qp_type = IBV_QPT_RC;
    qp = ibv_create_qp(pd, &init);
    require(qp != nullptr, "ibv_create_qp");
  }

  void to_init() {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = 1;
    require(ibv_modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0,
            "modify to INIT");
  }
  void to_error() {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_ERR;
    require(ibv_modify_qp(qp, &attributes, IBV_QP_STATE) == 0, "modify to ERR");
  }
  void post_recv(uint64_t id) {
    ibv_recv_wr request{};
    ibv_recv_wr* bad = nullptr;
    request.wr_id = id;
    require(ibv_post_recv(qp, &request, &bad) == 0, "ibv_post_recv");
  }
  void close() {
    require(ibv_destroy_qp(qp) == 0, "ibv_destroy_qp");
    require(ibv_destroy_cq(cq) == 0, "ibv_destroy_cq");
    require(ibv_destroy_comp_channel(channel) == 0, "ibv_destroy_comp_channel");
    require(ibv_dealloc_pd(pd) == 0, "ibv_dealloc_pd");
    require(ibv_close_device(context) == 0, "ibv_close_device");
  }

  ibv_context* context;
  ibv_pd* pd;
  ibv_comp_channel* channel;
  ibv_cq_ex* cq_ex = nullptr;
  ibv_cq* cq;
  ibv_qp* qp;
};

ibv_wc poll_one(ibv_cq* cq) {
  ibv_wc wc{};
  int found = 0;
  for (long i = 0; i < 50'000'000 && found == 0; ++i) found = ibv_poll_cq(cq, 1, &wc);
  require(found == 1, "no completion");
  return wc;
}

// The same with and without inline progress: polling steps over withdrawn completions, and over what rdma-core before 55
// does at the end of a poll.
void hooks() {
  for (int round = 0; round < 3; ++round) {
    Verbs plain(false);
    require(in_libweft(plain.context->ops.poll_cq), "poll_cq of the context");
    require(in_libweft(plain.context->ops.post_recv), "post_recv of the context");
    Verbs extended(true);
    require(in_libweft(extended.context->ops.poll_cq), "poll_cq of the second context");
    require(in_libweft(extended.cq_ex->start_poll), "start_poll");
    require(in_libweft(extended.cq_ex->next_poll), "next_poll");
    require(in_libweft(extended.cq_ex->end_poll), "end_poll");
    ibv_poll_cq_attr none{};
    require(ibv_start_poll(extended.cq_ex, &none) == ENOENT, "start_poll of an empty queue");
    ibv_wc wc;
    for (int i = 0; i < 1000; ++i) require(ibv_poll_cq(plain.cq, 1, &wc) == 0, "a completion out of nowhere");
    plain.close();
    extended.close();
  }
}

void flush() {
  Verbs v(false);
  v.to_init();
  v.post_recv(1);
  v.to_error();
  const ibv_wc first = poll_one(v.cq);
  require(first.status == IBV_WC_WR_FLUSH_ERR && first.wr_id == 1, "the posted receive is flushed");
  // Posted in ERR, by a program that then sleeps on its channel: the background thread flushes it.
  require(ibv_req_notify_cq(v.cq, 0) == 0, "ibv_req_notify_cq");
  v.post_recv(2);
  pollfd entry{v.channel->fd, POLLIN, 0};
  require(poll(&entry, 1, 5000) == 1, "no event for a receive posted in ERR");
  ibv_cq* which = nullptr;
  void* cookie = nullptr;
  require(ibv_get_cq_event(v.channel, &which, &cookie) == 0 && which == v.cq, "ibv_get_cq_event");
  ibv_ack_cq_events(which, 1);
  const ibv_wc second = poll_one(v.cq);
  require(second.status == IBV_WC_WR_FLUSH_ERR && second.wr_id == 2, "the late receive is flushed");
  v.close();
}

// Two contexts polled by a thread each, opened and closed over and over.
void* open_and_close(void*) {
  for (int i = 0; i < 60; ++i) {
    Verbs v((i & 1) != 0);
    ibv_wc wc;
    for (int k = 0; k < 50; ++k) require(ibv_poll_cq(v.cq, 1, &wc) == 0, "a completion out of nowhere");
    v.close();
  }
  return nullptr;
}

void threads() {
  pthread_t other;
  require(pthread_create(&other, nullptr, open_and_close, nullptr) == 0, "pthread_create");
  open_and_close(nullptr);
  pthread_join(other, nullptr);
}

}  // namespace

int main(int argc, char** argv) {
  const char* mode = argc > 1 ? argv[1] : "";
  if (strcmp(mode, "hooks") == 0)
    hooks();
  else if (strcmp(mode, "flush") == 0)
    flush();
  else if (strcmp(mode, "threads") == 0)
    threads();
  else
    require(false, "modes: hooks, flush, threads");
  return 0;
}
