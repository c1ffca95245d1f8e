// SPDX-License-Identifier: Apache-2.0
//
// A fabric with a data plane that switches nothing: what the daemon builds, tells and passes on.
#include "tools/weft/fabric.h"

#include <stdlib.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "tests/nic/host/attach_client.h"
#include "tests/tools/fake_data_plane.h"
#include "tools/weft/control_service.h"
#include "tools/weft/version.h"

using namespace weft;
using namespace weft::tools;

namespace {

class Quiet : public ControlSession {
 public:
  uint64_t id() const override { return 1; }
  bool has_room() const override { return !full; }
  bool send(const control::Reply& reply) override {
    if (full) return false;
    sent.push_back(reply);
    return true;
  }
  bool full = false;
  std::vector<control::Reply> sent;
};

struct Fixture {
  explicit Fixture(FabricSettings settings = {}) {
    char pattern[] = "/tmp/weft-fabric-test-XXXXXX";
    folder.name = "f";
    folder.parent = mkdtemp(pattern);
    folder.path = folder.parent + "/f";
    REQUIRE(make_run_folder(folder) == "");
    auto started = Fabric::start("f", settings, folder, [](const std::string&) {});
    REQUIRE(started);
    fabric = std::move(*started);
    service = std::make_unique<ControlService>(*fabric, ControlService::Ends{[this] { ++end_soon; }, [this] { ++end_now; }});
  }
  ~Fixture() {
    service.reset();
    fabric.reset();
    std::filesystem::remove_all(folder.parent);
  }
  control::Reply ask(const control::Request& request) { return service->handle(request, session); }

  RunFolder folder;
  std::unique_ptr<Fabric> fabric;
  std::unique_ptr<ControlService> service;
  Quiet session;
  int end_soon = 0;
  int end_now = 0;
};

}  // namespace

TEST_CASE("The plan is the rule of addresses, one switch, and the settings") {
  FabricSettings settings;
  settings.hosts = 3;
  settings.nics = 2;
  settings.seed = 9;
  settings.drop = "1%";
  settings.force_icrc = true;
  const FabricPlan plan = plan_of("x", settings, "/r");
  REQUIRE(plan.hosts.size() == 3);
  CHECK(plan.hosts[2].name == "h2");
  REQUIRE(plan.hosts[2].nics.size() == 2);
  CHECK(plan.hosts[2].nics[1].ipv4 == 0xC6120000u + 4 + 2 + 1);
  CHECK(plan.hosts[2].nics[1].mac == std::array<uint8_t, 6>{0x02, 0x57, 1, 0, 0, 2});
  CHECK(plan.seed == 9);
  CHECK(plan.drop.numerator == 1);
  CHECK(plan.drop.denominator == 100);
  CHECK(plan.force_icrc);
  CHECK(plan.run_folder == "/r");
}

TEST_CASE("The run folder has the map, the sockets and the trees") {
  Fixture f;
  const std::string net = host::text_of_ipv4(f.fabric->loopback_of(0));
  CHECK(net != "127.0.0.1");
  CHECK(read_file(f.folder.file("hosts.map")) == "h0 198.18.0.1 " + net + "\nh1 198.18.0.2 " + host::text_of_ipv4(f.fabric->loopback_of(1)) + "\n");
  CHECK(read_file(f.folder.file("hosts/h1/etc/hostname")) == "h1\n");
  CHECK(read_file(f.folder.file("hosts/h0/proc/sys/kernel/random/boot_id")) != read_file(f.folder.file("hosts/h1/proc/sys/kernel/random/boot_id")));
  CHECK(std::filesystem::is_socket(f.folder.file("hosts/h0/attach")));
  CHECK(read_file(f.folder.file("hosts/h1/sys/class/infiniband_verbs/uverbs0/ibdev")) == "rxe0\n");
  f.service.reset();
  f.fabric.reset();
  CHECK_FALSE(std::filesystem::exists(f.folder.file("hosts/h0/attach")));
}

TEST_CASE("Fabrics side by side have loopback addresses of their own, a fabric with shared TCP none") {
  Fixture one;
  Fixture other;
  CHECK(one.fabric->loopback_of(0) != other.fabric->loopback_of(0));
  FabricSettings settings;
  settings.shared_tcp = true;
  Fixture shared(settings);
  CHECK(read_file(shared.folder.file("hosts.map")) == "h0 198.18.0.1 127.0.0.1\nh1 198.18.0.2 127.0.0.1\n");
  control::Request request;
  request.mutable_show_hosts();
  CHECK(shared.ask(request).hosts().hosts(1).loopback() == "127.0.0.1");
  CHECK(one.ask(request).hosts().hosts(1).loopback() == host::text_of_ipv4(one.fabric->loopback_of(1)));
}

