// SPDX-License-Identifier: Apache-2.0
//
// stream server PORT [options]          waits for a client, checks what it gets, exits 0 when all of it arrived
// stream client HOST PORT [options]     sends numbered, patterned messages over RC for --seconds, or --count of them
//
// Both say "ready" on stdout after the first message has crossed and end with one line of JSON that says what they saw:
// messages, the first error's status and time, the longest pause between completions, asynchronous events. A program
// under a fault: it must end by itself, with a completion status, whatever was done to its peer, its daemon or the wire.
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "verbs_pair.h"

enum { kDepth = 16, kMaxBytes = 1 << 20, kEventWaitSeconds = 5, kChildSeconds = 30 };

struct end_point {
  uint32_t qpn, psn;
  union ibv_gid gid;
};

struct stream {
  struct verbs_pair_options options;
  size_t bytes;
  double seconds;
  uint64_t count;
  int abrupt, fork_child;
  struct ibv_context* context;
  struct ibv_pd* pd;
  struct ibv_mr* mr;
  struct ibv_comp_channel* channel;
  struct ibv_cq* cq;
  struct ibv_qp* qp;
  uint8_t* buffer;  // kDepth slots of `bytes`
  int socket;
  uint32_t unacked_events;
  uint64_t messages, mismatches;
  int status;
  double error_at, last_at, max_gap;
  uint32_t idle_polls;
};

static atomic_int fatal_event;
static sem_t fatal_event_seen;
static pthread_t event_thread;

static void fail(const char* what) {
  fprintf(stderr, "stream: %s: %s\n", what, strerror(errno));
  exit(1);
}

static void* watch_events(void* argument) {
  struct ibv_async_event event;
  while (ibv_get_async_event(argument, &event) == 0) {
    int fatal = event.event_type == IBV_EVENT_DEVICE_FATAL;
    ibv_ack_async_event(&event);
    if (!fatal) continue;
    fatal_event = 1;
    sem_post(&fatal_event_seen);
    break;
  }
  return NULL;
}

static void wait_for_fatal_event(void) {
  struct timespec end;
  clock_gettime(CLOCK_REALTIME, &end);
  end.tv_sec += kEventWaitSeconds;
  while (sem_timedwait(&fatal_event_seen, &end) && errno == EINTR) {
  }
}

static void open_device(struct stream* s) {
  s->context = verbs_open_first_device();
  if (!s->context) exit(1);
  if (sem_init(&fatal_event_seen, 0, 0) || pthread_create(&event_thread, NULL, watch_events, s->context))
    fail("event thread");
  pthread_detach(event_thread);
  s->pd = ibv_alloc_pd(s->context);
  s->buffer = aligned_alloc(4096, kDepth * (size_t)kMaxBytes);
  if (!s->pd || !s->buffer) fail("memory");
  s->mr = ibv_reg_mr(s->pd, s->buffer, kDepth * (size_t)kMaxBytes, IBV_ACCESS_LOCAL_WRITE);
  if (s->options.events && !(s->channel = ibv_create_comp_channel(s->context))) fail("ibv_create_comp_channel");
  s->cq = ibv_create_cq(s->context, 2 * kDepth, NULL, s->channel, 0);
  if (!s->mr || !s->cq) fail("ibv_reg_mr or ibv_create_cq");
  struct ibv_qp_init_attr attributes = {.send_cq = s->cq, .recv_cq = s->cq, .qp_type = IBV_QPT_RC};
  attributes.cap.max_send_wr = attributes.cap.max_recv_wr = kDepth;
  attributes.cap.max_send_sge = attributes.cap.max_recv_sge = 1;
  s->qp = ibv_create_qp(s->pd, &attributes);
  if (!s->qp) fail("ibv_create_qp");
}

static int listen_and_accept(const char* port) {
  struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found;
  if (getaddrinfo(NULL, port, &hints, &found)) fail("getaddrinfo");
  int fd = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (bind(fd, found->ai_addr, found->ai_addrlen) || listen(fd, 1)) fail("listen");
  freeaddrinfo(found);
  int peer = accept(fd, NULL, NULL);
  if (peer < 0) fail("accept");
  close(fd);
  return peer;
}

static int connect_to(const char* host, const char* port) {
  struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *found;
  int error = getaddrinfo(host, port, &hints, &found);
  if (error) {
    fprintf(stderr, "stream: %s: %s\n", host, gai_strerror(error));
    exit(1);
  }
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(fd, found->ai_addr, found->ai_addrlen)) fail("connect");
  freeaddrinfo(found);
  return fd;
}

