// SPDX-License-Identifier: Apache-2.0
//
// process_life CASE: does to itself what programs do to their file descriptors and processes, with live queue pairs, and
// checks before and after that data still crosses. Exit code 0 when it does; a line on stderr says what broke.
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "verbs_pair.h"

enum { kRounds = 16, kHighFd = 1024 };

extern char** environ;

static int rounds(struct verbs_pair* pair, const char* when) {
  for (uint32_t seed = 1; seed <= kRounds; seed++) {
    size_t bytes = (size_t)seed * 4099;
    int status = verbs_pair_send(pair, bytes, seed);
    if (!status) status = verbs_pair_write(pair, bytes, seed + 100);
    if (!status) status = verbs_pair_read(pair, bytes, seed + 200);
    if (status) {
      fprintf(stderr, "%s: round %u: %s\n", when, seed,
              status < 0 ? strerror(-status) : ibv_wc_status_str((enum ibv_wc_status)status));
      return 1;
    }
  }
  return 0;
}

static int reap(pid_t child, const char* what) {
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    return 1;
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return 0;
  fprintf(stderr, "%s: child ended with status 0x%x\n", what, status);
  return 1;
}

static int do_nothing(struct verbs_pair* pair) {
  (void)pair;
  return 0;
}

// A forked child that does not exec has no device; touching it gives an error, and neither crash nor traffic.
static int do_fork(struct verbs_pair* pair) {
  pid_t child = fork();
  if (child == 0) {
    struct ibv_port_attr port;
    _exit(ibv_query_port(pair->context, 1, &port) == 0 ? 9 : 0);
  }
  return reap(child, "fork");
}

// The child goes on living: the parent's device must not depend on it.
static int do_fork_stay(struct verbs_pair* pair) {
  pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  int failed = rounds(pair, "child alive");
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
  return failed;
}

static int do_fork_exec(struct verbs_pair* pair) {
  (void)pair;
  pid_t child = fork();
  if (child == 0) {
    execl("/bin/true", "true", (char*)NULL);
    _exit(127);
  }
  return reap(child, "fork and exec");
}

static int do_vfork(struct verbs_pair* pair) {
  (void)pair;
  pid_t child = vfork();
  if (child == 0) {
    // What Debian's Python does between vfork and exec; it runs in the parent's memory.
    syscall(SYS_close_range, 3u, ~0u, 0u);
    execl("/bin/true", "true", (char*)NULL);
    _exit(127);
  }
  return reap(child, "vfork");
}

static int do_vfork_close(struct verbs_pair* pair) {
  (void)pair;
  pid_t child = vfork();
  if (child == 0) {
    for (int fd = 3; fd < 64; fd++) close(fd);
    close_range(3, ~0u, 0);
    execl("/bin/true", "true", (char*)NULL);
    _exit(127);
  }
  return reap(child, "vfork with close");
}

static int do_spawn(struct verbs_pair* pair) {
  (void)pair;
  char* arguments[] = {"true", NULL};
  pid_t child = -1;
  if (posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environ)) return 1;
  return reap(child, "posix_spawn");
}

static int do_system(struct verbs_pair* pair) {
  (void)pair;
  return system("true | cat") == 0 ? 0 : 1;
}

// The descriptors of the library itself (command fd, completion channel) are the program's to close; ours are not.
// These spare the ones libibverbs handed out and close everything else, as daemons do.
static int spared(const struct verbs_pair* pair, int fd) {
  return fd == pair->context->cmd_fd || fd == pair->context->async_fd || (pair->channel && fd == pair->channel->fd);
}

static int do_close_all(struct verbs_pair* pair) {
  for (int fd = 3; fd < kHighFd; fd++)
    if (!spared(pair, fd)) close(fd);
  return 0;
}

static int do_close_range(struct verbs_pair* pair) {
  unsigned highest = 3;
  for (int fd = 3; fd < kHighFd; fd++)
    if (spared(pair, fd)) highest = (unsigned)fd;
  return close_range(highest + 1, ~0u, 0) != 0;
}

static int do_closefrom(struct verbs_pair* pair) {
  int highest = 3;
  for (int fd = 3; fd < kHighFd; fd++)
    if (spared(pair, fd)) highest = fd;
  closefrom(highest + 1);
  return 0;
}

// A program that wants a certain number gets it, even where one of ours sits.
static int do_dup2(struct verbs_pair* pair) {
  int file = open("/dev/null", O_RDWR);
  for (int fd = 3; fd < 256; fd++) {
    if (spared(pair, fd) || fd == file) continue;
    if (dup2(file, fd) != fd || write(fd, "x", 1) != 1) {
      fprintf(stderr, "dup2 onto %d: %s\n", fd, strerror(errno));
      return 1;
    }
  }
  return 0;
}

