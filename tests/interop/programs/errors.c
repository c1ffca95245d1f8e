// SPDX-License-Identifier: Apache-2.0
//
// errors CASE: provokes one completion status or asynchronous event by its natural cause, and judges both sides of the
// connection: statuses in order, events and whose they are, the states of both QPs, and that nothing else comes.
// Exit code 0 when all is as a NIC does it, 1 with a line on stderr, 2 for an unknown case. IBTA Vol
// 1, 9.9, 10.10, 11.6.
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "qp_rig.h"
#include "verbs_pair.h"

enum { kNone = -1, kBytes = 4096, kMostSteps = 4 };

struct expectation {
  int status[kMostSteps];  // completions of this side in order, kNone ends the list
  int event;               // or kNone
  int state;
};

struct error_case {
  const char* name;
  enum ibv_qp_type type;
  int (*provoke)(struct rig*);
  struct expectation side[2];
  void (*prepare)(struct rig_options*);
};

#define RTS IBV_QPS_RTS
#define SQE IBV_QPS_SQE
#define BROKEN IBV_QPS_ERR
#define OK IBV_WC_SUCCESS
#define FLUSH IBV_WC_WR_FLUSH_ERR

// Every case posts its offending work, then one more that must be flushed (wr_id 2); side 1 has a receive request.
static int follow(struct rig* rig, struct rig_work* work) {
  int error = rig_post(rig, 0, work);
  return error ? error : rig_send(rig, 0, 2, IBV_WR_SEND, 0, 8, 0);
}

static void write_only_work(struct rig* rig, struct rig_work* work, enum ibv_wr_opcode opcode, size_t bytes) {
  rig_describe(rig, 0, 1, opcode, 0, bytes, 0, work);
}

// --- found by the requester --------------------------------------------------------------------------------------

static int too_long(struct rig* rig) {
  struct rig_work work;
  write_only_work(rig, &work, IBV_WR_SEND, 0x7fffffff);
  work.sge[1] = work.sge[0];
  work.wr.num_sge = 2;
  return follow(rig, &work);
}

static int longer_than_mtu(struct rig* rig) {
  struct ibv_port_attr port;
  if (ibv_query_port(rig->context, 1, &port)) return errno;
  struct rig_work work;
  write_only_work(rig, &work, IBV_WR_SEND, (128u << port.active_mtu) + 1);
  return follow(rig, &work);
}

static int read_it(struct rig* rig) {
  struct rig_work work;
  write_only_work(rig, &work, IBV_WR_RDMA_READ, 8);
  return follow(rig, &work);
}

static int bad_lkey(struct rig* rig) {
  struct rig_work work;
  write_only_work(rig, &work, IBV_WR_SEND, kBytes);
  work.sge[0].lkey ^= 0x5a00;
  return follow(rig, &work);
}

static int foreign_address(struct rig* rig) {
  struct ibv_pd* other = ibv_alloc_pd(rig->context);
  struct ibv_ah_attr address = {.is_global = 1, .port_num = 1};
  address.grh.dgid = rig->gid;
  address.grh.sgid_index = 1;
  struct ibv_ah* ah = other ? ibv_create_ah(other, &address) : NULL;
  if (!ah) return errno;
  struct rig_work work;
  write_only_work(rig, &work, IBV_WR_SEND, 8);
  work.wr.wr.ud.ah = ah;
  int error = follow(rig, &work);
  ibv_destroy_ah(ah);
  ibv_dealloc_pd(other);
  return error;
}

// --- found by the responder --------------------------------------------------------------------------------------

static int write_it(struct rig* rig) {
  struct rig_work work;
  write_only_work(rig, &work, IBV_WR_RDMA_WRITE, kBytes);
  return follow(rig, &work);
}

static int one_byte_past(struct rig* rig, enum ibv_wr_opcode opcode) {
  struct rig_work work;
  write_only_work(rig, &work, opcode, kBytes);
  work.wr.wr.rdma.remote_addr += rig->options.bytes - kBytes + 1;
  return follow(rig, &work);
}
static int write_past(struct rig* rig) { return one_byte_past(rig, IBV_WR_RDMA_WRITE); }
static int read_past(struct rig* rig) { return one_byte_past(rig, IBV_WR_RDMA_READ); }

static int past_all_memory(struct rig* rig) {
  struct ibv_device_attr device;
  if (ibv_query_device(rig->context, &device)) return errno;
  struct rig_work work;
  write_only_work(rig, &work, IBV_WR_RDMA_WRITE, 2);
  work.wr.wr.rdma.remote_addr = device.max_mr_size;  // its first byte is the last one, its second one past it
  return follow(rig, &work);
}

