// SPDX-License-Identifier: Apache-2.0
//
// What `weft run` is told for its word at the end: lines in `<run folder>/runs/<run id>`, a file that it makes and removes.
//
//   loaded <pid> <program>     by every process that libweft was loaded into
//   refused <pid> <why>        by one that could not attach
//
// Without such a file (`weft env`, an older weft, a full disk) nothing is noted. Never fails, never waits.
#pragma once

namespace weft::preload {

void note_refusal(const char* why);

}  // namespace weft::preload