TEST_CASE("Hosts that one program acts for have a folder with the NICs of all") {
  Fixture f;
  const auto join = [&f](std::vector<std::string> names) {
    control::Request request;
    request.mutable_join_hosts();
    for (const std::string& name : names) request.mutable_join_hosts()->add_names(name);
    return f.ask(request);
  };
  for (int again = 0; again < 2; ++again) REQUIRE(join({"h1", "h0"}).has_join_hosts());
  const std::string folder = "hosts/h1,h0";
  const auto content = [&f](const std::string& path) { return read_file(f.folder.file(path)); };
  CHECK(content(folder + "/nics") == "h1 0\nh0 0\n");
  CHECK(content(folder + "/sys/class/infiniband_verbs/uverbs1/ibdev") == "rxe1\n");
  CHECK(content(folder + "/sys/class/infiniband/rxe1/node_guid") == content("hosts/h0/sys/class/infiniband/rxe0/node_guid"));
  CHECK(content(folder + "/sys/class/net/weft1/address") == "02:57:00:00:00:00\n");
  CHECK(content(folder + "/view") == content("hosts/h1/view"));
  CHECK(content(folder + "/etc/hostname") == "h1\n");
  CHECK(content(folder + "/proc/sys/kernel/random/boot_id") == content("hosts/h1/proc/sys/kernel/random/boot_id"));
  CHECK(join({"h0", "h2"}).error().code() == ENOENT);
  CHECK(join({"h0", "../h1"}).error().code() == ENOENT);
  CHECK(join({"h0", "h0"}).error().code() == EINVAL);
  CHECK(join({}).error().code() == EINVAL);
}

TEST_CASE("A program that attaches is in the data plane and in weft show, and leaves both") {
  Fixture f;
  host::TestClient client(f.folder.file("hosts/h1/attach"));
  client.hello(attach::kAttachVersion, 0, 1234);
  f.fabric->attach().on_ready(Instant{seconds(1)});
  f.fabric->attach().on_ready(Instant{seconds(1)});
  auto& plane = static_cast<FakeDataPlane&>(f.fabric->plane());
  REQUIRE(plane.ports.size() == 1);
  CHECK(plane.ports.begin()->second.host == 1);
  CHECK(plane.ports.begin()->second.qpn_base == client.receive().as<attach::Welcome>().qpn_base);

  control::Request request;
  request.mutable_show_hosts();
  const control::Reply hosts = f.ask(request);
  REQUIRE(hosts.hosts().hosts_size() == 2);
  CHECK(hosts.hosts().hosts(0).processes_size() == 0);
  REQUIRE(hosts.hosts().hosts(1).processes_size() == 1);
  CHECK(hosts.hosts().hosts(1).processes(0).program() == "test");
  CHECK(hosts.hosts().hosts(1).nics(0).link() == "h1-s0");

  request.mutable_run_report()->set_run_id(1234);
  CHECK(f.ask(request).run_report().attachments() == 1);
  request.mutable_run_report()->set_run_id(4321);
  CHECK(f.ask(request).run_report().attachments() == 0);

  client.hang_up();
  f.fabric->attach().on_ready(Instant{seconds(1)});
  CHECK(plane.ports.empty());
}

TEST_CASE("A port that goes down is told to its programs and to those to come, and shows in sysfs") {
  Fixture f;
  auto& plane = static_cast<FakeDataPlane&>(f.fabric->plane());
  const auto attach = [&](host::TestClient& client) {
    client.hello();
    for (int i = 0; i < 2; ++i) f.fabric->attach().on_ready(Instant{seconds(1)});
    return client.receive().as<attach::Welcome>().flags & attach::kWelcomePortDown;
  };
  host::TestClient here(f.folder.file("hosts/h1/attach"));
  host::TestClient elsewhere(f.folder.file("hosts/h0/attach"));
  CHECK(attach(here) == 0);
  CHECK(attach(elsewhere) == 0);
  const std::string port = f.folder.file("hosts/h1/sys/class/infiniband/rxe0/ports/1/");
  f.fabric->set_port(1, 0, false);
  f.fabric->set_port(1, 0, false);  // once is enough
  CHECK_FALSE(plane.links.at({1, 0}));
  CHECK(read_file(port + "state") == "1: DOWN\n");
  CHECK(read_file(port + "phys_state") == "3: Disabled\n");
  host::TestClient late(f.folder.file("hosts/h1/attach"));
  CHECK(attach(late) != 0);
  f.fabric->set_port(1, 0, true);
  CHECK(plane.links.at({1, 0}));
  CHECK(read_file(port + "state") == "4: ACTIVE\n");
  for (const uint32_t event : {10u, 9u, 18u}) {
    const host::Received got = here.receive();
    REQUIRE(got.head.type == attach::MessageType::kEvent);
    CHECK(got.as<attach::Event>().event == event);
    CHECK(got.as<attach::Event>().port == 1);
  }
  f.fabric->set_port(0, 0, false);
  CHECK(elsewhere.receive().as<attach::Event>().event == 10);
}