static int bad_rkey(struct rig* rig) {
  struct rig_work work;
  write_only_work(rig, &work, IBV_WR_RDMA_READ, kBytes);
  work.wr.wr.rdma.rkey ^= 0x5a00;
  return follow(rig, &work);
}

static int short_receive(struct rig* rig) {
  struct rig_work work;
  write_only_work(rig, &work, IBV_WR_SEND, kBytes + 1);
  return follow(rig, &work);
}

static int send_two(struct rig* rig) {
  struct rig_work work;
  write_only_work(rig, &work, IBV_WR_SEND, 8);
  return follow(rig, &work);
}

// The receive request is good when posted, its memory is not when used.
static int lost_receive(struct rig* rig) {
  int error = ibv_dereg_mr(rig->side[1].mr);
  rig->side[1].mr = NULL;
  return error ? error : send_two(rig);
}

// --- found by nobody ---------------------------------------------------------------------------------------------

// Takes side 1's receive request away first, so that the next finds none.
static int send_without_receive(struct rig* rig) {
  struct ibv_wc wc;
  int error = rig_send(rig, 0, 9, IBV_WR_SEND, 0, 8, 0);
  if (error || rig_wait(rig, 0, &wc) || wc.status || rig_wait(rig, 1, &wc) || wc.status) return error ? error : EIO;
  return send_two(rig);
}

static int to_nobody(struct rig* rig) {
  int error = rig_to(rig, 1, IBV_QPS_RESET);
  return error ? error : send_two(rig);
}

static int end_it(struct rig* rig) {
  int error = rig_to(rig, 0, IBV_QPS_ERR);
  if (!error) error = rig_to(rig, 1, IBV_QPS_ERR);
  if (!error) error = rig_send(rig, 0, 1, IBV_WR_SEND, 0, 8, 0);
  return error ? error : rig_send(rig, 0, 2, IBV_WR_RDMA_WRITE, 0, 8, 0);
}

static int drain(struct rig* rig) {
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1};
  int error = rig_send(rig, 0, 1, IBV_WR_SEND, 0, 8, 0);
  return error ? error : ibv_modify_qp(rig->side[0].qp, &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY);
}

// Side 1 goes back to RTR, which only a RESET can bring, and hears a message there.
static int early_message(struct rig* rig) {
  int error = rig_to(rig, 1, IBV_QPS_RESET);
  if (!error) error = rig_to_init(rig, 1);
  if (!error) error = rig_to_rtr(rig, 1);
  if (!error) error = rig_receive(rig, 1, 7, 0, kBytes);
  return error ? error : rig_send(rig, 0, 1, IBV_WR_SEND, 0, 8, 0);
}

// --- options -----------------------------------------------------------------------------------------------------

static void no_reads(struct rig_options* o) { o->rd_atomic[0] = 0; }
static void no_resources(struct rig_options* o) { o->dest_rd_atomic[1] = 0; }
static void no_write(struct rig_options* o) { o->qp_access[1] &= ~IBV_ACCESS_REMOTE_WRITE; }
static void no_read_right(struct rig_options* o) { o->mr_access &= ~IBV_ACCESS_REMOTE_READ; }
static void few_retries(struct rig_options* o) {
  o->timeout = 8;  // 1 ms
  o->retry = 1;
}
static void one_rnr(struct rig_options* o) { o->rnr_retry = 1; }
static void other_mtu(struct rig_options* o) { o->mtu[1] = IBV_MTU_256; }

