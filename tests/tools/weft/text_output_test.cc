// SPDX-License-Identifier: Apache-2.0
#include "tools/weft/text_output.h"

#include <catch2/catch.hpp>

using namespace weft::tools;

TEST_CASE("Tables align; numbers to the right") {
  Table table({"NAME", "COUNT"});
  table.row({"a", "1"});
  table.row({"longer", "1000"});
  CHECK(table.text() == "NAME    COUNT\na           1\nlonger   1000\n");
  CHECK(table.rows() == 2);
  CHECK(Table({"A", "B"}).text() == "A  B\n");
}

TEST_CASE("JSON is JSON") {
  JsonWriter json;
  json.begin_object();
  json.member("text", std::string_view("a\"b\\c\n\x01"));
  json.member("number", uint64_t{18446744073709551615u});
  json.member("negative", int64_t{-1});
  json.member("truth", true);
  json.key("empty");
  json.begin_array();
  json.end_array();
  json.key("list");
  json.begin_array();
  json.value(uint64_t{1});
  json.begin_object();
  json.end_object();
  json.end_array();
  json.end_object();
  CHECK(json.text() ==
        "{\n  \"text\": \"a\\\"b\\\\c\\n\\u0001\",\n  \"number\": 18446744073709551615,\n  \"negative\": -1,\n"
        "  \"truth\": true,\n  \"empty\": [],\n  \"list\": [\n    1,\n    {}\n  ]\n}\n");
}

TEST_CASE("Rates and shell words") {
  CHECK(text_of_bits(100'000'000'000) == "100G");
  CHECK(text_of_bits(2'500'000'000) == "2.5G");
  CHECK(text_of_bits(10'000'000) == "10M");
  CHECK(shell_quoted("it's") == "'it'\\''s'");
}
