// SPDX-License-Identifier: Apache-2.0
//
// A program's end of the attach channel, for tests: sends what it is told, right or wrong, and keeps what comes back.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "protocols/attach/messages.h"

namespace weft::host {

struct Received {
  bool end = false;   ///< the channel is over
  bool none = false;  ///< nothing there (yet)
  attach::MessageHead head{};
  std::array<uint8_t, attach::kMessageBytes> bytes{};
  std::vector<int> fds;

  template <typename T>
  T as() const {
    T value;
    std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
};

class TestClient {
 public:
  explicit TestClient(const std::string& path) {
    fd_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    connected_ = connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  TestClient(const TestClient&) = delete;
  TestClient& operator=(const TestClient&) = delete;
  ~TestClient() {
    hang_up();
    for (const int fd : kept_) close(fd);
  }

  bool connected() const { return connected_; }
  int fd() const { return fd_; }
  void hang_up() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

  bool send_bytes(const void* data, size_t size) { return send(fd_, data, size, MSG_NOSIGNAL) == static_cast<ssize_t>(size); }
  template <typename T>
  bool say(const T& message) {
    return send_bytes(&message, sizeof message);
  }
  bool hello(uint32_t version = attach::kAttachVersion, uint32_t nics = 0, uint64_t run_id = 0) {
    attach::Hello h{};
    h.head.type = attach::MessageType::kHello;
    h.head.tag = 77;
    h.version = version;
    h.nic_count = nics;
    h.run_id = run_id;
    std::strcpy(h.program, "test");
    return say(h);
  }

  Received receive() {
    Received r;
    iovec part{r.bytes.data(), r.bytes.size()};
    alignas(cmsghdr) char control[256];
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t got = recvmsg(fd_, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0 && errno == EAGAIN) {
      r.none = true;
      return r;
    }
    if (got <= 0) {
      r.end = true;
      return r;
    }
    for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
      if (c->cmsg_type != SCM_RIGHTS) continue;
      r.fds.resize((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
      std::memcpy(r.fds.data(), CMSG_DATA(c), r.fds.size() * sizeof(int));
    }
    kept_.insert(kept_.end(), r.fds.begin(), r.fds.end());
    std::memcpy(&r.head, r.bytes.data(), sizeof r.head);
    return r;
  }

 private:
  int fd_ = -1;
  bool connected_ = false;
  std::vector<int> kept_;
};

}  // namespace weft::host
