// SPDX-License-Identifier: Apache-2.0
//
// `weft capture`: frames that cross hosts' links, as pcapng, until Ctrl-C or --for.
#include <fcntl.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <map>

#include "scenarios/engine/pcapng.h"
#include "tools/weft/commands.h"
#include "tools/weft/control_client.h"
#include "tools/weft/process_setup.h"
#include "tools/weft/version.h"

namespace weft::tools {
namespace {

constexpr Duration kIdleFlush = milliseconds(100);  // who reads the capture live sees a frame within this

/// Ctrl-C and its like as a descriptor, so that the end is an event like a frame.
int open_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, signal);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
  return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

class Recorder {
 public:
  explicit Recorder(int fd) : writer_(fd, std::string("weft ") + kWeftVersion) {}

  /// 0 or errno.
  int add(const control::Frame& frame) {
    const auto [it, is_new] = interfaces_.try_emplace(frame.interface());
    if (is_new) it->second = writer_.add_interface(frame.interface());
    const Bytes bytes(reinterpret_cast<const uint8_t*>(frame.data().data()), frame.data().size());
    const auto direction = frame.inbound() ? PcapngDirection::kInbound : PcapngDirection::kOutbound;
    ++frames_;
    return writer_.add_frame(it->second, frame.unix_ns(), bytes, direction, frame.comment());
  }
  int flush() { return writer_.flush(); }
  uint64_t frames() const { return frames_; }

 private:
  PcapngWriter writer_;
  std::map<std::string, uint32_t> interfaces_;
  uint64_t frames_ = 0;
};

struct Ending {
  int write_error = 0;
  std::string error;
  uint64_t lost = 0;
};

/// Frames until the daemon confirms the stop, which is asked for at a signal, at the deadline or at a write error.
Ending record(ControlClient& client, Recorder& recorder, int signals, std::optional<Duration> length) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const auto elapsed = [start] {
    return nanoseconds(std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count());
  };
  Ending ending;
  bool stopping = false;
  Duration flushed = Duration::zero();
  const auto stop = [&] {
    control::Request request;
    request.mutable_capture_stop();
    ending.error = client.send(request);
    stopping = true;
  };
  while (ending.error.empty()) {
    signalfd_siginfo ignored;
    if (!stopping && read(signals, &ignored, sizeof ignored) > 0) stop();
    if (!stopping && length && elapsed() >= *length) stop();
    Duration patience = stopping ? seconds(10) : kIdleFlush;
    if (!stopping && length) patience = std::min(patience, *length - elapsed() + milliseconds(1));
    Outcome<control::Reply> reply = client.next(std::max(patience, Duration::zero()), stopping ? -1 : signals);
    if (!reply) {
      if (reply.error() != ControlClient::kTimedOut || stopping) {
        ending.error = reply.error();
      } else if ((ending.write_error = recorder.flush()) != 0) {
        stop();
      }
      continue;
    }
    if (reply->has_error()) {
      ending.error = reply->error().text();
    } else if (reply->has_capture_stopped()) {
      ending.lost = reply->capture_stopped().lost();
      return ending;
    } else if (reply->has_frame() && ending.write_error == 0) {
      ending.write_error = recorder.add(reply->frame());
      if (ending.write_error == 0 && elapsed() - flushed > kIdleFlush) {
        ending.write_error = recorder.flush();
        flushed = elapsed();
      }
      if (ending.write_error != 0 && !stopping) stop();
    }
  }
  return ending;
}

}  // namespace

int command_capture(const ParsedLine& line) {
  Outcome<RunFolder> folder = find_run_folder(line.name);
  if (!folder) return complain(folder.error());
  const bool to_stdout = line.output == "-";
  if (to_stdout && isatty(STDOUT_FILENO) != 0) {
    return complain("a capture is binary; give a file with -w FILE.pcapng, or pipe it into a program", kUsageError);
  }
  auto client = ControlClient::connect(*folder);
  if (!client) return complain(client.error());
  control::Request request;
  for (const std::string& place : line.places) request.mutable_capture_start()->add_places(place);
  Outcome<control::Reply> started = (*client)->call(request);
  if (!started) return complain(started.error());

  const int fd = to_stdout ? STDOUT_FILENO : open(line.output.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return complain("cannot write " + line.output + ": " + error_text(errno));
  const int signals = open_signals();
  Recorder recorder(fd);
  int error = recorder.flush();  // the file's head is there as soon as the capture runs: who waits for it may begin
  if (!to_stdout && isatty(STDERR_FILENO) != 0) std::fprintf(stderr, "weft: capturing into %s; Ctrl-C ends it\n", line.output.c_str());
  Ending ending;
  if (error == 0) ending = record(**client, recorder, signals, line.capture_for);
  if (error == 0) error = ending.write_error != 0 ? ending.write_error : recorder.flush();
  if (error == EPIPE && to_stdout) return 0;  // the reader has seen enough
  if (error != 0) return complain("cannot write " + line.output + ": " + error_text(error));
  if (!ending.error.empty()) return complain(ending.error);
  if (!to_stdout) std::fprintf(stderr, "weft: %llu frames in %s\n", static_cast<unsigned long long>(recorder.frames()), line.output.c_str());
  if (ending.lost != 0) {
    std::fprintf(stderr, "weft: %llu frames are missing from the capture: traffic was faster than it could be written\n",
                 static_cast<unsigned long long>(ending.lost));
  }
  return 0;
}

}  // namespace weft::tools
