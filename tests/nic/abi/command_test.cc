// SPDX-License-Identifier: Apache-2.0
//
// The framing of uverbs write() commands, and garbage in general.
#include <sys/mman.h>

#include <catch2/catch.hpp>

#include "nic/abi/command.h"
#include "protocols/base/random.h"
#include "tests/nic/engine/rig.h"

using namespace weft;
using namespace weft::test;

namespace {

/// A raw command of 32-bit words.
long words(Client& c, std::vector<uint32_t> w, size_t bytes = 0) {
  return c.raw(w.data(), bytes == 0 ? w.size() * 4 : bytes);
}

uint32_t counts(uint32_t in, uint32_t out) { return in | out << 16; }

}  // namespace

TEST_CASE("Headers are checked as the kernel does", "[nic][abi]") {
  Rig rig(1);
  Client c(rig, 0);
  uint32_t out[64] = {};
  const auto at = reinterpret_cast<uint64_t>(out);
  const auto low = static_cast<uint32_t>(at), high = static_cast<uint32_t>(at >> 32);
  CHECK(words(c, {3, counts(4, 1), low, high}) == 16);
  CHECK(words(c, {3, counts(4, 1), low, high}, 4) == -EINVAL);
  CHECK(words(c, {3, counts(5, 1), low, high}) == -EINVAL);
  CHECK(words(c, {3, counts(4, 0), low, high}) == -ENOSPC);
  CHECK(words(c, {3, counts(3, 1), low}) == -ENOSPC);
  CHECK(words(c, {3 | 1u << 30, counts(4, 1), low, high}) == -EINVAL);
  CHECK(words(c, {3 | 1u << 8, counts(4, 1), low, high}) == -EINVAL);
  CHECK(words(c, {21, counts(4, 1), low, high}) == -EOPNOTSUPP);
  CHECK(words(c, {255, counts(4, 1), low, high}) == -EOPNOTSUPP);
  CHECK(words(c, {37, counts(6, 1), low, high, 0, 0}) == -EOPNOTSUPP);  // OPEN_XRCD
  CHECK(words(c, {3, counts(4, 1), 0, 0}) == -EFAULT);
  CHECK(c.raw(nullptr, 16) == -EFAULT);
  void* gone = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  munmap(gone, 4096);
  CHECK(c.raw(gone, 16) == -EFAULT);
}

TEST_CASE("Extended headers are checked as the kernel does", "[nic][abi]") {
  Rig rig(1);
  Client c(rig, 0);
  std::vector<uint8_t> response(400, 0xEE);
  const auto at = reinterpret_cast<uint64_t>(response.data());
  const auto low = static_cast<uint32_t>(at), high = static_cast<uint32_t>(at >> 32);
  constexpr uint32_t kQueryDevice = 1u | 1u << 31;
  CHECK(words(c, {kQueryDevice, counts(1, 38), low, high, 0, 0, 0, 0}) == 32);
  ib_uverbs_ex_query_device_resp out;
  memcpy(&out, response.data(), sizeof out);
  CHECK(out.response_length == 304);
  CHECK(response[304] == 0xEE);
  SECTION("a shorter buffer is filled and no more") {
    std::fill(response.begin(), response.end(), uint8_t{0xEE});
    CHECK(words(c, {kQueryDevice, counts(1, 26), low, high, 0, 0, 0, 0}) == 32);
    memcpy(&out, response.data(), sizeof out);
    CHECK(out.response_length == 208);
    CHECK(response[208] == 0xEE);
  }
  CHECK(words(c, {kQueryDevice, counts(1, 38), low, high, 0, 1, 0, 0}) == -EINVAL);  // reserved
  CHECK(words(c, {kQueryDevice, counts(2, 38), low, high, 0, 0, 0, 0}) == -EINVAL);  // word count
  CHECK(words(c, {kQueryDevice, counts(1, 38), 0, 0, 0, 0, 0, 0}) == -EINVAL);       // words without a pointer
  CHECK(words(c, {kQueryDevice, counts(1, 0), low, high, 0, 0, 0, 0}) == -EINVAL);   // and the other way round
  CHECK(words(c, {kQueryDevice, counts(1, 10), low, high, 0, 0, 0, 0}) == -ENOSPC);
  CHECK(words(c, {kQueryDevice, counts(2, 38), low, high, 0, 0, 0, 0, 0, 0}) == 40);  // longer, zero
  CHECK(words(c, {kQueryDevice, counts(2, 38), low, high, 0, 0, 0, 0, 1, 0}) == -EOPNOTSUPP);
  CHECK(words(c, {kQueryDevice, counts(1, 38), low, high, 0, 0, 1, 0}) == -EINVAL);  // comp_mask
  for (const uint32_t unknown : {18u, 26u, 50u, 200u}) {
    CHECK(words(c, {unknown | 1u << 31, counts(1, 38), low, high, 0, 0, 0, 0}) == -EOPNOTSUPP);
  }
}

