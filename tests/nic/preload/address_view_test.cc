// SPDX-License-Identifier: Apache-2.0
#include "nic/preload/address_view.h"

#include <arpa/inet.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <string>

#include "nic/host/identity.h"
#include "nic/host/machine_tree.h"

namespace weft::preload {
namespace {

AddressView view_of(uint32_t host, uint32_t hosts, uint32_t nics, uint32_t loopback = 18) {
  AddressView view;
  REQUIRE(parse_address_view(("host " + std::to_string(host) + "\nhosts " + std::to_string(hosts) + "\nnics " +
                              std::to_string(nics) + "\nloopback " + std::to_string(loopback) + "\n")
                                 .c_str(),
                             view));
  return view;
}

SocketAddress v4(const char* text, uint16_t port = 7) {
  SocketAddress address;
  address.v4.sin_family = AF_INET;
  address.v4.sin_port = htons(port);
  REQUIRE(inet_pton(AF_INET, text, &address.v4.sin_addr) == 1);
  return address;
}

SocketAddress v6(const char* text, uint16_t port = 7) {
  SocketAddress address;
  address.v6.sin6_family = AF_INET6;
  address.v6.sin6_port = htons(port);
  REQUIRE(inet_pton(AF_INET6, text, &address.v6.sin6_addr) == 1);
  return address;
}

std::string text_of(const SocketAddress& address) {
  char text[INET6_ADDRSTRLEN] = {};
  const void* bytes =
      address.any.sa_family == AF_INET ? static_cast<const void*>(&address.v4.sin_addr) : &address.v6.sin6_addr;
  return inet_ntop(address.any.sa_family, bytes, text, sizeof text);
}

std::string bound(const AddressView& view, SocketAddress address, bool v6_only = false) {
  return translate_bind(view, address, v6_only) ? text_of(address) : "unchanged";
}

std::string back(const AddressView& view, SocketAddress address, socklen_t length = sizeof(SocketAddress)) {
  translate_back(view, &address.any, length);
  return text_of(address);
}

}  // namespace

TEST_CASE("The daemon's text and nothing else makes a view") {
  AddressView view;
  CHECK(parse_address_view("host 1\nhosts 3\nnics 2\nloopback 19\n", view));
  CHECK(view.hosts == 3);
  CHECK(view.nics == 2);
  CHECK(view.self == 1);
  CHECK(view.loopback_net == 0x7F130000);
  CHECK(parse_address_view("loopback 19\nlater words 7\nnics 2\nhosts 3\nhost 1\n", view));
  CHECK(view.on());
  CHECK(parse_address_view("host 1\nhosts 3\nnics 2\nloopback 0\n", view));
  CHECK_FALSE(view.on());
  for (const char* bad :
       {"", "host 1\n", "host 3\nhosts 3\nnics 1\nloopback 18\n", "host 0\nhosts 4095\nnics 1\nloopback 18\n",
        "host 0\nhosts 3\nnics 0\nloopback 18\n", "host 0\nhosts 3\nnics 33\nloopback 18\n",
        "host 0\nhosts 3\nnics 1\nloopback 255\n", "host 0x\nhosts 3\nnics 1\nloopback 18\n",
        "host -1\nhosts 3\nnics 1\nloopback 18\n", "host 0\nhosts 3\nnics 1\nloopback 18"}) {
    CAPTURE(bad);
    CHECK_FALSE(parse_address_view(bad, view));
  }
}

TEST_CASE("The addresses are those of the daemon's plan, and no others") {
  const auto [hosts, nics] = GENERATE(table<uint32_t, uint32_t>({{1, 1}, {2, 1}, {3, 2}, {4, 3}, {7, 32}, {4094, 32}}));
  const host::AddressPlan plan(hosts, nics);
  const uint32_t self = hosts - 1;
  const AddressView view = view_of(self, hosts, nics);
  for (uint32_t nic = 0; nic < nics; ++nic) CHECK(view.own_address(nic) == plan.nic(self, nic).ipv4);
  CHECK(view.own_loopback() == host::loopback_address(18, self));
  uint32_t found = 0;
  for (uint32_t ip = kFabricNet - 2; ip < kFabricNet + 0x20002; ++ip) {
    uint32_t loopback = 0;
    const auto nic = plan.find_ipv4(ip);
    const bool known = view.to_loopback(ip, loopback);
    if (known != nic.has_value()) FAIL("disagree about " << host::text_of_ipv4(ip));
    if (!known) continue;
    ++found;
    uint32_t fabric = 0;
    if (loopback != host::loopback_address(18, nic->host))
      FAIL(host::text_of_ipv4(ip) << " is not at its host's loopback address");
    if (!view.to_fabric(loopback, fabric) || fabric != plan.nic(nic->host, 0).ipv4)
      FAIL("no way back from " << host::text_of_ipv4(loopback));
  }
  CHECK(found == hosts * nics);
}

TEST_CASE("Only loopback addresses of the fabric's hosts are translated back") {
  const AddressView view = view_of(1, 3, 1);
  CHECK(back(view, v4("127.18.0.1")) == "198.18.0.1");
  CHECK(back(view, v4("127.18.0.3")) == "198.18.0.3");
  CHECK(back(view, v6("::ffff:127.18.0.3")) == "::ffff:198.18.0.3");
  for (const char* other : {"127.18.0.0", "127.18.0.4", "127.19.0.1", "127.0.0.1", "198.18.0.1", "10.0.0.1", "0.0.0.0"})
    CHECK(back(view, v4(other)) == other);
  for (const char* other : {"::", "::1", "::ffff:127.0.0.1", "::ffff:127.19.0.1", "::127.18.0.1", "fe80::1"})
    CHECK(back(view, v6(other)) == other);
  // Cut by the program's own room: nothing is touched that the kernel did not write.
  CHECK(back(view, v4("127.18.0.1"), 7) == "127.18.0.1");
  CHECK(back(view, v4("127.18.0.1"), 8) == "198.18.0.1");
  CHECK(back(view, v6("::ffff:127.18.0.3"), 23) == "::ffff:127.18.0.3");
  CHECK(back(view, v6("::ffff:127.18.0.3"), 24) == "::ffff:198.18.0.3");
}

TEST_CASE("bind: the wildcard and the own addresses, of both families") {
  const AddressView view = view_of(1, 3, 2);
  for (const char* own : {"0.0.0.0", "198.18.0.2", "198.18.0.6"}) CHECK(bound(view, v4(own)) == "127.18.0.2");
  for (const char* own : {"::", "::ffff:0.0.0.0", "::ffff:198.18.0.2"})
    CHECK(bound(view, v6(own)) == "::ffff:127.18.0.2");
  for (const char* other : {"198.18.0.1", "198.18.0.4", "198.18.0.5", "127.0.0.1", "127.18.0.1", "10.0.0.1"})
    CHECK(bound(view, v4(other)) == "unchanged");
  for (const char* other : {"::1", "fe80::1", "::ffff:198.18.0.1", "::ffff:127.0.0.1"})
    CHECK(bound(view, v6(other)) == "unchanged");
}

TEST_CASE(
    "An IPv6-only wildcard gets an address that no other host and no other fabric has, and shows as the wildcard") {
  const std::string first = bound(view_of(0, 300, 1), v6("::"), true);
  CHECK(first.rfind("fd57:6566:7400:7f12", 0) == 0);
  CHECK(first != bound(view_of(256, 300, 1), v6("::"), true));
  CHECK(first != bound(view_of(0, 300, 1, 19), v6("::"), true));
  CHECK(back(view_of(0, 300, 1), v6(first.c_str())) == "::");
  CHECK(back(view_of(1, 300, 1), v6(first.c_str())) == first);
  CHECK(bound(view_of(0, 300, 1), v6("::ffff:198.18.0.1"), true) == "unchanged");
  CHECK(bound(view_of(0, 300, 1), v6("::1"), true) == "unchanged");
}

TEST_CASE("Whom a destination means") {
  const AddressView view = view_of(1, 3, 1);
  uint32_t loopback = 0;
  CHECK(target_of(view, v4("198.18.0.1"), loopback) == Target::kHost);
  CHECK(loopback == 0x7F120001);
  CHECK(target_of(view, v6("::ffff:198.18.0.3"), loopback) == Target::kHost);
  CHECK(loopback == 0x7F120003);
  for (const char* local : {"127.0.0.1", "0.0.0.0"}) {
    CHECK(target_of(view, v4(local), loopback) == Target::kLocalhost);
    CHECK(loopback == 0x7F120002);
  }
  for (const char* local : {"::1", "::", "::ffff:127.0.0.1"})
    CHECK(target_of(view, v6(local), loopback) == Target::kLocalhost);
  for (const char* other : {"198.18.0.4", "198.19.0.1", "127.18.0.1", "127.0.0.2", "8.8.8.8"})
    CHECK(target_of(view, v4(other), loopback) == Target::kOther);
  for (const char* other : {"fe80::1", "::2", "2001:db8::1"})
    CHECK(target_of(view, v6(other), loopback) == Target::kOther);
  SocketAddress unix_like;
  unix_like.any.sa_family = AF_UNIX;
  CHECK(target_of(view, unix_like, loopback) == Target::kOther);
}

TEST_CASE("What has no address yet") {
  CHECK(is_unbound(v4("0.0.0.0", 0)));
  CHECK(is_unbound(v6("::", 0)));
  CHECK_FALSE(is_unbound(v4("0.0.0.0", 1)));
  CHECK_FALSE(is_unbound(v4("127.0.0.1", 0)));
  CHECK_FALSE(is_unbound(v6("::", 1)));
  CHECK_FALSE(is_unbound(v6("::ffff:0.0.0.0", 0)));
  CHECK(is_ipv4_or_any(v4("10.0.0.1")));
  CHECK(is_ipv4_or_any(v6("::")));
  CHECK(is_ipv4_or_any(v6("::ffff:10.0.0.1")));
  CHECK_FALSE(is_ipv4_or_any(v6("::1")));
  CHECK_FALSE(is_ipv4_or_any(v6("fe80::1")));
}

TEST_CASE("What is no internet address is left to the kernel") {
  const SocketAddress four = v4("198.18.0.1");
  const SocketAddress six = v6("::1");
  CHECK(is_internet(&four.any, sizeof(sockaddr_in)));
  CHECK_FALSE(is_internet(&four.any, sizeof(sockaddr_in) - 1));
  CHECK(is_internet(&six.any, 24));
  CHECK_FALSE(is_internet(&six.any, 23));
  CHECK_FALSE(is_internet(nullptr, 16));
}

}  // namespace weft::preload