static void exchange(int fd, const void* out, void* in, size_t bytes) {
  if (send(fd, out, bytes, 0) != (ssize_t)bytes || recv(fd, in, bytes, MSG_WAITALL) != (ssize_t)bytes)
    fail("exchange over TCP");
}

static uint8_t* slot(struct stream* s, uint64_t number) { return s->buffer + number % kDepth * s->bytes; }

static int post_receive(struct stream* s, uint64_t number) {
  struct ibv_sge sge = {(uintptr_t)slot(s, number), (uint32_t)s->bytes, s->mr->lkey};
  struct ibv_recv_wr wr = {.wr_id = number, .sg_list = &sge, .num_sge = 1}, *bad;
  return ibv_post_recv(s->qp, &wr, &bad);
}

static int post_send(struct stream* s, uint64_t number, int last) {
  verbs_fill(slot(s, number), s->bytes, (uint32_t)number);
  struct ibv_sge sge = {(uintptr_t)slot(s, number), (uint32_t)s->bytes, s->mr->lkey};
  struct ibv_send_wr wr = {.wr_id = number, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM}, *bad;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.imm_data = htonl(last ? 1 : 0);
  return ibv_post_send(s->qp, &wr, &bad);
}

static void connect_queue_pairs(struct stream* s, int server) {
  struct end_point own = {.qpn = s->qp->qp_num, .psn = server ? 0xffff00 : 0xfffff8}, peer;
  if (ibv_query_gid(s->context, 1, s->options.gid_index, &own.gid)) fail("ibv_query_gid");
  exchange(s->socket, &own, &peer, sizeof own);
  if (verbs_connect_qp(s->qp, peer.qpn, &peer.gid, peer.psn, own.psn, &s->options)) exit(1);
  if (server)
    for (uint64_t i = 0; i < kDepth; i++)
      if (post_receive(s, i)) fail("ibv_post_recv");
  char byte = 0;
  exchange(s->socket, &byte, &byte, 1);  // receives are posted
}

