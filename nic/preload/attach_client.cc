// SPDX-License-Identifier: Apache-2.0
#include "nic/preload/attach_client.h"

#include <errno.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "nic/preload/clock.h"
#include "nic/preload/syscalls.h"

namespace weft::preload {

namespace {

using attach::MessageType;
using attach::WelcomeDescriptor;

constexpr Duration kHandshakeLimit = seconds(3);
constexpr uint32_t kDescriptors = static_cast<uint32_t>(WelcomeDescriptor::kCount);

union Message {
  attach::MessageHead head;
  attach::Welcome welcome;
  attach::Refused refused;
  uint8_t bytes[attach::kMessageBytes];
};

struct Received {
  Message message;
  int fds[kDescriptors];
  uint32_t fd_count;
  bool fds_cut;
};

void close_all(Received& in) {
  for (uint32_t i = 0; i < in.fd_count; ++i) raw::close(in.fds[i]);
  in.fd_count = 0;
}

void hint_up(const Settings& settings, Line& why) {
  why.add("; type: weft up");
  if (settings.fabric[0] != '\0') why.add(" --name ").add(settings.fabric);
}

int connect_to_host(const Settings& settings, const char* host, Line& why) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  Text<sizeof address.sun_path> path;
  path.add(settings.run).add("/hosts/").add(host).add("/attach");
  why.clear();
  if (path.overflowed()) {
    why.add("the path of the fabric's socket is too long: ").add(settings.run).add("/hosts/").add(host);
    return -ENAMETOOLONG;
  }
  memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const long fd = raw::call(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd < 0) {
    why.add("no descriptor left for the fabric's socket; raise the limit (ulimit -n)");
    return static_cast<int>(fd);
  }
  const long result = raw::call(SYS_connect, static_cast<int>(fd), &address, sizeof address);
  if (result == 0) return static_cast<int>(fd);
  raw::close(static_cast<int>(fd));
  const int error = static_cast<int>(-result);
  why.add("cannot attach host ").add(host).add(" at ").add(path.c_str());
  if (error == EACCES || error == EPERM) {
    why.add(": not allowed; its owner may type: weft up --share ").add(host);
    return -EACCES;
  }
  why.add(error == ECONNREFUSED ? ": the fabric is gone" : ": no fabric there");
  hint_up(settings, why);
  return -ENODEV;
}

bool wait_readable(int socket, Instant deadline) {
  for (;;) {
    // A program that was stopped finds its time over and the answer there: one look is always had.
    const Duration left = deadline - read_clock();
    pollfd entry{socket, POLLIN, 0};
    const long ready = raw::poll(&entry, 1, left <= Duration::zero() ? 0 : left.count() / 1000);
    if (ready > 0) return true;
    if ((ready < 0 && ready != -EINTR) || left <= Duration::zero()) return false;
  }
}

// 0, or an errno. ECONNRESET: the daemon hung up.
int receive(int socket, Instant deadline, Received& in) {
  in.fd_count = 0;
  in.fds_cut = false;
  if (!wait_readable(socket, deadline)) return ETIMEDOUT;
  iovec part{in.message.bytes, sizeof in.message.bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kDescriptors)];
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  const long size = raw::call(SYS_recvmsg, socket, &header, MSG_CMSG_CLOEXEC);
  if (size <= 0) return size < 0 ? static_cast<int>(-size) : ECONNRESET;
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count && in.fd_count < kDescriptors; ++i) {
      memcpy(&in.fds[in.fd_count++], CMSG_DATA(c) + i * sizeof(int), sizeof(int));
    }
  }
  in.fds_cut = (header.msg_flags & MSG_CTRUNC) != 0;
  return size == attach::kMessageBytes ? 0 : EPROTO;
}

void program_name(char (&out)[64]) {
  const long fd = raw::open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  const long size = raw::read(static_cast<int>(fd), out, sizeof out - 1);
  raw::close(static_cast<int>(fd));
  for (size_t i = 0; i < sizeof out; ++i) {
    if (size <= 0 || i >= static_cast<size_t>(size) || out[i] == '\n') out[i] = '\0';
  }
}

int say_hello(int socket, const Settings& settings) {
  attach::Hello hello{};
  hello.head.type = MessageType::kHello;
  hello.head.tag = 1;
  hello.version = attach::kAttachVersion;
  hello.pid = static_cast<int32_t>(raw::getpid());
  hello.run_id = settings.run_id;
  program_name(hello.program);
  const long sent = raw::call(SYS_sendto, socket, &hello, sizeof hello, MSG_NOSIGNAL, nullptr, 0);
  return sent == static_cast<long>(sizeof hello) ? 0 : static_cast<int>(sent < 0 ? -sent : EPROTO);
}