TEST_CASE("When a program has left, its host's sysfs counters tell what crossed") {
  Fixture f;
  auto& plane = static_cast<FakeDataPlane&>(f.fabric->plane());
  host::TestClient client(f.folder.file("hosts/h1/attach"));
  client.hello();
  f.fabric->attach().on_ready(Instant{seconds(1)});
  f.fabric->attach().on_ready(Instant{seconds(1)});
  plane.totals.tx_bytes = 4400;
  plane.totals.transport[static_cast<uint32_t>(NicCounter::kOutOfSequence)] = 5;
  CHECK_FALSE(f.fabric->counters_are_stale());
  client.hang_up();
  f.fabric->attach().on_ready(Instant{seconds(1)});
  REQUIRE(f.fabric->counters_are_stale());
  f.fabric->refresh_counters();
  CHECK_FALSE(f.fabric->counters_are_stale());
  const std::string counters = "/sys/class/infiniband/rxe0/ports/1/counters/port_xmit_data";
  CHECK(read_file(f.folder.file("hosts/h1" + counters)) == "1100\n");
  CHECK(read_file(f.folder.file("hosts/h1/sys/class/infiniband/rxe0/ports/1/hw_counters/out_of_sequence")) == "5\n");
  CHECK(read_file(f.folder.file("hosts/h0" + counters)) == "0\n");  // nobody left there
}

TEST_CASE("Metrics are filtered by prefix and told in parts from one look") {
  Fixture f;
  auto& plane = static_cast<FakeDataPlane&>(f.fabric->plane());
  for (int i = 0; i < 9000; ++i) plane.extra.push_back({"many", {{"i", std::to_string(i)}}, static_cast<uint64_t>(i)});
  control::Request request;
  request.mutable_show_metrics()->set_prefix("many");
  uint64_t seen = 0;
  int parts = 0;
  for (;;) {
    const control::Reply reply = f.ask(request);
    REQUIRE(reply.has_metrics());
    CHECK(reply.ByteSizeLong() < 1u << 20);
    for (const control::Metric& metric : reply.metrics().metrics()) CHECK(metric.value() == seen++);
    ++parts;
    if (!reply.metrics().more()) break;
    plane.extra.erase(plane.extra.begin());  // what changes meanwhile does not shift the list
    request.mutable_show_metrics()->set_skip(static_cast<uint32_t>(seen));
  }
  CHECK(seen == 9000);
  CHECK(parts == 3);
  request.mutable_show_metrics()->set_prefix("attach_");
  request.mutable_show_metrics()->set_skip(0);
  CHECK(f.ask(request).metrics().metrics_size() == 4);
}

TEST_CASE("A capture passes frames on, counts what was lost and ends") {
  Fixture f;
  control::Request start;
  start.mutable_capture_start()->add_places("h0");
  CHECK(f.ask(start).has_capture_started());
  CHECK(f.ask(start).error().code() == EBUSY);
  f.fabric->plane().pump();
  REQUIRE(f.session.sent.size() == 1);
  CHECK(f.session.sent[0].frame().interface() == "h0->s0");
  CHECK(f.session.sent[0].frame().data().size() == 60);
  f.session.full = true;
  static_cast<FakeDataPlane&>(f.fabric->plane()).wake();
  f.fabric->plane().pump();
  static_cast<FakeDataPlane&>(f.fabric->plane()).extra.push_back({"capture_lost_frames", {}, 5});
  control::Request stop;
  stop.mutable_capture_stop();
  const control::Reply stopped = f.ask(stop);
  CHECK(stopped.capture_stopped().frames() == 1);
  CHECK(stopped.capture_stopped().lost() == 1 + 5);  // here and in the data plane
  CHECK(f.ask(stop).error().code() == ENOENT);

  start.mutable_capture_start()->add_places("nowhere");
  CHECK(f.ask(start).error().text().find("nowhere") != std::string::npos);
  start.mutable_capture_start()->clear_places();
  CHECK(f.ask(start).has_error());
}

TEST_CASE("A client that goes takes its capture with it") {
  Fixture f;
  control::Request start;
  start.mutable_capture_start()->add_places("h0");
  CHECK(f.ask(start).has_capture_started());
  f.service->closed(f.session);
  f.fabric->plane().pump();
  CHECK(f.session.sent.empty());
  CHECK(f.ask(start).has_capture_started());
}

TEST_CASE("A link's name stands for its two directions") {
  Fixture f;
  CHECK(f.fabric->capture_places("h0") == std::vector<std::string>{"h0"});
  CHECK(f.fabric->capture_places("h0-s0") == std::vector<std::string>{"h0->s0", "s0->h0"});
  CHECK(f.fabric->capture_places("h0->s0") == std::vector<std::string>{"h0->s0"});
  CHECK(f.fabric->capture_places("-s0") == std::vector<std::string>{"-s0"});
}

TEST_CASE("down is answered first and ends when the asker has gone") {
  Fixture f;
  control::Request request;
  request.mutable_down();
  CHECK(f.ask(request).has_down());
  CHECK(f.end_soon == 1);
  CHECK(f.end_now == 0);
  f.service->closed(f.session);
  CHECK(f.end_now == 1);
}

TEST_CASE("An empty request is answered with an error") {
  Fixture f;
  CHECK(f.ask(control::Request()).error().code() == EOPNOTSUPP);
}