TEST_CASE("Handles of another kind, of nobody and of the past are EINVAL", "[nic][abi]") {
  Rig rig(1);
  Client c(rig, 0);
  const Cq cq = c.create_cq();
  Qp fake;
  const int which = GENERATE(0, 1, 2, 3);
  fake.handle = which == 0 ? cq.handle : which == 1 ? c.pd : which == 2 ? 4000 : UINT32_MAX;
  CHECK(c.ring_doorbell(fake) == -EINVAL);
  CHECK(c.destroy_qp(fake) == -EINVAL);
  CHECK(c.to_state(fake, 6) == -EINVAL);
  Cq fake_cq;
  fake_cq.handle = fake.handle == cq.handle ? c.pd : fake.handle;
  CHECK(c.destroy_cq(fake_cq) == -EINVAL);
  CHECK(c.arm(fake_cq) == -EINVAL);
  CHECK(c.dereg_mr({fake.handle, 0, 0}) == -EINVAL);
  const Qp qp = c.create_qp(cq, cq);
  CHECK(c.destroy_cq(cq) == -EBUSY);
  CHECK(c.plain(IB_USER_VERBS_CMD_DEALLOC_PD, &c.pd, 4, 0) == -EBUSY);
  REQUIRE(c.destroy_qp(qp) > 0);
  CHECK(c.destroy_qp(qp) == -EINVAL);
  REQUIRE(c.destroy_cq(cq) > 0);
  CHECK(c.destroy_cq(cq) == -EINVAL);
  CHECK(c.plain(IB_USER_VERBS_CMD_DEALLOC_PD, &c.pd, 4, 0) == 12);
  CHECK(c.plain(IB_USER_VERBS_CMD_DEALLOC_PD, &c.pd, 4, 0) == -EINVAL);
}

TEST_CASE("Random bytes are refused or obeyed, never the end of the program", "[nic][abi][fuzz]") {
  const uint64_t seed = 20260101;
  INFO("seed " << seed);
  Random random(seed, 1);
  Rig rig(2);
  Client c(rig, 0);
  std::vector<uint8_t> response(4096);
  std::vector<uint8_t> memory(65536);
  for (int i = 0; i < 30000; ++i) {
    uint32_t w[160] = {};
    const uint32_t count = 2 + static_cast<uint32_t>(random.below(60));
    for (uint32_t k = 0; k < count; ++k) {
      // Small numbers hit handles and enums; pointers into our memory make responses and regions possible.
      switch (random.below(6)) {
        case 0:
          w[k] = static_cast<uint32_t>(random.next());
          break;
        case 1:
          w[k] = static_cast<uint32_t>(random.below(8));
          break;
        case 2:
          w[k] = 0;
          break;
        case 3:
          w[k] = static_cast<uint32_t>(random.below(70));
          break;
        default:
          if (k + 1 < count) {
            const auto at = reinterpret_cast<uint64_t>(random.below(2) != 0 ? memory.data() : response.data());
            w[k] = static_cast<uint32_t>(at);
            w[++k] = static_cast<uint32_t>(at >> 32);
          }
      }
    }
    w[0] = static_cast<uint32_t>(random.below(45)) | (random.below(8) == 0 ? 1u << 31 : 0);
    w[1] = counts(random.below(8) == 0 ? static_cast<uint32_t>(random.below(200)) : count,
                  static_cast<uint32_t>(random.below(100)));
    if (random.below(3) != 0) {
      const auto at = reinterpret_cast<uint64_t>(response.data());
      w[2] = static_cast<uint32_t>(at);
      w[3] = static_cast<uint32_t>(at >> 32);
    }
    // No new descriptors: the process has only so many.
    if ((w[0] & 0xff) == IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL) continue;
    const long result = c.raw(w, count * 4);
    REQUIRE((result == static_cast<long>(count * 4) || (result < 0 && result > -200)));
    if (i % 64 == 0) rig.step();
  }
}

TEST_CASE("Mutated good commands on live objects do no harm", "[nic][abi][fuzz]") {
  const uint64_t seed = 77;
  INFO("seed " << seed);
  Random random(seed, 2);
  for (int round = 0; round < 30; ++round) {
    Rig rig(2);
    Pair p(rig);
    std::vector<uint8_t> memory(10000);
    const Mr mr = p.a.reg_mr(memory.data(), memory.size());
    for (int i = 0; i < 200; ++i) {
      Post post = {.opcode = static_cast<uint32_t>(random.below(17)),
                   .flags = static_cast<uint32_t>(random.below(16)) & ~8u,
                   .remote_addr = reinterpret_cast<uint64_t>(memory.data()) + random.below(20000),
                   .rkey = mr.rkey + static_cast<uint32_t>(random.below(2)),
                   .sges = {sge(memory.data(), static_cast<uint32_t>(random.below(12000)), mr.lkey)}};
      p.a.post(p.a_qp, post);
      p.b.post_recv(p.b_qp, 1, {});
      // The ring as a hostile program would write it.
      auto* element = p.a_qp.send.at(p.a_qp.send.head()->producer_index);
      for (int k = 0; k < 20; ++k) element[random.below(256)] = static_cast<uint8_t>(random.next());
      if (random.below(4) == 0) p.a_qp.send.head()->producer_index = static_cast<uint32_t>(random.next());
      if (random.below(4) == 0) p.b_qp.receive.head()->producer_index = static_cast<uint32_t>(random.next());
      if (random.below(4) == 0) p.a_cq.ring.head()->consumer_index = static_cast<uint32_t>(random.next());
      p.a_qp.send.head()->log2_elem_size = 8;
      p.a.ring_doorbell(p.a_qp);
      rig.step();
      if (random.below(50) == 0) {
        p.a.to_state(p.a_qp, static_cast<uint8_t>(random.below(2) * 6));
        if (p.a.query_state(p.a_qp) == 0 && p.a.to_init(p.a_qp) > 0) {
          p.a.to_rtr(p.a_qp, p.b_qp.qpn, 1, {}, 5);
          p.a.to_rts(p.a_qp, {}, 5);
        }
      }
      // post_recv's own check must find room.
      auto* head = p.b_qp.receive.head();
      head->producer_index = head->consumer_index;
    }
    rig.settle(50);
  }
}
