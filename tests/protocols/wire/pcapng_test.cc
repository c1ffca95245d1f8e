// SPDX-License-Identifier: Apache-2.0
//
// Reads back what the writer of scenarios/engine wrote: once with a small reader of its own, once with tshark if there
// is one.
#include "scenarios/engine/pcapng.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <csignal>
#include <map>

#include "protocols/wire/roce_frame.h"
#include "tests/protocols/wire/pcap_file.h"

using namespace weft;
using weft::test::FrameBytes;

namespace {

struct Block {
  uint32_t type = 0;
  FrameBytes body;
};

uint32_t word(const FrameBytes& bytes, size_t at) {
  uint32_t value = 0;
  REQUIRE(at + 4 <= bytes.size());
  std::memcpy(&value, bytes.data() + at, 4);
  return value;
}

std::vector<Block> read_blocks(const FrameBytes& file) {
  std::vector<Block> blocks;
  for (size_t at = 0; at < file.size();) {
    const uint32_t total = word(file, at + 4);
    REQUIRE(total >= 12);
    REQUIRE(total % 4 == 0);
    REQUIRE(at + total <= file.size());
    REQUIRE(word(file, at + total - 4) == total);
    blocks.push_back({word(file, at), FrameBytes(file.begin() + static_cast<long>(at + 8),
                                                 file.begin() + static_cast<long>(at + total - 4))});
    at += total;
  }
  return blocks;
}

std::map<uint16_t, std::string> read_options(const FrameBytes& body, size_t at) {
  std::map<uint16_t, std::string> options;
  bool ended = at == body.size();
  while (at < body.size()) {
    const uint32_t head = word(body, at);
    const uint16_t code = static_cast<uint16_t>(head);
    const uint32_t bytes = head >> 16;
    at += 4;
    if (code == 0) {
      ended = at == body.size();
      break;
    }
    REQUIRE(at + bytes <= body.size());
    options[code] = std::string(body.begin() + static_cast<long>(at), body.begin() + static_cast<long>(at + bytes));
    at += (bytes + 3) / 4 * 4;
  }
  CHECK(ended);
  return options;
}

FrameBytes slurp(int fd) {
  struct stat st {};
  REQUIRE(fstat(fd, &st) == 0);
  FrameBytes bytes(static_cast<size_t>(st.st_size));
  REQUIRE(pread(fd, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  return bytes;
}

struct Memfd {
  int fd = memfd_create("pcapng", 0);
  ~Memfd() { close(fd); }
};

}  // namespace

TEST_CASE("section, interfaces and frames come back") {
  const Memfd file;
  const uint64_t when = 1'700'000'000'123'456'789u;
  {
    PcapngWriter out(file.fd, "weft test");
    CHECK(out.add_frame(0, when, {}) == EINVAL);
    CHECK(out.add_interface("h0->s0") == 0);
    CHECK(out.add_frame(0, when, FrameBytes(61, 0xAB), PcapngDirection::kInbound, "dropped by f1") == 0);
    CHECK(out.add_interface("s0->h0") == 1);
    CHECK(out.add_frame(1, when + 1, FrameBytes(64, 0xCD)) == 0);
    CHECK(out.add_frame(1, when + 2, FrameBytes{}, PcapngDirection::kOutbound) == 0);
    CHECK(out.add_frame(2, when, {}) == EINVAL);
  }
  const std::vector<Block> blocks = read_blocks(slurp(file.fd));
  REQUIRE(blocks.size() == 6);
  CHECK(blocks[0].type == 0x0A0D0D0A);
  CHECK(word(blocks[0].body, 0) == 0x1A2B3C4D);
  CHECK(word(blocks[0].body, 4) == 1);
  CHECK(read_options(blocks[0].body, 16)[4] == "weft test");
  CHECK(blocks[1].type == 1);
  CHECK((word(blocks[1].body, 0) & 0xFFFF) == 1);
  CHECK(read_options(blocks[1].body, 8)[2] == "h0->s0");
  CHECK(read_options(blocks[1].body, 8)[9] == std::string(1, 9));
  CHECK(read_options(blocks[3].body, 8)[2] == "s0->h0");

  const FrameBytes& first = blocks[2].body;
  CHECK(blocks[2].type == 6);
  CHECK(word(first, 0) == 0);
  CHECK((static_cast<uint64_t>(word(first, 4)) << 32 | word(first, 8)) == when);
  CHECK(word(first, 12) == 61);
  CHECK(word(first, 16) == 61);
  CHECK(FrameBytes(first.begin() + 20, first.begin() + 81) == FrameBytes(61, 0xAB));
  std::map<uint16_t, std::string> options = read_options(first, 20 + 64);
  CHECK(options[1] == "dropped by f1");
  CHECK(options[2] == std::string("\1\0\0\0", 4));
  CHECK(word(blocks[4].body, 0) == 1);
  CHECK(blocks[4].body.size() == 20 + 64);
  CHECK(read_options(blocks[5].body, 20)[2] == std::string("\2\0\0\0", 4));
}

TEST_CASE("a reader that went away is an error, reported again and again") {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  close(ends[0]);
  void (*before)(int) = std::signal(SIGPIPE, SIG_IGN);
  {
    PcapngWriter out(ends[1], "weft test");
    const uint32_t id = out.add_interface("x");
    CHECK(out.add_frame(id, 0, FrameBytes(60, 0)) == 0);
    CHECK(out.flush() == EPIPE);
    CHECK(out.add_frame(id, 0, FrameBytes(60, 0)) == EPIPE);
    CHECK(out.flush() == EPIPE);
  }
  std::signal(SIGPIPE, before);
  close(ends[1]);
}

TEST_CASE("large captures are written on the way") {
  const Memfd file;
  PcapngWriter out(file.fd, "weft test");
  const uint32_t id = out.add_interface("x");
  for (int i = 0; i < 200; ++i) REQUIRE(out.add_frame(id, static_cast<uint64_t>(i), FrameBytes(4096, 1)) == 0);
  CHECK(slurp(file.fd).size() > 400'000);
  REQUIRE(out.flush() == 0);
  CHECK(read_blocks(slurp(file.fd)).size() == 202);
}

TEST_CASE("tshark reads every golden frame back as RoCE v2 with its comment") {
  if (std::system("tshark -v >/dev/null 2>&1") != 0) {
    WARN("no tshark: not checked");
    return;
  }
  char path[] = "/tmp/weft-pcapng-XXXXXX";
  const int fd = mkstemp(path);
  REQUIRE(fd >= 0);
  const std::vector<FrameBytes> frames = test::read_pcap("rc_write");
  REQUIRE_FALSE(frames.empty());
  {
    PcapngWriter out(fd, "weft test");
    const uint32_t id = out.add_interface("h0->s0");
    uint64_t when = 1'700'000'000'000'000'001u;
    for (const FrameBytes& f : frames) out.add_frame(id, when += 1000, f, PcapngDirection::kInbound, "seen");
    REQUIRE(out.flush() == 0);
  }
  close(fd);
  const std::string command =
      std::string("timeout 60 tshark -r ") + path +
      " -T fields -e frame.interface_name -e frame.time_epoch -e frame.comment -e _ws.malformed "
      "-e infiniband.bth.opcode 2>/dev/null";
  FILE* lines = popen(command.c_str(), "r");
  REQUIRE(lines != nullptr);
  char line[512];
  size_t count = 0;
  size_t roce = 0;
  while (std::fgets(line, sizeof(line), lines) != nullptr) {
    const std::string text(line);
    CAPTURE(text);
    char head[128];
    std::snprintf(head, sizeof(head), "h0->s0\t1700000000.%09zu\tseen\t\t", 1 + 1000 * ++count);
    CHECK(text.rfind(head, 0) == 0);
    roce += text.back() == '\n' && text.size() > std::strlen(head) + 1;
  }
  pclose(lines);
  unlink(path);
  CHECK(count == frames.size());
  size_t expected = 0;
  for (const FrameBytes& f : frames) {
    RoceFrame parsed;
    expected += parse_roce(f, IcrcBytes::kPresent, parsed) == ParseError::kOk;
  }
  CHECK(expected > 0);
  CHECK(roce == expected);
}
