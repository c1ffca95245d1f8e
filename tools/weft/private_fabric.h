// SPDX-License-Identifier: Apache-2.0
//
// A fabric for one command: it ends with the object, and with this process however that ends.
//
//   PrivateFabric fabric(*find_run_folder("demo-4711"));
//   std::string error = fabric.start(settings);
#pragma once

#include <string>
#include <utility>

#include "tools/weft/commands.h"

namespace weft::tools {

class PrivateFabric {
 public:
  explicit PrivateFabric(RunFolder folder) : folder_(std::move(folder)) {}
  PrivateFabric(const PrivateFabric&) = delete;
  PrivateFabric& operator=(const PrivateFabric&) = delete;
  ~PrivateFabric() {
    if (started_) end_fabric(folder_);
  }
  /// Empty or one line.
  std::string start(const FabricSettings& settings) {
    std::string error = start_fabric(folder_, settings, Lifetime::kWithStarter);
    started_ = error.empty();
    return error;
  }
  const RunFolder& folder() const { return folder_; }

 private:
  RunFolder folder_;
  bool started_ = false;
};

}  // namespace weft::tools
