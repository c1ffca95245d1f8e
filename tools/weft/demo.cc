// SPDX-License-Identifier: Apache-2.0
#include "tools/weft/commands.h"
namespace weft::tools {
int command_demo(const ParsedLine&) { return complain("not yet"); }
}  // namespace weft::tools
