// SPDX-License-Identifier: Apache-2.0
//
// The parsers of protocols/wire on arbitrary bytes. First byte of the input: how to look at the rest.
#include <cstring>
#include <vector>

#include "protocols/icrc/icrc.h"
#include "protocols/wire/roce_frame.h"
#include "tests/fuzz/fuzz_target.h"

using namespace weft;

namespace {

/// What parsed must come out again; bytes that the value does not keep (reserved ones) are taken from the input.
void check_round_trip(const RoceFrame& f) {
  uint8_t first[kMaxHeaderBytes];
  const uint32_t n = encode_headers(f, first + sizeof(first));
  FUZZ_CHECK(n == f.header_bytes);
  RoceFrame again;
  const Bytes headers(first + sizeof(first) - n, n);
  FUZZ_CHECK(parse_headers(headers, f.payload_bytes + f.transport.pad, again) == ParseError::kOk);
  uint8_t second[kMaxHeaderBytes];
  FUZZ_CHECK(encode_headers(again, second + sizeof(second)) == n);
  FUZZ_CHECK(std::memcmp(headers.data(), second + sizeof(second) - n, n) == 0);
}

void fuzz_whole(Bytes bytes, IcrcBytes icrc_bytes) {
  RoceFrame f;
  if (parse_roce(bytes, icrc_bytes, f) != ParseError::kOk) return;
  const size_t body = f.payload_bytes + f.transport.pad;
  FUZZ_CHECK(f.header_bytes + body + (icrc_bytes == IcrcBytes::kPresent ? kIcrcBytes : 0) <= bytes.size());
  FUZZ_CHECK(f.transport.pad == pad_of(f.payload_bytes));
  check_round_trip(f);
  const bool good = icrc_good(f, bytes);
  std::vector<uint8_t> marked(bytes.begin(), bytes.end());
  FUZZ_CHECK(rewrite_ecn(marked, Ecn::kCongestion));
  FUZZ_CHECK(decrement_ttl(marked) == (f.ttl > 1));
  RoceFrame after;
  FUZZ_CHECK(parse_roce(marked, icrc_bytes, after) == ParseError::kOk);
  FUZZ_CHECK(after.ecn() == Ecn::kCongestion);
  FUZZ_CHECK(icrc_good(after, marked) == good);
}

void fuzz_split(Bytes bytes) {
  if (bytes.size() < 2) return;
  const uint32_t payload = static_cast<uint32_t>(bytes[0] << 8 | bytes[1]);
  RoceFrame f;
  if (parse_headers(bytes.subspan(2), payload, f) != ParseError::kOk) return;
  FUZZ_CHECK(f.payload_bytes + f.transport.pad == payload);
  FUZZ_CHECK(f.header_bytes == bytes.size() - 2);
  check_round_trip(f);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  // A copy of exactly that size, so that a sanitizer sees the first byte read too far.
  std::vector<uint8_t> exact(data + 1, data + size);
  switch (data[0] % 4) {
    case 0:
      fuzz_whole(exact, IcrcBytes::kPresent);
      break;
    case 1:
      fuzz_whole(exact, IcrcBytes::kAbsent);
      break;
    case 2:
      fuzz_split(exact);
      break;
    default:
      (void)rewrite_ecn(exact, Ecn::kCapable0);
      (void)decrement_ttl(exact);
      (void)icrc(exact, exact);
  }
  return 0;
}
