// SPDX-License-Identifier: Apache-2.0
#include "tools/weft/options.h"

#include <catch2/catch.hpp>
#include <cstdlib>

#include "tools/weft/outside_words.h"

using namespace weft;
using namespace weft::tools;

namespace {
ParsedLine parse(std::vector<const char*> words) {
  words.insert(words.begin(), "weft");
  return parse_command_line(static_cast<int>(words.size()), words.data());
}
using Words = std::vector<std::string>;
}  // namespace

TEST_CASE("The name of a fabric comes before or after the verb, or from the environment") {
  unsetenv("WEFT_NAME");
  CHECK(parse({"up"}).name == "default");
  CHECK(parse({"--name", "a", "up"}).name == "a");
  CHECK(parse({"up", "--name", "a"}).name == "a");
  CHECK(parse({"up", "--hosts", "3", "--name=a"}).name == "a");
  CHECK(parse({"show", "hosts", "--name", "a", "--json"}).json);
  setenv("WEFT_NAME", "env", 1);
  CHECK(parse({"down"}).name == "env");
  CHECK(parse({"down", "--name", "a"}).name == "a");
  unsetenv("WEFT_NAME");
}

TEST_CASE("with takes what up takes, and a command") {
  const ParsedLine line = parse({"with", "--hosts", "4", "--drop", "1%", "--", "ctest", "--hosts", "x"});
  REQUIRE(line.verb == Verb::kWith);
  CHECK(line.fabric.hosts == 4);
  CHECK(line.fabric.drop == "1%");
  CHECK(line.command == Words{"ctest", "--hosts", "x"});
  CHECK(parse({"with"}).exit_code == kUsageError);
  CHECK(parse({"with", "ctest"}).exit_code == kUsageError);
}

TEST_CASE("port takes a NIC and what becomes of it") {
  const ParsedLine line = parse({"port", "h0/1", "down"});
  REQUIRE(line.verb == Verb::kPort);
  CHECK(line.host == "h0/1");
  CHECK(line.what == "down");
  CHECK(parse({"port", "h0", "sideways"}).exit_code == kUsageError);
  CHECK(parse({"port", "h0"}).exit_code == kUsageError);
}

TEST_CASE("A verb that there is not is named") {
  CHECK(parse({"stat"}).text.find("there is no verb 'stat'") != std::string::npos);
  CHECK(parse({"--name", "a", "stat", "h0"}).text.find("there is no verb 'stat'") != std::string::npos);
  CHECK(parse({"stat"}).exit_code == kUsageError);
  CHECK(parse({"--name", "a"}).exit_code == kUsageError);
}

TEST_CASE("up takes what a fabric is made of") {
  const ParsedLine line = parse({"up", "--hosts", "8", "--nics", "2", "--seed", "42", "--drop", "0.5%", "--force-icrc", "--foreground"});
  REQUIRE(line.verb == Verb::kUp);
  CHECK(line.fabric.hosts == 8);
  CHECK(line.fabric.nics == 2);
  CHECK(line.fabric.seed == 42);
  CHECK(line.fabric.drop == "0.5%");
  CHECK(line.fabric.force_icrc);
  CHECK(line.foreground);
}

TEST_CASE("run gives the program all that follows, options included") {
  const Words wanted = {"ib_write_bw", "-d", "rxe0", "--name", "x"};
  const auto check = [&wanted](const ParsedLine& line, const char* name) {
    CHECK(line.verb == Verb::kRun);
    CHECK(line.host == "h1");
    CHECK(line.name == name);
    CHECK(line.command == wanted);
  };
  check(parse({"run", "h1", "--", "ib_write_bw", "-d", "rxe0", "--name", "x"}), "default");
  check(parse({"run", "h1", "ib_write_bw", "-d", "rxe0", "--name", "x"}), "default");
  check(parse({"run", "--name", "f", "h1", "--", "ib_write_bw", "-d", "rxe0", "--name", "x"}), "f");
  check(parse({"--name", "f", "run", "h1", "ib_write_bw", "-d", "rxe0", "--name", "x"}), "f");
  check(parse({"run", "h1", "--name", "f", "--", "ib_write_bw", "-d", "rxe0", "--name", "x"}), "f");
  check(parse({"run", "h1", "--name=f", "ib_write_bw", "-d", "rxe0", "--name", "x"}), "f");
  // A second "--" is the program's.
  CHECK(parse({"run", "h1", "--", "env", "--", "true"}).command == Words{"env", "--", "true"});
  CHECK(parse({"run", "h1", "bash", "--", "x"}).command == Words{"bash", "--", "x"});
}

TEST_CASE("What is wrong is said in one line, with a code") {
  const std::vector<std::vector<const char*>> wrong = {
      {"nonsense"}, {"up", "--hosts", "0"}, {"up", "--hosts", "4095"}, {"up", "--hosts", "x"}, {"up", "--drop", "7"},
      {"up", "lab.yaml", "extra"}, {"run"}, {"run", "h0"}, {"run", "h0", "--"}, {"show"}, {"show", "nothing"}, {"capture"},
      {"capture", "h0", "--for", "5"}, {"env"}, {"env", "h0", "--format", "xml"}, {"down", "--", "x"}, {"up", "--name", "a/b"},
      {"up", "--name", ".."}, {"--bad"}};
  for (const auto& words : wrong) {
    CAPTURE(words);
    const ParsedLine line = parse(words);
    CHECK(line.verb == Verb::kNone);
    CHECK(line.exit_code == kUsageError);
    CHECK(line.text.rfind("weft", 0) == 0);
    CHECK(line.text.find('\n') == std::string::npos);
  }
}

TEST_CASE("Help is no error and teaches") {
  const ParsedLine top = parse({"--help"});
  CHECK(top.verb == Verb::kNone);
  CHECK(top.exit_code == 0);
  CHECK(top.text.find("weft run h0 --") != std::string::npos);
  for (const char* verb : {"up", "run", "env", "show", "capture", "demo", "down", "doctor"}) {
    CAPTURE(verb);
    const ParsedLine help = parse({verb, "--help"});
    CHECK(help.exit_code == 0);
    CHECK(help.text.find("--name") != std::string::npos);
  }
  CHECK(parse({"--version"}).text.find("weft ") == 0);
  CHECK(parse({}).exit_code == kUsageError);
}

TEST_CASE("capture takes several places, a file and a time") {
  const ParsedLine line = parse({"capture", "h0", "h1-s0", "-w", "x.pcapng", "--for", "1.5s"});
  CHECK(line.places == Words{"h0", "h1-s0"});
  CHECK(line.output == "x.pcapng");
  CHECK(line.capture_for == milliseconds(1500));
}

TEST_CASE("A port to the outside is the same on both ends of the daemon's command line") {
  OutsidePlan plan{"vm0", OutsideKind::kPcap, "/tmp/in.pcap", "/tmp/out.pcap", 10'000'000'000};
  const auto again = outside_of_words(words_of_outside(plan));
  REQUIRE(again);
  CHECK(again->name == plan.name);
  CHECK(again->kind == plan.kind);
  CHECK(again->device == plan.device);
  CHECK(again->write_to == plan.write_to);
  CHECK(again->rate_bps == plan.rate_bps);
  for (const char* bad : {"", "vm0", "a\nb\n1\nc\n", "a\ntap\n0\nc\n", "a\ntap\n1\n\n", "\ntap\n1\nc\n"}) {
    CHECK_FALSE(outside_of_words(bad));
  }
}