void* map_descriptor(int fd, uint64_t bytes, int protection) {
  struct stat status;
  if (raw::fstat(fd, &status) != 0 || static_cast<uint64_t>(status.st_size) < bytes) return nullptr;
  return raw::mmap(bytes, protection, MAP_SHARED, fd);
}

// A second read end of the kick pipe: with it, a kick to a daemon that was killed is a write into a full pipe and not a
// SIGPIPE in the middle of the program's poll loop. Where /proc is missing the attach goes without.
int open_guard(int kick_write) {
  Text<40> path;
  path.add("/proc/self/fd/").number(static_cast<uint64_t>(kick_write));
  return static_cast<int>(raw::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
}

bool geometry_fits(const attach::Welcome& welcome) {
  const auto slots_fit = [](uint32_t slots) { return slots >= 32 && slots <= 4096 && (slots & (slots - 1)) == 0; };
  if (!slots_fit(welcome.tx_slots) || !slots_fit(welcome.rx_slots)) return false;
  if (welcome.slot_payload < 256 || welcome.slot_payload > 16384 || welcome.slot_payload % 64 != 0) return false;
  if (welcome.qpn_log2 == 0 || welcome.qpn_log2 > 20 || welcome.gid_count > 4) return false;
  const auto page = static_cast<uint32_t>(sysconf(_SC_PAGESIZE));
  return attach::port_layout(welcome.tx_slots, welcome.rx_slots, welcome.slot_payload, page).total ==
         welcome.port_bytes;
}

// The second host's rxe0 is the process's rxe1.
void renumber(attach::Welcome& welcome, uint32_t nic) {
  welcome.nic = nic;
  Text<sizeof welcome.device> device;
  device.add("rxe").number(nic);
  memcpy(welcome.device, device.c_str(), device.size() + 1);
}

// Takes over the descriptors of one WELCOME. The memory ones are closed once mapped; the pipes stay.
int take_welcome(Received& in, Attachment& out, Line& why) {
  const attach::Welcome& welcome = in.message.welcome;
  Channel& channel = out.channels[out.channel_count - 1];
  const auto fd = [&in](WelcomeDescriptor which) { return in.fds[static_cast<uint32_t>(which)]; };
  if (in.fd_count != kDescriptors) {
    why.add("descriptors were lost on the way from the fabric; raise the limit (ulimit -n)");
    return EMFILE;
  }
  const bool expected = welcome.nic == channel.nic_count && welcome.nic_count >= 1 &&
                        welcome.nic_count <= attach::kMaxNicsPerHost && welcome.nic < welcome.nic_count;
  if (welcome.version != attach::kAttachVersion || !expected || !geometry_fits(welcome)) {
    why.add("the fabric's daemon and libweft are of different versions; start both from one build");
    return EPROTO;
  }
  if (out.nic_count == attach::kMaxNicsPerHost) {
    why.add("the hosts ").add(settings().host).add(" have more NICs than one process can drive");
    return ENOSPC;
  }
  AttachedNic& nic = out.nics[out.nic_count];
  nic.welcome = welcome;
  nic.channel = out.channel_count - 1;
  nic.number = channel.nic_count++;
  renumber(nic.welcome, out.nic_count++);
  nic.memory_bytes = welcome.port_bytes;
  nic.memory =
      static_cast<uint8_t*>(map_descriptor(fd(WelcomeDescriptor::kPort), welcome.port_bytes, PROT_READ | PROT_WRITE));
  nic.status = map_descriptor(fd(WelcomeDescriptor::kStatus), sizeof(attach::StatusPage), PROT_READ);
  nic.notices = map_descriptor(fd(WelcomeDescriptor::kNotices), sizeof(attach::NoticeRing), PROT_READ);
  nic.kick_read.store(fd(WelcomeDescriptor::kKickRead));
  nic.kick_write.store(fd(WelcomeDescriptor::kKickWrite));
  const int guard = open_guard(nic.kick_write.load());
  nic.kick_guard.store(guard < 0 ? -1 : guard);
  raw::fcntl(nic.kick_read.load(), F_SETFL, O_NONBLOCK);
  raw::fcntl(nic.kick_write.load(), F_SETFL, O_WRONLY | O_NONBLOCK);
  raw::close(fd(WelcomeDescriptor::kPort));
  raw::close(fd(WelcomeDescriptor::kStatus));
  raw::close(fd(WelcomeDescriptor::kNotices));
  in.fd_count = 0;
  if (nic.memory == nullptr || nic.status == nullptr || nic.notices == nullptr) {
    why.add("no memory to map the port of ").add(welcome.device, strnlen(welcome.device, sizeof welcome.device));
    return ENOMEM;
  }
  const auto page = static_cast<uint32_t>(sysconf(_SC_PAGESIZE));
  const auto layout = attach::port_layout(welcome.tx_slots, welcome.rx_slots, welcome.slot_payload, page);
  const auto* status = static_cast<const attach::StatusPage*>(nic.status);
  const bool opened = nic.port.open(nic.memory, layout, status, static_cast<const attach::NoticeRing*>(nic.notices));
  return opened ? 0 : EPROTO;
}

int refused(const attach::Refused& message, Line& why) {
  why.add("the fabric refused: ").add(message.text, strnlen(message.text, sizeof message.text));
  return message.error > 0 && message.error < 4096 ? message.error : EACCES;
}

int handshake(int socket, const Settings& settings, const char* host, Attachment& out, Line& why) {
  const Instant deadline = read_clock() + kHandshakeLimit;
  int error = say_hello(socket, settings);
  Received in;
  uint32_t expected = 1;
  while (error == 0 && out.channels[out.channel_count - 1].nic_count < expected) {
    error = receive(socket, deadline, in);
    if (error == 0 && in.message.head.type == MessageType::kRefused) {
      error = refused(in.message.refused, why);
    } else if (error == 0 && in.message.head.type == MessageType::kWelcome) {
      error = take_welcome(in, out, why);
      expected = in.message.welcome.nic_count;
    } else if (error == 0 && in.message.head.type != MessageType::kEvent) {
      error = EPROTO;
    }
    close_all(in);
  }
  if (error == 0 || why.size() != 0) return error;
  why.add("the fabric at ").add(settings.run);
  if (error == ETIMEDOUT) {
    why.add(" does not answer; look at it with: weft show hosts");
  } else {
    why.add(" hung up while host ").add(host).add(" attached");
    hint_up(settings, why);
  }
  return error == ETIMEDOUT ? ETIMEDOUT : ENODEV;
}

int attach_one(const Settings& settings, const char* host, Attachment& out, Line& why) {
  if (out.channel_count == kMaxChannels) {
    why.add("the list ").add(settings.host).add(" is longer than what one process can be");
    return ENOSPC;
  }
  const int socket = connect_to_host(settings, host, why);
  if (socket < 0) return -socket;
  Channel& channel = out.channels[out.channel_count++];
  channel.socket.store(socket);
  channel.first_nic = out.nic_count;
  return handshake(socket, settings, host, out, why);
}

}  // namespace

