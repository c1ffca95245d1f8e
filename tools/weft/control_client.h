// SPDX-License-Identifier: Apache-2.0
//
// A program's end of the control API: connect, ask, be answered within a time.
//
//   auto client = ControlClient::connect(folder);        one line when there is no fabric, or one of another version
//   control::Request r; r.mutable_show_hosts();
//   Outcome<control::Reply> reply = client->call(r);     a Reply's error comes back as the error
//
// Blocking; one thread. next() waits for a Reply that comes unasked (a captured frame).
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "control.pb.h"
#include "protocols/base/time.h"
#include "tools/weft/run_folder.h"

namespace weft::tools {

class ControlClient {
 public:
  static Outcome<std::unique_ptr<ControlClient>> connect(const RunFolder& folder);
  /// Somebody listens there, whether or not he can be talked to.
  static bool is_reachable(const RunFolder& folder);
  ~ControlClient();

  Outcome<control::Reply> call(control::Request request, Duration patience = seconds(10));
  std::string send(control::Request request);
  /// The next Reply; an error with the text kTimedOut when none came in time or stop_fd became readable.
  Outcome<control::Reply> next(Duration patience, int stop_fd = -1);
  int daemon_pid() const;

  inline static const std::string kTimedOut = "timed out";

 private:
  struct State;
  explicit ControlClient(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace weft::tools