static int peer_hung_up(struct stream* s) {
  char byte;
  return recv(s->socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

// One completion, or 0 when the peer is gone and nothing is left to come. A server has no timer of its own: a dead
// client is something only TCP tells it.
static int next_completion(struct stream* s, struct ibv_wc* wc, int server) {
  int armed = 0;
  for (;;) {
    int count = ibv_poll_cq(s->cq, 1, wc);
    if (count > 0) return 1;
    if (count < 0) {
      s->status = IBV_WC_FATAL_ERR;
      return 0;
    }
    if (server && (++s->idle_polls % 1024 == 0 || s->channel) && peer_hung_up(s)) return 0;
    if (!s->channel) continue;
    if (!armed) {
      if (ibv_req_notify_cq(s->cq, 0)) fail("ibv_req_notify_cq");
      armed = 1;
      continue;
    }
    struct pollfd items[2] = {{.fd = s->channel->fd, .events = POLLIN}, {.fd = s->socket, .events = POLLIN}};
    poll(items, server ? 2 : 1, -1);
    if (items[0].revents == 0) continue;
    struct ibv_cq* cq;
    void* cq_context;
    if (ibv_get_cq_event(s->channel, &cq, &cq_context)) fail("ibv_get_cq_event");
    s->unacked_events++;
    armed = 0;
  }
}

static void note_completion(struct stream* s, const struct ibv_wc* wc) {
  double now = verbs_now();
  if (wc->status != IBV_WC_SUCCESS) {
    s->status = (int)wc->status;
    s->error_at = now;
    return;
  }
  if (s->messages && now - s->last_at > s->max_gap) s->max_gap = now - s->last_at;
  s->last_at = now;
  if (s->messages++ == 0) {
    printf("ready %d\n", (int)getpid());
    fflush(stdout);
  }
}

static void serve(struct stream* s) {
  struct ibv_wc wc;
  for (int last = 0; !last && s->status == IBV_WC_SUCCESS;) {
    if (!next_completion(s, &wc, 1)) break;
    note_completion(s, &wc);
    if (wc.status != IBV_WC_SUCCESS) break;
    if (verbs_check(slot(s, wc.wr_id), s->bytes, (uint32_t)wc.wr_id) >= 0 || wc.byte_len != s->bytes) s->mismatches++;
    last = ntohl(wc.imm_data) == 1;
    if (last && s->abrupt) _exit(s->mismatches != 0);
    if (!last && post_receive(s, wc.wr_id + kDepth)) fail("ibv_post_recv");
    if (last) s->count = s->messages;
  }
}

static void stream_out(struct stream* s) {
  double end = verbs_now() + s->seconds;
  uint64_t posted = 0, completed = 0;
  int last = 0;
  while (s->status == IBV_WC_SUCCESS && !(last && completed == posted)) {
    while (!last && posted - completed < kDepth) {
      last = s->count ? posted + 1 >= s->count : verbs_now() >= end;
      if (post_send(s, posted++, last)) fail("ibv_post_send");
    }
    struct ibv_wc wc;
    if (!next_completion(s, &wc, 0)) break;
    note_completion(s, &wc);
    completed++;
  }
  if (s->abrupt && s->status == IBV_WC_SUCCESS) _exit(0);
  s->count = completed;
}

static void report(struct stream* s, int server) {
  // Retry exhaustion is the peer's end; any other error may be the device's, whose event comes by its own channel.
  if (s->status != IBV_WC_SUCCESS && s->status != IBV_WC_RETRY_EXC_ERR) wait_for_fatal_event();
  printf("{\"role\": \"%s\", \"messages\": %llu, \"mismatches\": %llu, \"status\": \"%s\", \"code\": %d, "
         "\"error_at\": %.6f, \"max_gap\": %.6f, \"fatal_event\": %s}\n",
         server ? "server" : "client", (unsigned long long)s->messages, (unsigned long long)s->mismatches,
         ibv_wc_status_str((enum ibv_wc_status)s->status), s->status, s->error_at, s->max_gap,
         fatal_event ? "true" : "false");
  fflush(stdout);
}

static void parse(struct stream* s, int argc, char** argv) {
  static const struct option kOptions[] = {{"seconds", 1, 0, 's'}, {"count", 1, 0, 'c'},  {"size", 1, 0, 'b'},
                                           {"timeout", 1, 0, 't'}, {"retry", 1, 0, 'r'},  {"events", 0, 0, 'e'},
                                           {"abrupt", 0, 0, 'a'},  {"mtu", 1, 0, 'm'},    {"fork-child", 0, 0, 'f'},
                                           {"gid-index", 1, 0, 'g'}, {0, 0, 0, 0}};
  for (int option; (option = getopt_long(argc, argv, "", kOptions, NULL)) != -1;) switch (option) {
      case 's': s->seconds = atof(optarg); break;
      case 'c': s->count = strtoull(optarg, NULL, 10); break;
      case 'b': s->bytes = strtoull(optarg, NULL, 10); break;
      case 't': s->options.timeout = (uint8_t)atoi(optarg); break;
      case 'r': s->options.retry_count = (uint8_t)atoi(optarg); break;
      case 'e': s->options.events = 1; break;
      case 'a': s->abrupt = 1; break;
      case 'f': s->fork_child = 1; break;
      case 'g': s->options.gid_index = atoi(optarg); break;
      case 'm': s->options.mtu = atoi(optarg) == 4096 ? IBV_MTU_4096 : IBV_MTU_1024; break;
      default: exit(2);
    }
  if (s->bytes == 0 || s->bytes > kMaxBytes) exit(2);
}

int main(int argc, char** argv) {
  struct stream s = {.options = verbs_pair_defaults(), .bytes = 4096, .seconds = 3};
  parse(&s, argc, argv);
  int server = optind < argc && !strcmp(argv[optind], "server");
  if (argc - optind != (server ? 2 : 3)) {
    fprintf(stderr, "usage: stream server PORT | stream client HOST PORT  [options]\n");
    return 2;
  }
  open_device(&s);
  s.socket = server ? listen_and_accept(argv[optind + 1]) : connect_to(argv[optind + 1], argv[optind + 2]);
  connect_queue_pairs(&s, server);
  if (s.fork_child && fork() == 0) {
    alarm(kChildSeconds);  // outlives its parent, but not the test
    pause();
    _exit(0);
  }
  if (server)
    serve(&s);
  else
    stream_out(&s);
  report(&s, server);
  if (s.status != IBV_WC_SUCCESS || s.mismatches) return 3;
  return s.count == s.messages && s.messages ? 0 : 4;
}