int attach_to_host(const Settings& settings, Attachment& out, Line& why) {
  int error = 0;
  for (const char* at = settings.host; error == 0 && *at != '\0';) {
    Text<kMaxHostName> host;
    while (*at != ',' && *at != '\0') host.add(*at++);
    if (*at == ',') ++at;
    error = attach_one(settings, host.c_str(), out, why);
  }
  if (error != 0) undo_attach(out);
  return error;
}

void undo_attach(Attachment& attachment) {
  const auto close_held = [](std::atomic<int>& fd) {
    const int value = fd.exchange(-1);
    if (value >= 0) raw::close(value);
  };
  for (uint32_t i = 0; i < attachment.channel_count; ++i) {
    close_held(attachment.channels[i].socket);
    attachment.channels[i].nic_count = 0;
  }
  attachment.channel_count = 0;
  for (uint32_t i = 0; i < attachment.nic_count; ++i) {
    AttachedNic& nic = attachment.nics[i];
    close_held(nic.kick_read);
    close_held(nic.kick_write);
    close_held(nic.kick_guard);
    if (nic.memory != nullptr) raw::munmap(nic.memory, nic.memory_bytes);
    if (nic.status != nullptr) raw::munmap(nic.status, sizeof(attach::StatusPage));
    if (nic.notices != nullptr) raw::munmap(nic.notices, sizeof(attach::NoticeRing));
    nic.memory = nullptr;
    nic.status = nullptr;
    nic.notices = nullptr;
  }
  attachment.nic_count = 0;
}

}  // namespace weft::preload
