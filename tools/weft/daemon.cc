// SPDX-License-Identifier: Apache-2.0
//
// An edge file: the daemon's event loop, its clock and its log.
#include "tools/weft/daemon.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <fcntl.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <cstdio>
#include <exception>
#include <new>
#include <utility>

#include "nic/host/port_memory.h"
#include "tools/weft/control_server.h"
#include "tools/weft/control_service.h"
#include "tools/weft/fabric.h"
#include "tools/weft/version.h"

namespace weft::tools {
namespace {

namespace asio = boost::asio;

Instant monotonic_now() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return Instant{seconds(t.tv_sec) + nanoseconds(t.tv_nsec)};
}

std::shared_ptr<spdlog::logger> open_log(const std::string& path) {
  try {
    auto logger = spdlog::basic_logger_mt("weft", path);
    logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %v");
    logger->flush_on(spdlog::level::info);
    return logger;
  } catch (const spdlog::spdlog_ex&) {
    return nullptr;
  }
}

void redirect_to(const std::string& path) {
  const int log = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (null >= 0) dup2(null, STDIN_FILENO);
  if (log >= 0) {
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    close(log);
  }
  if (null >= 0) close(null);
}

/// Wires a fabric's descriptors and deadlines to one event loop.
class Loop {
 public:
  Loop(Fabric& fabric, const FolderLock& lock, LogLine log)
      : fabric_(fabric),
        lock_(lock),
        service_(fabric, {[this] { end_soon(); }, [this] { io_.stop(); }}),
        server_(io_, service_, log),
        log_(std::move(log)),
        signals_(io_, SIGTERM, SIGINT, SIGHUP),
        timer_(io_),
        folder_timer_(io_),
        folder_changed_(io_),
        attach_ready_(io_, fabric.attach().event_fd()),
        plane_ready_(io_, fabric.plane().event_fd()) {
    fabric_.plane().on_hostile_port = [this](SeatId seat, uint32_t, const std::string& reason) {
      // Not from inside pump(): dropping the seat calls the data plane again.
      asio::post(io_, [this, seat, reason] { fabric_.attach().drop_seat(seat, reason, monotonic_now()); });
    };
    fabric_.plane().on_resolved = [this](uint64_t token, int error, const host::Mac& mac) {
      asio::post(io_, [this, token, error, mac] { fabric_.attach().on_resolved(token, error, mac, monotonic_now()); });
    };
  }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // The descriptors belong to the fabric.
  ~Loop() {
    fabric_.plane().on_hostile_port = nullptr;
    fabric_.plane().on_resolved = nullptr;
    server_.stop();
    attach_ready_.release();
    plane_ready_.release();
  }

  std::string listen() {
    watch_folder();
    return server_.listen(fabric_.folder().control());
  }

  /// Until somebody ends it; returns who.
  std::string run() {
    signals_.async_wait([this](const boost::system::error_code& error, int signal) {
      if (error) return;
      ended_by("signal " + std::to_string(signal));
      io_.stop();
    });
    wait_for_attach();
    wait_for_plane();
    io_.run();
    return ended_by_;
  }

 private:
  // The file is for those who lose their connection now and ask the folder why.
  void ended_by(const std::string& whom) {
    ended_by_ = "ended by " + whom;
    (void)write_file(fabric_.folder().ended(), whom + "\n");
  }

  // Without its folder nobody can reach a fabric, not even to end it, and another can start under its name.
  void watch_folder() {
    const int fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    const uint32_t removals = IN_DELETE | IN_MOVED_FROM | IN_DELETE_SELF | IN_MOVE_SELF;
    if (fd >= 0 && inotify_add_watch(fd, fabric_.folder().path.c_str(), removals) >= 0) {
      folder_changed_.assign(fd);
      wait_for_removal();
      return;
    }
    // A user has few inotify instances (fs.inotify.max_user_instances), and editors take them.
    log_(std::string("no inotify (") + std::strerror(errno) + "): the run folder is looked at once a second");
    if (fd >= 0) close(fd);
    look_at_folder_later();
  }

  void wait_for_removal() {
    folder_changed_.async_wait(asio::posix::stream_descriptor::wait_read, [this](const boost::system::error_code& error) {
      if (error) return;
      alignas(inotify_event) char events[4096];
      while (read(folder_changed_.native_handle(), events, sizeof events) > 0) {
      }
      if (is_folder_there()) wait_for_removal();
    });
  }

  void look_at_folder_later() {
    folder_timer_.expires_after(std::chrono::seconds(1));
    folder_timer_.async_wait([this](const boost::system::error_code& error) {
      if (!error && is_folder_there()) look_at_folder_later();
    });
  }

  /// Ends the loop when it is not.
  bool is_folder_there() {
    if (lock_.is_still_there(fabric_.folder())) return true;
    ended_by_ = "the run folder " + fabric_.folder().path + " was removed, so that nobody can reach the fabric: it ends";
    io_.stop();
    return false;
  }

  // The loop ends when the asker has its answer and goes; this is for one that never goes.
  void end_soon() {
    ended_by("weft down");
    ending_ = true;
    timer_.expires_after(std::chrono::seconds(1));
    timer_.async_wait([this](const boost::system::error_code& error) {
      if (!error) io_.stop();
    });
  }

  void wait_for_attach() {
    attach_ready_.async_wait(asio::posix::stream_descriptor::wait_read, [this](const boost::system::error_code& error) {
      if (error) return;
      fabric_.attach().on_ready(monotonic_now());
      set_timer();
      refresh_soon();
      wait_for_attach();
    });
  }