static void* exchange_in_thread(void* argument) {
  return rounds(argument, "other thread") ? argument : NULL;
}

// Signals land on any thread but ours, and a program's own SEGV handler stays its own.
static volatile sig_atomic_t alarms;
static void count_alarm(int number) {
  (void)number;
  alarms++;
}

static int do_signals(struct verbs_pair* pair) {
  struct sigaction action = {.sa_handler = count_alarm};
  sigaction(SIGALRM, &action, NULL);
  struct sigaction before;
  if (sigaction(SIGSEGV, NULL, &before) || before.sa_handler != SIG_DFL) {
    fprintf(stderr, "SIGSEGV does not look default to the program\n");
    return 1;
  }
  ualarm(1000, 1000);
  pthread_t thread;
  if (pthread_create(&thread, NULL, exchange_in_thread, pair)) return 1;
  void* failed = NULL;
  pthread_join(thread, &failed);
  ualarm(0, 0);
  return failed != NULL || alarms == 0;
}

// Many devices opened and closed in one process; nothing may leak.
static int do_reopen(struct verbs_pair* pair) {
  (void)pair;
  int before = open("/dev/null", O_RDONLY);
  close(before);
  for (int i = 0; i < 50; i++) {
    struct ibv_context* context = verbs_open_first_device();
    if (!context) return 1;
    if (ibv_close_device(context)) return 1;
  }
  int after = open("/dev/null", O_RDONLY);
  close(after);
  if (after != before) fprintf(stderr, "descriptors leak: %d before, %d after\n", before, after);
  return after != before;
}

// Sleeps for ever on a completion that never comes: an attached program that costs nothing. Says "blocked" first. An event
// may be left of the rounds before (it was raised before their last completion was polled); only a completion ends this.
static int do_blocked(struct verbs_pair* pair) {
  struct ibv_cq* cq;
  void* cq_context;
  struct ibv_wc completion;
  // A receive that nobody fills: what ends it is the flush when the device goes.
  if (verbs_pair_post_receive(pair, 64) || ibv_req_notify_cq(pair->cq, 0)) return 1;
  printf("blocked\n");
  fflush(stdout);
  for (;;) {
    if (ibv_get_cq_event(pair->channel, &cq, &cq_context)) return 1;
    ibv_ack_cq_events(cq, 1);
    if (ibv_req_notify_cq(cq, 0)) return 1;
    int count = ibv_poll_cq(cq, 1, &completion);
    if (count != 0) return count < 0 || completion.status != IBV_WC_WR_FLUSH_ERR;
  }
}

struct life_case {
  const char* name;
  int (*run)(struct verbs_pair*);
  int events, extended_cq;
};

static const struct life_case kCases[] = {
    {"exchange", do_nothing, 0, 0},
    {"exchange-events", do_nothing, 1, 0},
    {"exchange-extended", do_nothing, 0, 1},
    {"exchange-extended-events", do_nothing, 1, 1},
    {"fork", do_fork, 0, 0},
    {"fork-stay", do_fork_stay, 0, 0},
    {"fork-exec", do_fork_exec, 0, 0},
    {"vfork", do_vfork, 0, 0},
    {"vfork-close", do_vfork_close, 0, 0},
    {"spawn", do_spawn, 0, 0},
    {"system", do_system, 1, 0},
    {"close-all", do_close_all, 1, 0},
    {"close-range", do_close_range, 1, 0},
    {"closefrom", do_closefrom, 1, 0},
    {"dup2", do_dup2, 1, 0},
    {"signals", do_signals, 0, 0},
    {"reopen", do_reopen, 0, 0},
    {"blocked", do_blocked, 1, 0},
};

int main(int argc, char** argv) {
  const struct life_case* test = NULL;
  for (size_t i = 0; i < sizeof kCases / sizeof *kCases; i++) {
    if (argc == 2 && !strcmp(argv[1], "--list")) puts(kCases[i].name);
    if (argc == 2 && !strcmp(argv[1], kCases[i].name)) test = &kCases[i];
  }
  if (!test) return argc == 2 && !strcmp(argv[1], "--list") ? 0 : 2;
  struct verbs_pair_options options = verbs_pair_defaults();
  options.events = test->events;
  options.extended_cq = test->extended_cq;
  struct verbs_pair pair;
  if (verbs_pair_open(&pair, &options)) return 1;
  if (rounds(&pair, "before")) return 1;
  if (test->run(&pair)) {
    fprintf(stderr, "%s failed\n", test->name);
    return 1;
  }
  if (rounds(&pair, "after")) return 1;
  verbs_pair_close(&pair);
  printf("%s: data crosses before and after\n", test->name);
  return 0;
}
