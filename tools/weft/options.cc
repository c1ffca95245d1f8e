// SPDX-License-Identifier: Apache-2.0
//
// An edge file: CLI11 reports by throwing; nothing leaves this file.
#include "tools/weft/options.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "tools/weft/outside_words.h"
#include "tools/weft/run_folder.h"
#include "tools/weft/units.h"
#include "tools/weft/version.h"

namespace weft::tools {
namespace {

constexpr const char* kAbout =
    "Weft: an RDMA fabric in software. Programs run unmodified between emulated hosts.\n"
    "\n"
    "  weft up                                start a fabric: one switch, two hosts h0 and h1\n"
    "  weft run h0 -- ib_write_bw &           a server on h0 …\n"
    "  weft run h1 -- ib_write_bw h0          … and its client on h1\n"
    "  weft show ports                        what crossed the switch\n"
    "  weft down                              end it\n";

std::string check_probability(const std::string& text) {
  return parse_probability(text) ? std::string() : "'" + text + "' is no probability; write 1%, 0.01 or 1/100";
}

std::string check_duration(const std::string& text) {
  return parse_duration(text) ? std::string() : "'" + text + "' is no time; write 500ms, 10s or 2min";
}

void add_fabric_options(CLI::App& app, ParsedLine& line) {
  app.add_option("--hosts", line.fabric.hosts, "Hosts h0, h1, … on one switch")->check(CLI::Range(1, 4094))->capture_default_str();
  app.add_option("--nics", line.fabric.nics, "NICs per host: rxe0, rxe1, …")->check(CLI::Range(1, 32))->capture_default_str();
  app.add_option("--seed", line.fabric.seed, "Seed of everything random in the fabric")->capture_default_str();
  app.add_option("--drop", line.fabric.drop, "Probability that a link drops a frame: 1%, 0.01, 1/100")
      ->check(check_probability)
      ->capture_default_str();
  app.add_flag("--force-icrc", line.fabric.force_icrc, "Compute and check the ICRC of every frame");
  app.add_flag("--strict-timers", line.fabric.strict_timers,
               "Count every timeout against the retry budget, also when a program merely was not scheduled");
  app.add_option("--gid-holes", line.fabric.gid_holes, "Empty entries before the first GID of each NIC's table")
      ->check(CLI::Range(0, 64))
      ->capture_default_str();
  app.add_flag("--shared-tcp", line.fabric.shared_tcp, "Hosts share the machine's TCP and UDP ports instead of having their own");
}

void add_up(CLI::App& app, ParsedLine& line) {
  CLI::App* up = app.add_subcommand("up", "Start a fabric");
  up->footer("The fabric runs in the background until `weft down`. Several can run at once under different names:\n"
             "  weft up --name test --hosts 4\n"
             "  weft run h3 --name test -- ibv_devinfo\n"
             "A FILE says the same and more, such as ports to the outside of the fabric:\n"
             "  weft: 1\n"
             "  fabric:\n"
             "    hosts: 2\n"
             "    outside:\n"
             "      vm0: {tap: tap0, attach: s0, rate: 10G}");
  up->add_option("file", line.file, "A scenario file: its fabric is built; options on the line go before it");
  add_fabric_options(*up, line);
  up->add_flag("--foreground", line.foreground, "Stay in the foreground; Ctrl-C ends the fabric");

  CLI::App* daemon = app.add_subcommand("daemon", "")->group("");
  add_fabric_options(*daemon, line);
  daemon->add_option("--ready-fd", line.ready_fd);
  daemon->add_option("--first-host", line.fabric.first_host)->check(CLI::Range(0u, 0x1FFFDu));
  daemon->add_option_function<std::vector<std::string>>("--outside", [&line](const std::vector<std::string>& words) {
    for (const std::string& text : words) {
      if (const auto plan = outside_of_words(text)) line.fabric.outside.push_back(*plan);
    }
  })->allow_extra_args(false);
}

void add_run(CLI::App& app, ParsedLine& line) {
  CLI::App* run = app.add_subcommand("run", "Run a program as a host");
  run->footer("The program sees the host's RDMA devices and reaches other hosts by name. Anything can be run:\n"
              "  weft run h0 -- ibv_devinfo\n"
              "  weft run h0 -- bash\n"
              "The exit code is the program's; 125 when weft itself failed. If nothing opened an RDMA device, a line on\n"
              "stderr says why. With WEFT_EXPLAIN=1 libweft says on the program's stderr why a request failed.");
  run->add_option("host", line.host, "A host of the fabric, such as h0; or several, h0,h1, for a program that acts for all: rxe0, rxe1")->required();
  const char* about_shared_tcp = "The program's TCP and UDP ports are the machine's, not the host's own";
  run->add_flag("--shared-tcp", line.shared_tcp, about_shared_tcp);

  CLI::App* with = app.add_subcommand("with", "Run a command as h0 of a fabric of its own, which ends with it");
  with->footer("For tests, several at a time too: no fabric is left behind, stdout is the command's alone, its exit code is kept.\n"
               "  weft with -- ctest\n"
               "  weft with --hosts 4 --drop 1% -- sh -c 'weft run h1 -- ./server & sleep 1; ./client h1'\n"
               "Inside, `weft run h1 -- …` and the other verbs mean this fabric without a --name.");
  add_fabric_options(*with, line);

  CLI::App* env = app.add_subcommand("env", "Print the environment that makes a program run as a host");
  env->footer("For shells, IDEs and containers:\n  eval \"$(weft env h0)\"");
  env->add_option("host", line.host, "A host of the fabric")->required();
  env->add_flag("--shared-tcp", line.shared_tcp, about_shared_tcp);
  env->add_option("--format", line.format, "shell: export lines; env: NAME=value lines; json")
      ->check(CLI::IsMember({"shell", "env", "json"}))
      ->capture_default_str();
}

void add_watchers(CLI::App& app, ParsedLine& line) {
  CLI::App* show = app.add_subcommand("show", "Show what is in the fabric");
  show->footer("  hosts     hosts, their NICs and addresses, the programs that opened one\n"
               "  ports     packets, bytes, queues, drops of the switch's ports\n"
               "  links     the same of each direction of a link\n"
               "  qps       queue pairs, and why those in error are; also those that ended in error and are gone\n"
               "  metrics   every counter of the fabric, as name{labels} value");
  show->add_option("what", line.what, "hosts, ports, links, qps or metrics")
      ->required()
      ->check(CLI::IsMember({"hosts", "ports", "links", "qps", "metrics"}));
  show->add_flag("--json", line.json, "For scripts");

  CLI::App* capture = app.add_subcommand("capture", "Write what crosses a host's links as pcapng");
  capture->footer("  weft capture h0 -w rc.pcapng --for 5s\n  weft capture h0 | wireshark -k -i -\nCtrl-C ends it cleanly.");
  capture->add_option("places", line.places, "Hosts (h0) or links (h0-s0)")->required();
  capture->add_option("-w,--write", line.output, "The file; - is standard output")->capture_default_str();
  capture
      ->add_option_function<std::string>("--for", [&line](const std::string& text) { line.capture_for = parse_duration(text); },
                                         "End after this time: 500ms, 10s, 2min")
      ->check(check_duration);
}

void add_port(CLI::App& app, ParsedLine& line) {
  CLI::App* port = app.add_subcommand("port", "Take the port of a NIC down, or bring it up again");
  port->footer("  weft port h0 down\n  weft port h0/1 up     the second NIC of h0\n"
               "Frames on its link are lost meanwhile. Programs get PORT_ERR, and PORT_ACTIVE and GID_CHANGE when it is back.");
  port->add_option("nic", line.host, "A host, for its first NIC, or HOST/NUMBER: h0/0 is its rxe0")->required();
  port->add_option("state", line.what, "down or up")->required()->check(CLI::IsMember({"down", "up"}));
}

ParsedLine failed(const std::string& text) {
  ParsedLine line;
  line.exit_code = kUsageError;
  line.text = text;
  return line;
}

Verb verb_of(const CLI::App& app) {
  struct Name {
    const char* name;
    Verb verb;
  };
  static constexpr Name kVerbs[] = {{"up", Verb::kUp},     {"daemon", Verb::kDaemon},   {"run", Verb::kRun},         {"with", Verb::kWith},
                                    {"env", Verb::kEnv},   {"show", Verb::kShow},       {"capture", Verb::kCapture},
                                    {"demo", Verb::kDemo}, {"down", Verb::kDown},       {"doctor", Verb::kDoctor},
                                    {"port", Verb::kPort}};
  for (const Name& v : kVerbs) {
    if (app.got_subcommand(v.name)) return v.verb;
  }
  return Verb::kNone;
}

/// Where the program of `run [--name N] HOST PROGRAM…` begins when no "--" says so: at the second bare word after the verb.
size_t find_bare_command(const std::vector<std::string>& arguments) {
  int words = 0;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--name") {
      ++i;
    } else if (arguments[i].empty() || arguments[i][0] != '-') {
      if (words == 0 && arguments[i] != "run") break;
      if (++words == 3) return i;
    }
  }
  return arguments.size();
}