// clang-format off
static const struct error_case kCases[] = {
    // name, service, cause, {statuses of side 0, event, state}, {of side 1}
    {"loc-len", IBV_QPT_RC, too_long, {{{IBV_WC_LOC_LEN_ERR, FLUSH, kNone}, kNone, BROKEN}, {{kNone}, kNone, RTS}}, NULL},
    {"loc-len-uc", IBV_QPT_UC, too_long, {{{IBV_WC_LOC_LEN_ERR, FLUSH, kNone}, kNone, SQE}, {{kNone}, kNone, RTS}}, NULL},
    {"loc-len-ud", IBV_QPT_UD, longer_than_mtu, {{{IBV_WC_LOC_LEN_ERR, FLUSH, kNone}, kNone, SQE}, {{kNone}, kNone, RTS}}, NULL},
    {"loc-qp-op", IBV_QPT_RC, read_it, {{{IBV_WC_LOC_QP_OP_ERR, FLUSH, kNone}, kNone, BROKEN}, {{kNone}, kNone, RTS}}, no_reads},
    {"loc-qp-op-uc", IBV_QPT_UC, read_it, {{{IBV_WC_LOC_QP_OP_ERR, FLUSH, kNone}, kNone, SQE}, {{kNone}, kNone, RTS}}, NULL},
    {"loc-qp-op-ud", IBV_QPT_UD, foreign_address, {{{IBV_WC_LOC_QP_OP_ERR, FLUSH, kNone}, kNone, SQE}, {{kNone}, kNone, RTS}}, NULL},
    {"loc-prot", IBV_QPT_RC, bad_lkey, {{{IBV_WC_LOC_PROT_ERR, FLUSH, kNone}, kNone, BROKEN}, {{kNone}, kNone, RTS}}, NULL},
    {"loc-prot-uc", IBV_QPT_UC, bad_lkey, {{{IBV_WC_LOC_PROT_ERR, FLUSH, kNone}, kNone, SQE}, {{kNone}, kNone, RTS}}, NULL},
    {"loc-prot-ud", IBV_QPT_UD, bad_lkey, {{{IBV_WC_LOC_PROT_ERR, FLUSH, kNone}, kNone, SQE}, {{kNone}, kNone, RTS}}, NULL},
    {"wr-flush", IBV_QPT_RC, end_it, {{{FLUSH, FLUSH, kNone}, kNone, BROKEN}, {{FLUSH, kNone}, kNone, BROKEN}}, NULL},
    {"rem-inv-req-right", IBV_QPT_RC, write_it, {{{IBV_WC_REM_INV_REQ_ERR, FLUSH, kNone}, kNone, BROKEN}, {{FLUSH, kNone}, IBV_EVENT_QP_REQ_ERR, BROKEN}}, no_write},
    {"rem-inv-req-reads", IBV_QPT_RC, read_it, {{{IBV_WC_REM_INV_REQ_ERR, FLUSH, kNone}, kNone, BROKEN}, {{FLUSH, kNone}, IBV_EVENT_QP_REQ_ERR, BROKEN}}, no_resources},
    {"rem-inv-req-mtu", IBV_QPT_RC, write_it, {{{IBV_WC_REM_INV_REQ_ERR, FLUSH, kNone}, kNone, BROKEN}, {{FLUSH, kNone}, IBV_EVENT_QP_REQ_ERR, BROKEN}}, other_mtu},
    {"rem-inv-req-receive", IBV_QPT_RC, short_receive, {{{IBV_WC_REM_INV_REQ_ERR, FLUSH, kNone}, kNone, BROKEN}, {{IBV_WC_LOC_LEN_ERR, kNone}, kNone, BROKEN}}, NULL},
    {"rem-access-write", IBV_QPT_RC, write_past, {{{IBV_WC_REM_ACCESS_ERR, FLUSH, kNone}, kNone, BROKEN}, {{FLUSH, kNone}, IBV_EVENT_QP_ACCESS_ERR, BROKEN}}, NULL},
    {"rem-access-read", IBV_QPT_RC, read_past, {{{IBV_WC_REM_ACCESS_ERR, FLUSH, kNone}, kNone, BROKEN}, {{FLUSH, kNone}, IBV_EVENT_QP_ACCESS_ERR, BROKEN}}, NULL},
    {"rem-access-rkey", IBV_QPT_RC, bad_rkey, {{{IBV_WC_REM_ACCESS_ERR, FLUSH, kNone}, kNone, BROKEN}, {{FLUSH, kNone}, IBV_EVENT_QP_ACCESS_ERR, BROKEN}}, NULL},
    {"rem-access-right", IBV_QPT_RC, read_it, {{{IBV_WC_REM_ACCESS_ERR, FLUSH, kNone}, kNone, BROKEN}, {{FLUSH, kNone}, IBV_EVENT_QP_ACCESS_ERR, BROKEN}}, no_read_right},
    {"rem-access-max-mr", IBV_QPT_RC, past_all_memory, {{{IBV_WC_REM_ACCESS_ERR, FLUSH, kNone}, kNone, BROKEN}, {{FLUSH, kNone}, IBV_EVENT_QP_ACCESS_ERR, BROKEN}}, NULL},
    {"rem-op", IBV_QPT_RC, lost_receive, {{{IBV_WC_REM_OP_ERR, FLUSH, kNone}, kNone, BROKEN}, {{IBV_WC_LOC_PROT_ERR, kNone}, kNone, BROKEN}}, NULL},
    {"retry-exc", IBV_QPT_RC, to_nobody, {{{IBV_WC_RETRY_EXC_ERR, FLUSH, kNone}, kNone, BROKEN}, {{kNone}, kNone, IBV_QPS_RESET}}, few_retries},
    {"rnr-retry-exc", IBV_QPT_RC, send_without_receive, {{{IBV_WC_RNR_RETRY_EXC_ERR, FLUSH, kNone}, kNone, BROKEN}, {{kNone}, kNone, RTS}}, one_rnr},
    {"comm-est", IBV_QPT_RC, early_message, {{{OK, kNone}, kNone, RTS}, {{OK, kNone}, IBV_EVENT_COMM_EST, IBV_QPS_RTR}}, NULL},
    {"comm-est-uc", IBV_QPT_UC, early_message, {{{OK, kNone}, kNone, RTS}, {{OK, kNone}, IBV_EVENT_COMM_EST, IBV_QPS_RTR}}, NULL},
    {"sq-drained", IBV_QPT_RC, drain, {{{OK, kNone}, IBV_EVENT_SQ_DRAINED, IBV_QPS_SQD}, {{OK, kNone}, kNone, RTS}}, NULL},
};
// clang-format on

