// SPDX-License-Identifier: Apache-2.0
//
// What `weft run HOST` tells its programs by environment, read once, at the first use.
//
//   WEFT_RUN     run folder of the fabric          WEFT_HOST    name of the host the program runs on, or of several: "h0,h1"
//   WEFT_RUN_ID  number of this `weft run`         WEFT_NAME    name of the fabric, for messages
//   WEFT_EXPLAIN 1: one line on standard error for each completion with an error (flushes apart): why
//   WEFT_INLINE  0: the background thread alone drives the NIC (DECISIONS 20)
//   WEFT_SHARED_TCP  1: TCP and UDP are the machine's, nothing is translated (nic_rules 10)
// Without WEFT_RUN and WEFT_HOST libweft is inert: every wrapper passes through.
#pragma once

#include <stdint.h>

namespace weft::preload {

inline constexpr unsigned kMaxRunFolder = 160;
inline constexpr unsigned kMaxHostName = 64;

struct Settings {
  bool active = false;
  bool inline_progress = true;
  bool explain = false;
  bool shared_tcp = false;
  uint64_t run_id = 0;
  char run[kMaxRunFolder] = {};
  char host[kMaxHostName] = {};  ///< as given: also the name of a folder in the run folder
  char name[kMaxHostName] = {};  ///< the first of them, as which the program knows itself
  char fabric[kMaxHostName] = {};
};

/// Cheap after the first call. Never fails: settings that do not fit make libweft inert, with one line.
const Settings& settings();

/// Writes one line, "weft: " + text + newline, on standard error. errno is untouched.
void say(const char* text);

}  // namespace weft::preload
