// SPDX-License-Identifier: Apache-2.0
#include "nic/engine/event_channel.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>

using weft::nic::EventChannel;

TEST_CASE("A channel's end is an ordinary descriptor", "[nic][events]") {
  EventChannel channel;
  int fd = -1;
  REQUIRE(channel.open(fd) == 0);
  CHECK((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
  CHECK(channel.is_program_fd(fd));
  const int copy = dup(fd);
  CHECK(channel.is_program_fd(copy));
  CHECK_FALSE(channel.is_program_fd(channel.own_fd()));
  CHECK_FALSE(channel.is_program_fd(-1));
  const uint64_t value = 42;
  REQUIRE(channel.send(&value, sizeof value));
  uint64_t got = 0;
  CHECK(read(copy, &got, sizeof got) == sizeof got);
  CHECK(got == 42);
  CHECK_FALSE(channel.abandoned());
  close(copy);
  CHECK_FALSE(channel.abandoned());
  close(fd);
  CHECK(channel.abandoned());
  CHECK_FALSE(channel.send(&value, sizeof value));
  CHECK(channel.purge(42, sizeof value) == 0);
}

TEST_CASE("A full channel refuses, purging makes room and keeps the order of the rest", "[nic][events]") {
  EventChannel channel;
  int fd = -1;
  REQUIRE(channel.open(fd) == 0);
  uint64_t sent = 0;
  for (;; ++sent) {
    const uint64_t record = sent % 3 == 0 ? 7 : 1000 + sent;
    if (!channel.send(&record, sizeof record)) break;
  }
  CHECK(sent > 100);
  CHECK(channel.purge(7, sizeof(uint64_t)) == (sent + 2) / 3);
  CHECK(channel.purge(7, sizeof(uint64_t)) == 0);
  uint64_t got = 0;
  for (uint64_t i = 0; i < sent; ++i) {
    if (i % 3 == 0) continue;
    REQUIRE(recv(fd, &got, sizeof got, MSG_DONTWAIT) == sizeof got);
    REQUIRE(got == 1000 + i);
  }
  CHECK(recv(fd, &got, sizeof got, MSG_DONTWAIT) < 0);
  close(fd);
}

TEST_CASE("A number that names something else by now is left alone", "[nic][events]") {
  EventChannel channel;
  int fd = -1;
  REQUIRE(channel.open(fd) == 0);
  const uint64_t value = 1;
  REQUIRE(channel.send(&value, sizeof value));
  int other[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, other) == 0);
  REQUIRE(send(other[1], &value, sizeof value, 0) == sizeof value);
  REQUIRE(dup2(other[0], fd) == fd);
  CHECK(channel.purge(1, sizeof value) == 0);
  uint64_t got = 0;
  CHECK(recv(fd, &got, sizeof got, MSG_DONTWAIT) == sizeof got);
  close(fd);
  close(other[0]);
  close(other[1]);
}

TEST_CASE("What is posted to a full channel is kept in order, purged too, and goes when there is room", "[nic][events]") {
  EventChannel channel;
  int fd = -1;
  REQUIRE(channel.open(fd) == 0);
  constexpr uint64_t kRecords = 5000;
  for (uint64_t i = 0; i < kRecords; ++i) {
    const uint64_t record[2] = {i % 5 == 0 ? 7 : 1000 + i, i};
    REQUIRE(channel.post(record, sizeof record));
  }
  CHECK(channel.kept() > kRecords / 2);
  CHECK(channel.purge(7, 16) == kRecords / 5);
  uint64_t got[2] = {};
  for (uint64_t i = 0; i < kRecords; ++i) {
    if (i % 5 == 0) continue;
    if (recv(fd, got, sizeof got, MSG_DONTWAIT) < 0) {
      REQUIRE(channel.flush_kept());
      REQUIRE(recv(fd, got, sizeof got, MSG_DONTWAIT) == sizeof got);
    }
    REQUIRE(got[0] == 1000 + i);
  }
  CHECK(channel.kept() == 0);
  CHECK_FALSE(channel.flush_kept());
  const uint64_t more[2] = {1, 2};
  while (channel.kept() == 0) REQUIRE(channel.post(more, sizeof more));
  close(fd);
  CHECK(channel.flush_kept());  // nobody can read it
  CHECK(channel.kept() == 0);
  CHECK_FALSE(channel.post(more, sizeof more));
}

TEST_CASE("Events are purged from an end that the program has moved to another number", "[nic][events]") {
  EventChannel channel;
  int fd = -1;
  REQUIRE(channel.open(fd) == 0);
  const uint64_t value = 9;
  REQUIRE(channel.send(&value, sizeof value));
  const int moved = fcntl(fd, F_DUPFD, 200);
  close(fd);
  CHECK(channel.purge(9, sizeof value) == 1);
  uint64_t got = 0;
  CHECK(recv(moved, &got, sizeof got, MSG_DONTWAIT) < 0);
  close(moved);
}