/// Takes the program off a line of `run` or `with`, because CLI11 would look for options in it.
std::vector<std::string> split_command(std::vector<std::string>& arguments) {
  size_t end = static_cast<size_t>(std::find(arguments.begin(), arguments.end(), "--") - arguments.begin());
  size_t begin = end + 1;
  if (const size_t bare = find_bare_command(arguments); bare < end) end = begin = bare;
  if (end >= arguments.size()) return {};
  std::vector<std::string> command(arguments.begin() + static_cast<std::ptrdiff_t>(begin), arguments.end());
  arguments.resize(end);
  return command;
}

}  // namespace

ParsedLine parse_command_line(int argc, const char* const* argv) {
  ParsedLine line;
  if (const char* name = std::getenv("WEFT_NAME"); name != nullptr && *name != '\0') line.name = name;
  CLI::App app(kAbout, "weft");
  app.set_version_flag("--version", std::string("weft ") + kWeftVersion);
  app.require_subcommand(1);
  const char* about_name = "Which fabric (or WEFT_NAME); before or after the verb's own arguments";
  app.add_option("--name", line.name, about_name)->capture_default_str();
  add_up(app, line);
  add_run(app, line);
  add_watchers(app, line);
  add_port(app, line);
  app.add_subcommand("demo", "A private fabric, ibv_rc_pingpong and ib_write_bw across it, and what the switch saw");
  app.add_subcommand("down", "End a fabric");
  app.add_subcommand("doctor", "What works on this machine, and what would help");

  for (CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    verb->add_option("--name", line.name, about_name)->capture_default_str();
  }

  std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.empty()) {
    line.text = app.help();
    line.exit_code = kUsageError;
    return line;
  }
  std::vector<std::string> command = split_command(arguments);
  try {
    std::reverse(arguments.begin(), arguments.end());
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      std::ostringstream out;
      app.exit(error, out, out);
      line.text = out.str();
      return line;
    }
    const auto chosen = app.get_subcommands();
    const std::vector<std::string> strangers = app.remaining();
    if (chosen.empty() && !strangers.empty()) return failed("weft: there is no verb '" + strangers.front() + "'; see: weft --help");
    const std::string verb = chosen.empty() ? "" : " " + chosen.front()->get_name();
    return failed(std::string("weft") + verb + ": " + error.what() + "; see: weft" + verb + " --help");
  }
  line.verb = verb_of(app);
  if (line.verb == Verb::kUp) {
    const CLI::App* up = app.get_subcommand("up");
    line.hosts_given = up->count("--hosts") != 0;
    line.nics_given = up->count("--nics") != 0;
    line.seed_given = up->count("--seed") != 0;
  }
  if (line.verb == Verb::kWith) {
    if (command.empty()) return failed("weft with: no command given; write: weft with -- COMMAND ARGUMENTS…");
    line.command = std::move(command);
  } else if (line.verb == Verb::kRun) {
    if (command.empty()) return failed("weft run: no program given; write: weft run " + line.host + " -- PROGRAM ARGUMENTS…");
    line.command = std::move(command);
  } else if (!command.empty()) {
    return failed("weft: only `weft run HOST -- PROGRAM` and `weft with -- COMMAND` take a program");
  }
  if (!is_valid_name(line.name)) {
    return failed("weft: '" + line.name + "' is no name for a fabric: use letters, digits, '.', '_' and '-', at most 64");
  }
  return line;
}

}  // namespace weft::tools
