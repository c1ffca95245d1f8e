// SPDX-License-Identifier: Apache-2.0
//
// rnr_wait server PORT | rnr_wait client HOST PORT: a SEND to a receiver that has posted nothing, retried for ever
// (rnr_retry 7). The client prints "waiting PID" once the SEND was posted, and a line with the completion's status when
// one comes. The server prints "ready PID", posts its first receive when it gets SIGUSR1, prints "received" and ends; it
// ends too, with 5, when its client is gone.
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "verbs_pair.h"

enum { kBytes = 4096, kGone = 5 };

struct end_point {
  uint32_t qpn;
  union ibv_gid gid;
};

static void fail(const char* what) {
  perror(what);
  exit(1);
}

static int tcp(const char* host, const char* port) {
  struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM, .ai_flags = host ? 0 : AI_PASSIVE}, *found;
  if (getaddrinfo(host, port, &hints, &found)) fail("getaddrinfo");
  int fd = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (host) {
    if (connect(fd, found->ai_addr, found->ai_addrlen)) fail("connect");
  } else {
    if (bind(fd, found->ai_addr, found->ai_addrlen) || listen(fd, 1)) fail("listen");
    int listener = fd;
    fd = accept(listener, NULL, NULL);
    close(listener);
    if (fd < 0) fail("accept");
  }
  freeaddrinfo(found);
  return fd;
}

static int next_status(struct ibv_cq* cq, int socket) {
  struct ibv_wc wc;
  char byte;
  for (;;) {
    int count = ibv_poll_cq(cq, 1, &wc);
    if (count < 0) return -1;
    if (count > 0) return (int)wc.status;
    if (socket >= 0 && recv(socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0) exit(kGone);
    usleep(1000);
  }
}

static int serve(struct ibv_qp* qp, struct ibv_sge* sge, int socket) {
  sigset_t wanted;
  sigemptyset(&wanted);
  sigaddset(&wanted, SIGUSR1);
  int go = signalfd(-1, &wanted, SFD_CLOEXEC);
  printf("ready %d\n", (int)getpid());
  fflush(stdout);
  struct pollfd items[2] = {{.fd = go, .events = POLLIN}, {.fd = socket, .events = POLLIN}};
  if (poll(items, 2, -1) < 0) fail("poll");
  if (items[0].revents == 0) return kGone;
  struct ibv_recv_wr wr = {.sg_list = sge, .num_sge = 1}, *bad;
  if (ibv_post_recv(qp, &wr, &bad)) fail("ibv_post_recv");
  int status = next_status(qp->recv_cq, socket);
  if (status == IBV_WC_SUCCESS && verbs_check((uint8_t*)(uintptr_t)sge->addr, kBytes, 9) < 0) puts("received");
  return status;
}

static int ask(struct ibv_qp* qp, struct ibv_sge* sge) {
  verbs_fill((uint8_t*)(uintptr_t)sge->addr, kBytes, 9);
  struct ibv_send_wr wr = {.sg_list = sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;
  if (ibv_post_send(qp, &wr, &bad)) fail("ibv_post_send");
  printf("waiting %d\n", (int)getpid());
  fflush(stdout);
  int status = next_status(qp->send_cq, -1);
  printf("status %s\n", ibv_wc_status_str((enum ibv_wc_status)status));
  return status;
}

int main(int argc, char** argv) {
  int server = argc == 3 && !strcmp(argv[1], "server");
  if (!server && argc != 4) {
    fprintf(stderr, "usage: rnr_wait server PORT | rnr_wait client HOST PORT\n");
    return 2;
  }
  sigset_t held;
  sigemptyset(&held);
  sigaddset(&held, SIGUSR1);
  sigprocmask(SIG_BLOCK, &held, NULL);
  struct verbs_pair_options options = verbs_pair_defaults();
  options.timeout = 12;
  struct ibv_context* context = verbs_open_first_device();
  if (!context) return 1;
  struct ibv_pd* pd = ibv_alloc_pd(context);
  uint8_t* buffer = aligned_alloc(4096, kBytes);
  struct ibv_cq* cq = ibv_create_cq(context, 16, NULL, NULL, 0);
  if (!pd || !buffer || !cq) fail("resources");
  struct ibv_mr* mr = ibv_reg_mr(pd, buffer, kBytes, IBV_ACCESS_LOCAL_WRITE);
  struct ibv_qp_init_attr attributes = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC};
  attributes.cap.max_send_wr = attributes.cap.max_recv_wr = 4;
  attributes.cap.max_send_sge = attributes.cap.max_recv_sge = 1;
  struct ibv_qp* qp = mr ? ibv_create_qp(pd, &attributes) : NULL;
  if (!qp) fail("ibv_create_qp");
  int socket = server ? tcp(NULL, argv[2]) : tcp(argv[2], argv[3]);
  struct end_point own = {.qpn = qp->qp_num}, peer;
  if (ibv_query_gid(context, 1, options.gid_index, &own.gid)) fail("ibv_query_gid");
  if (send(socket, &own, sizeof own, 0) != sizeof own || recv(socket, &peer, sizeof peer, MSG_WAITALL) != sizeof peer)
    fail("exchange");
  if (verbs_connect_qp(qp, peer.qpn, &peer.gid, 7, 7, &options)) return 1;
  char byte = 0;
  if (send(socket, &byte, 1, 0) != 1 || recv(socket, &byte, 1, MSG_WAITALL) != 1) fail("barrier");
  struct ibv_sge sge = {(uintptr_t)buffer, kBytes, mr->lkey};
  return server ? serve(qp, &sge, socket) : ask(qp, &sge);
}
