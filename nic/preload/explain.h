// SPDX-License-Identifier: Apache-2.0
//
// Words for an ErrorReport.
//
//   because(report, text)     "no answer to PSN 123 after 8 transmissions, 8 timeouts of 67.1 ms"
//   headline(report, text)    "QP 16385 (RC to 198.18.0.2 QP 32769), WRITE wr_id 7: RETRY_EXC_ERR"
//
// Bounded text, no allocation, no libc.
#pragma once

#include "nic/engine/explain.h"
#include "nic/preload/text.h"

namespace weft::preload {

using Because = Text<200>;

void because(const nic::ErrorReport& report, Because& out);
void headline(const nic::ErrorReport& report, Because& out);

}  // namespace weft::preload
