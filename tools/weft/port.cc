// SPDX-License-Identifier: Apache-2.0
//
// `weft port`: a NIC's port goes down and comes up.
#include "tools/weft/commands.h"
#include "tools/weft/control_client.h"

namespace weft::tools {

int command_port(const ParsedLine& line) {
  Outcome<RunFolder> folder = find_run_folder(line.name);
  if (!folder) return complain(folder.error());
  auto client = ControlClient::connect(*folder);
  if (!client) return complain(client.error());
  control::Request request;
  request.mutable_set_port()->set_place(line.host);
  request.mutable_set_port()->set_up(line.what == "up");
  const Outcome<control::Reply> reply = (*client)->call(request);
  return reply ? 0 : complain(reply.error());
}

}  // namespace weft::tools
