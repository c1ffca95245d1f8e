// SPDX-License-Identifier: Apache-2.0
#include "nic/preload/explain.h"

#include <catch2/catch.hpp>
#include <string>

using namespace weft;
using namespace weft::nic;
using namespace weft::preload;

namespace {

std::string line(const ErrorReport& report) {
  Because head;
  Because reason;
  headline(report, head);
  because(report, reason);
  CHECK_FALSE(head.overflowed());
  CHECK_FALSE(reason.overflowed());
  return std::string(head.c_str()) + ": " + reason.c_str();
}

ErrorReport base(WorkStatus status, ErrorSide side = ErrorSide::kSend) {
  ErrorReport r;
  r.qpn = 16385;
  r.peer_qpn = 32769;
  r.peer = gid_of_ipv4(0xC6120002);
  r.side = side;
  r.status = r.failure.status = status;
  r.opcode = WorkOpcode::kWrite;
  r.wr_id = 7;
  return r;
}

}  // namespace

TEST_CASE("Retries, timeouts and what the fabric knows") {
  ErrorReport r = base(WorkStatus::kRetryExceeded);
  r.failure.psn = 123;
  r.failure.transmissions = 8;
  r.failure.timeouts = 8;
  r.failure.timeout = picoseconds(67'108'864'000);
  CHECK(line(r) == "QP 16385 (RC to 198.18.0.2 QP 32769), WRITE wr_id 7: RETRY_EXC_ERR: "
                   "no answer to PSN 123 after 8 transmissions, 8 timeouts of 67.108 ms");
  r.notice = attach::NoticeReason::kPeerDied;
  r.failure.timeouts = 1;
  CHECK(line(r).find("1 timeout of 67.108 ms; the fabric says: the peer's process is gone") != std::string::npos);
  r.failure.timeouts = 0;
  CHECK(line(r).find("the peer asked for it again each time") != std::string::npos);
  r.failure.timeouts = 2;
  r.failure.timeout = picoseconds(4'096'000);
  CHECK(line(r).find("2 timeouts of 4 us") != std::string::npos);
}

TEST_CASE("Refusals, here and there") {
  ErrorReport r = base(WorkStatus::kRemoteAccess);
  r.failure.rkey = 0x1235;
  r.failure.remote_addr = 0x7f0012345678;
  r.failure.length = 4096;
  CHECK(line(r) == "QP 16385 (RC to 198.18.0.2 QP 32769), WRITE wr_id 7: REM_ACCESS_ERR: "
                   "the peer refused rkey 0x1235 va 0x7f0012345678 len 4096; its own QP says why");
  r = base(WorkStatus::kRemoteAccess, ErrorSide::kResponder);
  r.action = "READ";
  r.refusal = "outside the MR";
  r.key = 0x1235;
  r.address = 0x10;
  r.length = 1;
  CHECK(line(r) == "QP 16385 (RC to 198.18.0.2 QP 32769): REM_ACCESS_ERR: "
                   "refused the peer's READ of rkey 0x1235 va 0x10 len 1: outside the MR");
  r = base(WorkStatus::kLocalLength, ErrorSide::kReceive);
  r.length = 10;
  CHECK(line(r) == "QP 16385 (RC to 198.18.0.2 QP 32769), receive wr_id 7: LOC_LEN_ERR: "
                   "the peer's message is longer than the receive request of 10 bytes");
  r = base(WorkStatus::kLocalProtection);
  r.refusal = "no such key";
  r.key = 5;
  CHECK(line(r).find("lkey 0x5 va 0x0 len 0: no such key") != std::string::npos);
}

TEST_CASE("Every status and every notice has words, and the longest fit") {
  for (uint32_t status = 1; status <= 21; ++status) {
    for (uint32_t notice = 0; notice <= 9; ++notice) {
      for (const ErrorSide side : {ErrorSide::kSend, ErrorSide::kReceive, ErrorSide::kResponder}) {
        ErrorReport r = base(static_cast<WorkStatus>(status), side);
        r.notice = static_cast<attach::NoticeReason>(notice);
        r.qpn = r.peer_qpn = 0xFFFFFF;
        r.peer.fill(0xFF);
        r.wr_id = r.address = r.length = UINT64_MAX;
        r.key = UINT32_MAX;
        r.action = "request";
        r.refusal = "malformed, out of order, or more READs and atomics at once than agreed";
        r.failure.psn = r.failure.transmissions = r.failure.timeouts = r.failure.rkey = r.failure.length = UINT32_MAX;
        r.failure.remote_addr = UINT64_MAX;
        r.failure.timeout = seconds(100);
        line(r);
      }
    }
  }
}
