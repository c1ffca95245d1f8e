// SPDX-License-Identifier: Apache-2.0
#include "nic/preload/live_counters.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/un.h>

#include "nic/preload/line_reader.h"
#include "nic/preload/settings.h"
#include "nic/preload/syscalls.h"
#include "nic/preload/text.h"
#include "protocols/attach/messages.h"

namespace weft::preload {
namespace {

constexpr int64_t kAnswerLimitNs = 1'000'000'000;

/// <run>/hosts/<host>/sys/class/infiniband/rxeN/ports/1/{,hw_}counters/NAME
bool parse(const char* path, attach::Counters& question) {
  const char* rest = after(path, settings().run);
  const char* const parts[] = {"/hosts/", settings().host, "/sys/class/infiniband/rxe"};
  for (const char* part : parts) {
    if (rest != nullptr) rest = after(rest, part);
  }
  if (rest == nullptr) return false;
  const long nic = parse_number(rest, attach::kMaxNicsPerHost - 1, &rest);
  if (nic < 0 || (rest = after(rest, "/ports/1/")) == nullptr) return false;
  const char* hw = after(rest, "hw_counters/");
  const char* name = hw != nullptr ? hw : after(rest, "counters/");
  if (name == nullptr || length(name) >= sizeof question.name) return false;
  question.nic = static_cast<uint32_t>(nic);
  question.folder = hw != nullptr ? 1 : 0;
  memcpy(question.name, name, length(name) + 1);
  return true;
}

/// Of several hosts in one process: `nics` has a line per NIC, its host and its number there. True for a single host too.
bool find_owner(attach::Counters& question, Text<kMaxHostName>& host) {
  if (same(settings().host, settings().name)) {
    host.add(settings().host);
    return true;
  }
  Text<kMaxRunFolder + kMaxHostName + 16> path;
  path.add(settings().run).add("/hosts/").add(settings().host).add("/nics");
  LineReader reader(path.c_str());
  Text<kMaxHostName + 16> line;
  for (uint32_t nic = 0; reader.next(line); ++nic) {
    Text<16> number;
    if (nic != question.nic) continue;
    if (!field(line.c_str(), 0, host) || !field(line.c_str(), 1, number)) return false;
    question.nic = static_cast<uint32_t>(parse_number(number.c_str(), attach::kMaxNicsPerHost - 1, nullptr));
    return true;
  }
  return false;
}

int connect_to_daemon(const char* host) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  Text<sizeof address.sun_path> path;
  path.add(settings().run).add("/hosts/").add(host).add("/attach");
  if (path.overflowed()) return -1;
  memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const long fd = raw::call(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  if (raw::call(SYS_connect, static_cast<int>(fd), &address, sizeof address) == 0) return static_cast<int>(fd);
  raw::close(static_cast<int>(fd));
  return -1;
}

bool ask(attach::Counters& message) {
  Text<kMaxHostName> host;
  const int fd = find_owner(message, host) ? connect_to_daemon(host.c_str()) : -1;
  if (fd < 0) return false;
  bool good = raw::call(SYS_sendto, fd, &message, sizeof message, MSG_NOSIGNAL, nullptr, 0) ==
              static_cast<long>(sizeof message);
  pollfd entry{fd, POLLIN, 0};
  good = good && raw::poll(&entry, 1, kAnswerLimitNs) == 1;
  good = good && raw::call(SYS_recvfrom, fd, &message, sizeof message, MSG_DONTWAIT, nullptr, nullptr) ==
                     static_cast<long>(sizeof message);
  raw::close(fd);
  return good && message.head.type == attach::MessageType::kCounters && message.error == 0;
}

int memory_file(uint64_t value, int flags) {
  const long fd = raw::call(SYS_memfd_create, "counter", (flags & O_CLOEXEC) != 0 ? 1L : 0L);
  if (fd < 0) return -1;
  Text<32> text;
  text.number(value).add('\n');
  const auto size = static_cast<long>(text.size());
  if (raw::call(SYS_pwrite64, static_cast<int>(fd), text.c_str(), text.size(), 0L) == size) return static_cast<int>(fd);
  raw::close(static_cast<int>(fd));
  return -1;
}

}  // namespace

int open_live_counter(const char* path, int flags) {
  if (path == nullptr || !settings().active || (flags & (O_ACCMODE | O_CREAT | O_DIRECTORY)) != O_RDONLY) return -1;
  attach::Counters message{};
  message.head.type = attach::MessageType::kCounters;
  const int saved = errno;
  const int fd = parse(path, message) && ask(message) ? memory_file(message.value, flags) : -1;
  errno = saved;
  return fd;
}

}  // namespace weft::preload