static int complain(const char* name, const char* what, int side, int got, int expected) {
  fprintf(stderr, "%s: side %d: %s is %d, expected %d\n", name, side, what, got, expected);
  return 1;
}

static int judge_completions(struct rig* rig, const struct error_case* test, int side) {
  for (int i = 0; i < kMostSteps && test->side[side].status[i] != kNone; i++) {
    struct ibv_wc wc;
    if (rig_wait(rig, side, &wc)) return complain(test->name, "completions that came", side, i, i + 1);
    if ((int)wc.status != test->side[side].status[i])
      return complain(test->name, "status", side, (int)wc.status, test->side[side].status[i]);
    if (side == 0 && wc.wr_id != (uint64_t)i + 1) return complain(test->name, "wr_id", side, (int)wc.wr_id, i + 1);
    if (wc.qp_num != rig->side[side].qp->qp_num) return complain(test->name, "qp_num", side, (int)wc.qp_num, 0);
  }
  return 0;
}

static int judge_events(struct rig* rig, const struct error_case* test) {
  int left[2] = {test->side[0].event, test->side[1].event};
  for (;;) {
    int expects = left[0] != kNone || left[1] != kNone, side = -1;
    int event = rig_event(rig, expects ? rig->options.wait_ms : 0, &side);
    if (event == kRigNoEvent) break;
    if (side < 0 || left[side] != event)
      return complain(test->name, "event", side, event, side < 0 ? kNone : left[side]);
    left[side] = kNone;
  }
  for (int side = 0; side < 2; side++)
    if (left[side] != kNone) return complain(test->name, "event", side, kRigNoEvent, left[side]);
  return 0;
}

static int judge(struct rig* rig, const struct error_case* test) {
  if (judge_completions(rig, test, 0) || judge_completions(rig, test, 1) || judge_events(rig, test)) return 1;
  for (int side = 0; side < 2; side++) {
    struct ibv_wc wc;
    int state = rig_state(rig, side);
    if (state != test->side[side].state) return complain(test->name, "state", side, state, test->side[side].state);
    if (rig_poll(rig, side, &wc))
      return complain(test->name, "status of one completion more", side, (int)wc.status, kNone);
    // In ERR and SQE a later work is flushed, in ERR a later receive request too.
    if (state == BROKEN &&
        (rig_receive(rig, side, 30, 0, 8) || rig_wait(rig, side, &wc) || wc.wr_id != 30 || wc.status != FLUSH))
      return complain(test->name, "flush of a later receive request", side, 0, FLUSH);
    if ((state == BROKEN || state == SQE) && (rig_send(rig, side, 31, IBV_WR_SEND, 0, 8, 0) ||
                                              rig_wait(rig, side, &wc) || wc.wr_id != 31 || wc.status != FLUSH))
      return complain(test->name, "flush of a later work", side, 0, FLUSH);
  }
  return 0;
}

int main(int argc, char** argv) {
  const struct error_case* test = NULL;
  for (size_t i = 0; i < sizeof kCases / sizeof *kCases; i++) {
    if (argc == 2 && !strcmp(argv[1], "--list")) puts(kCases[i].name);
    if (argc == 2 && !strcmp(argv[1], kCases[i].name)) test = &kCases[i];
  }
  if (!test) return argc == 2 && !strcmp(argv[1], "--list") ? 0 : 2;
  struct rig rig;
  struct rig_options options = rig_defaults(test->type);
  if (test->prepare) test->prepare(&options);
  if (rig_open(&rig, &options) || rig_connect(&rig)) return 1;
  if (rig_receive(&rig, 1, 7, 0, kBytes)) return 1;
  int error = test->provoke(&rig);
  if (error) {
    fprintf(stderr, "%s: %s\n", test->name, strerror(error));
    return 1;
  }
  if (judge(&rig, test)) return 1;
  rig_close(&rig);
  return 0;
}
