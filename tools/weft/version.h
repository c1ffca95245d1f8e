// SPDX-License-Identifier: Apache-2.0
//
// Which weft this is. Client and daemon must speak the same control protocol; the version is for people.
#pragma once

#include <cstdint>

namespace weft::tools {

#ifdef WEFT_VERSION
inline constexpr const char* kWeftVersion = WEFT_VERSION;
#else
inline constexpr const char* kWeftVersion = "unversioned";
#endif
inline constexpr uint32_t kControlProtocol = 1;

}  // namespace weft::tools