  // After the events that are ready now: nobody waits for a file.
  void refresh_soon() {
    if (!fabric_.counters_are_stale()) return;
    asio::post(io_, [this] {
      if (fabric_.counters_are_stale()) fabric_.refresh_counters();
    });
  }

  void wait_for_plane() {
    plane_ready_.async_wait(asio::posix::stream_descriptor::wait_read, [this](const boost::system::error_code& error) {
      if (error) return;
      fabric_.plane().pump();
      wait_for_plane();
    });
  }

  void set_timer() {
    const Instant due = fabric_.attach().next_deadline();
    if (ending_ || due == armed_for_) return;
    armed_for_ = due;
    timer_.cancel();
    if (due == kNever) return;
    const Duration left = std::max(due - monotonic_now(), Duration::zero());
    timer_.expires_after(std::chrono::duration_cast<std::chrono::nanoseconds>(left) + std::chrono::milliseconds(1));
    timer_.async_wait([this](const boost::system::error_code& error) {
      if (error) return;
      armed_for_ = kNever;
      fabric_.attach().on_timer(monotonic_now());
      set_timer();
    });
  }

  asio::io_context io_{1};
  Fabric& fabric_;
  const FolderLock& lock_;
  ControlService service_;
  ControlServer server_;
  LogLine log_;
  asio::signal_set signals_;
  asio::steady_timer timer_;
  asio::steady_timer folder_timer_;
  asio::posix::stream_descriptor folder_changed_;
  asio::posix::stream_descriptor attach_ready_;
  asio::posix::stream_descriptor plane_ready_;
  Instant armed_for_ = kNever;
  bool ending_ = false;
  std::string ended_by_ = "ended";
};

std::string already_running(const RunFolder& folder) {
  const std::string option = folder.name == "default" ? "" : " --name " + folder.name;
  std::string pid = read_file(folder.file("daemon.pid"));
  while (!pid.empty() && pid.back() == '\n') pid.pop_back();
  return "fabric '" + folder.name + "' is running already" + (pid.empty() ? "" : " (process " + pid + ")") +
         "; use it, end it with: weft down" + option + ", or choose another --name";
}

/// A folder that is being cleaned up, or whose daemon is dying (after kill -9 its threads take a moment to go, and the
/// lock with the last of them), is free soon. Nothing tells when, so that it is tried again.
FolderLock::Taken take_patiently(FolderLock& lock, const RunFolder& folder) {
  constexpr Duration kPatience = seconds(5);
  constexpr int kAgainMs = 2;
  const Instant until = monotonic_now() + kPatience;
  for (;;) {
    const FolderLock::Taken taken = lock.take(folder);
    if (taken != FolderLock::Taken::kHeldByAnother || holder_is_alive(folder) || monotonic_now() >= until) return taken;
    poll(nullptr, 0, kAgainMs);
  }
}

/// Everything that needs the lock; the folder is removed by the caller.
std::string serve(const RunFolder& folder, const FolderLock& lock, const FabricSettings& settings, const DaemonMode& mode) {
  clear_run_folder(folder);
  if (std::string error = write_file(folder.file("daemon.pid"), std::to_string(getpid()) + "\n"); !error.empty()) return error;
  if (!mode.foreground) redirect_to(folder.file("daemon.log"));
  const auto logger = open_log(folder.file("daemon.log"));
  const LogLine log = [&logger](const std::string& line) {
    if (logger != nullptr) logger->info("{}", line);
  };
  log("weft " + std::string(kWeftVersion) + ", " + std::to_string(settings.hosts) + " hosts, seed " + std::to_string(settings.seed));
  auto fabric = Fabric::start(folder.name, settings, folder, log);
  if (!fabric) return fabric.error();
  Loop loop(**fabric, lock, log);
  if (std::string error = loop.listen(); !error.empty()) return error;
  mode.report({});
  const std::string ended_by = loop.run();
  log(ended_by);
  if (mode.foreground && !lock.is_still_there(folder)) std::fprintf(stderr, "weft: %s\n", ended_by.c_str());
  return {};
}

/// What libraries throw, Asio for want of descriptors and anybody for want of memory, as a line.
std::string serve_and_catch(const RunFolder& folder, const FolderLock& lock, const FabricSettings& settings, const DaemonMode& mode) {
  try {
    return serve(folder, lock, settings, mode);
  } catch (const std::bad_alloc&) {
    return "no memory is left for the daemon (ulimit -v, or the machine's)";
  } catch (const std::exception& error) {
    return std::string("the event loop cannot run: ") + error.what();
  }
}

}  // namespace

int run_daemon(const RunFolder& folder, const FabricSettings& settings, const DaemonMode& mode) {
  umask(077);
  prctl(PR_SET_NAME, "weft");  // started through /proc/self/exe, ps and pgrep would call it "exe"
  std::signal(SIGPIPE, SIG_IGN);
  host::raise_descriptor_limit();
  std::string error = make_run_folder(folder);
  FolderLock lock;
  if (error.empty()) {
    switch (take_patiently(lock, folder)) {
      case FolderLock::Taken::kYes:
        break;
      case FolderLock::Taken::kHeldByAnother:
        error = already_running(folder);
        break;
      case FolderLock::Taken::kGone:
      case FolderLock::Taken::kFailed:
        error = "cannot lock " + folder.file("lock");
        break;
    }
  }
  if (!error.empty()) {
    mode.report(error);
    return 1;
  }
  error = serve_and_catch(folder, lock, settings, mode);
  if (!error.empty()) mode.report(error);
  spdlog::drop_all();
  remove_run_folder(folder, lock);
  return error.empty() ? 0 : 1;
}

}  // namespace weft::tools
