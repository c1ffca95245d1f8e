// SPDX-License-Identifier: Apache-2.0
//
// `weft demo`: a private fabric, two unmodified programs across it, what the switch saw, and nothing left behind.
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cstdio>
#include <sstream>

#include "tools/weft/child_process.h"
#include "tools/weft/commands.h"
#include "tools/weft/control_client.h"
#include "tools/weft/launch.h"
#include "tools/weft/private_fabric.h"
#include "tools/weft/show_traffic.h"

namespace weft::tools {
namespace {

constexpr Duration kPatience = seconds(25);

struct Act {
  const char* title;
  std::vector<std::string> command;  ///< of both sides; the client adds the server's name
  const char* port_option;
  std::vector<const char*> wanted;   ///< parts of the client's lines that tell the result
  bool and_next_line = false;        ///< those lines head a table; show what is below too
};

int stop_descriptor() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, signal);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  return signalfd(-1, &set, SFD_CLOEXEC);
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

void print_result(const Act& act, const std::string& output) {
  std::istringstream lines(output);
  std::string line;
  bool show_next = false;
  while (std::getline(lines, line)) {
    bool show = show_next && line.find_first_not_of("- \t") != std::string::npos;
    for (const char* part : act.wanted) {
      if (line.find(part) == std::string::npos) continue;
      show = true;
      show_next = act.and_next_line;
    }
    if (show) std::printf("    %s\n", line.c_str() + line.find_first_not_of(' '));
  }
}

/// Empty when client and server both did well.
std::string play(const Act& act, const RunFolder& folder, int stop_fd) {
  const uint16_t port = free_tcp_port();
  if (port == 0) return "there is no free TCP port";
  std::vector<std::string> server_command = act.command;
  server_command.insert(server_command.end(), {act.port_option, std::to_string(port)});
  std::vector<std::string> client_command = server_command;
  client_command.push_back("h0");
  Outcome<Environment> server_environment = host_environment(folder, "h0", new_run_id());
  Outcome<Environment> client_environment = host_environment(folder, "h1", new_run_id());
  if (!server_environment) return server_environment.error();
  if (!client_environment) return client_environment.error();

  std::printf("%s\n  $ weft run h0 -- %s &\n  $ weft run h1 -- %s\n", act.title, joined(server_command).c_str(),
              joined(client_command).c_str());
  std::fflush(stdout);
  ChildProcess server;
  if (std::string error = server.start(server_command, *server_environment); !error.empty()) return error;
  if (!server.wait_for_listener(port, kPatience, stop_fd)) {
    return "the server did not start:\n" + server.finish(Duration::zero(), stop_fd).output;
  }
  ChildProcess client;
  if (std::string error = client.start(client_command, *client_environment); !error.empty()) return error;
  const ChildProcess::Ended ended = client.finish(kPatience, stop_fd);
  const ChildProcess::Ended served = server.finish(ended.in_time ? seconds(5) : Duration::zero(), stop_fd);
  print_result(act, ended.output);
  std::printf("\n");
  if (!ended.in_time) return act.command[0] + " did not end in time; client:\n" + ended.output + "server:\n" + served.output;
  if (ended.exit_code != 0) {
    return act.command[0] + " ended with code " + std::to_string(ended.exit_code) + "; client:\n" + ended.output + "server:\n" + served.output;
  }
  if (served.exit_code != 0) return "the server of " + act.command[0] + " ended with code " + std::to_string(served.exit_code) + ":\n" + served.output;
  return {};
}

std::string print_counters(const RunFolder& folder) {
  auto client = ControlClient::connect(folder);
  if (!client) return client.error();
  control::Request request;
  request.mutable_show_hosts();
  Outcome<control::Reply> hosts = (*client)->call(request);
  if (!hosts) return hosts.error();
  Outcome<control::MetricList> metrics = all_metrics(**client);
  if (!metrics) return metrics.error();
  std::printf("What the switch saw (weft show ports):\n%s\n", ports_table(ports_of(*metrics, hosts->hosts())).c_str());
  return {};
}

}  // namespace

int command_demo(const ParsedLine&) {
  for (const char* program : {"ibv_rc_pingpong", "ib_write_bw"}) {
    if (!find_program(program).empty()) continue;
    return complain(std::string("the demo runs ") + program + ", which is not installed; Debian and Ubuntu: apt-get install ibverbs-utils perftest");
  }
  Outcome<RunFolder> folder = find_run_folder("demo-" + std::to_string(getpid()));
  if (!folder) return complain(folder.error());
  const int stop_fd = stop_descriptor();
  PrivateFabric fabric(*folder);
  if (std::string error = fabric.start(FabricSettings{}); !error.empty()) return complain(error);
  std::printf("A private fabric: hosts h0 and h1 on switch s0. The programs are this machine's own, unmodified.\n\n");

  const Act acts[] = {
      {"Messages back and forth, every byte checked by the receiver:", {"ibv_rc_pingpong", "-g", "1", "-c"}, "-p", {"bytes in", "iters in"}, false},
      {"RDMA WRITE, 64 KiB each:", {"ib_write_bw", "-m", "4096", "-D", "2"}, "-p", {"#bytes"}, true},
  };
  for (const Act& act : acts) {
    if (std::string error = play(act, fabric.folder(), stop_fd); !error.empty()) return complain(error);
  }
  if (std::string error = print_counters(fabric.folder()); !error.empty()) return complain(error);
  std::printf("The private fabric is gone again. Your own:  weft up\n");
  return 0;
}

}  // namespace weft::tools
