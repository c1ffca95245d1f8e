// SPDX-License-Identifier: Apache-2.0
//
// Runs a fuzz target without libFuzzer, so that every build has it as a test:
//
//   TARGET_regression [--iterations N] [--seed N] PATH...
//
// PATH: a file or folder of inputs; of a .pcap file every frame becomes inputs (one per mode byte). First every input
// as it is, then N mutations of random inputs. The seed is printed; a failure leaves the input in ./fuzz-failure.bin.
#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "protocols/base/random.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

using Input = std::vector<uint8_t>;
namespace fs = std::filesystem;

Input g_current;  // what is being tried; for the signal handler

void save_and_die(int signal) {
  if (FILE* out = std::fopen("fuzz-failure.bin", "wb"); out != nullptr) {
    std::fwrite(g_current.data(), 1, g_current.size(), out);
    std::fclose(out);
  }
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

Input read_file(const fs::path& path) {
  Input bytes;
  if (FILE* in = std::fopen(path.c_str(), "rb"); in != nullptr) {
    uint8_t block[65536];
    for (size_t n; (n = std::fread(block, 1, sizeof(block), in)) > 0;) bytes.insert(bytes.end(), block, block + n);
    std::fclose(in);
  }
  return bytes;
}

void add_frames(const Input& pcap, std::vector<Input>& corpus) {
  for (size_t at = 24; at + 16 <= pcap.size();) {
    uint32_t length;
    std::memcpy(&length, pcap.data() + at + 8, sizeof(length));
    at += 16;
    if (length > pcap.size() - at) return;
    for (uint8_t mode = 0; mode < 4; ++mode) {
      Input input{mode};
      if (mode == 2) input.insert(input.end(), {0, 0});  // where that mode wants the payload's length
      input.insert(input.end(), pcap.begin() + static_cast<long>(at), pcap.begin() + static_cast<long>(at + length));
      corpus.push_back(std::move(input));
    }
    at += length;
  }
}

bool add_path(const fs::path& path, std::vector<Input>& corpus) {
  std::error_code error;
  if (fs::is_directory(path, error)) {
    std::vector<fs::path> entries;
    for (const auto& entry : fs::directory_iterator(path, error)) entries.push_back(entry.path());
    std::sort(entries.begin(), entries.end());
    return std::all_of(entries.begin(), entries.end(), [&](const fs::path& p) { return add_path(p, corpus); });
  }
  if (!fs::is_regular_file(path, error)) return false;
  Input bytes = read_file(path);
  if (path.extension() == ".pcap") {
    add_frames(bytes, corpus);
  } else if (path.extension() != ".md") {
    corpus.push_back(std::move(bytes));
  }
  return true;
}

Input mutate(const std::vector<Input>& corpus, weft::Random& random) {
  Input input = corpus[random.below(corpus.size())];
  if (input.size() > 512) input.resize(512 + random.below(input.size() - 511));
  for (uint64_t edits = 1 + random.below(6); edits > 0; --edits) {
    const uint64_t size = input.size();
    const uint8_t byte = static_cast<uint8_t>(random.next());
    switch (size == 0 ? 3 : random.below(7)) {
      case 0:
        input[random.below(size)] = byte;
        break;
      case 1:
        input[random.below(size)] ^= static_cast<uint8_t>(1u << (byte & 7));
        break;
      case 2:
        input.resize(random.below(size));
        break;
      case 3:
        input.insert(input.begin() + static_cast<long>(random.below(size + 1)), 1 + byte % 16, byte);
        break;
      case 4:
        input[random.below(std::min<uint64_t>(size, 80))] = byte;
        break;  // headers more than payload
      case 5:
        input[random.below(size)] = (byte & 1) != 0 ? 0xFF : 0;
        break;
      default: {
        const Input& other = corpus[random.below(corpus.size())];
        const size_t n = std::min({static_cast<size_t>(1 + byte % 32), other.size(), input.size()});
        if (n != 0)
          std::memcpy(input.data() + random.below(size - n + 1), other.data() + random.below(other.size() - n + 1), n);
      }
    }
  }
  return input;
}

void try_input(const Input& input) {
  g_current = input;
  LLVMFuzzerTestOneInput(g_current.data(), g_current.size());
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t iterations = 100000;
  uint64_t seed = 1;
  std::vector<Input> corpus{Input{}};
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--iterations" && i + 1 < argc) {
      iterations = std::strtoull(argv[++i], nullptr, 0);
    } else if (word == "--seed" && i + 1 < argc) {
      seed = std::strtoull(argv[++i], nullptr, 0);
    } else if (!add_path(word, corpus)) {
      std::fprintf(stderr, "%s: no such file or folder\n", word.c_str());
      return 2;
    }
  }
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) std::signal(signal, save_and_die);
  std::printf("%zu inputs, then %llu mutations with seed %llu\n", corpus.size(),
              static_cast<unsigned long long>(iterations), static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  for (const Input& input : corpus) try_input(input);
  weft::Random random(seed, 0);
  for (uint64_t i = 0; i < iterations; ++i) try_input(mutate(corpus, random));
  return 0;
}
