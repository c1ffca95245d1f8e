// SPDX-License-Identifier: Apache-2.0
//
// Addresses of connections: every host has its own TCP ports on one machine (nic_rules 10). Programs name and see
// fabric addresses; the kernel sees the loopback addresses that stand for them.
//
// Deviation: getsockname() of a socket that was bound to the wildcard names the host's address, and such a socket
// reaches nobody outside the fabric.
#include <errno.h>
#include <sys/socket.h>

#include "nic/preload/host_view.h"
#include "nic/preload/next.h"

using weft::preload::AddressView;
using weft::preload::Destination;
using weft::preload::SocketAddress;

namespace {

// `room`: what the program had space for; the kernel cuts the address there and still tells its full length.
class Reported {
 public:
  Reported(sockaddr* address, const socklen_t* length) : address_(address), length_(length) {
    if (address_ != nullptr && length_ != nullptr) room_ = *length_;
  }
  void translate() const {
    if (room_ == 0) return;
    const AddressView view = weft::preload::address_view();
    if (view.on()) weft::preload::translate_back(view, address_, *length_ < room_ ? *length_ : room_);
  }

 private:
  sockaddr* address_;
  const socklen_t* length_;
  socklen_t room_ = 0;
};

}  // namespace

WEFT_INTERPOSE int bind(int fd, const struct sockaddr* address, socklen_t length) {
  SocketAddress own;
  if (!weft::preload::bind_address(fd, address, length, own)) return WEFT_NEXT(bind)(fd, address, length);
  return WEFT_NEXT(bind)(fd, &own.any, length < sizeof own ? length : sizeof own);
}

WEFT_INTERPOSE int connect(int fd, const struct sockaddr* address, socklen_t length) {
  const Destination to(fd, address, length);
  return WEFT_NEXT(connect)(fd, to.address(), to.length());
}

WEFT_INTERPOSE int accept(int fd, struct sockaddr* address, socklen_t* length) {
  const Reported peer(address, length);
  const int accepted = WEFT_NEXT(accept)(fd, address, length);
  if (accepted >= 0) peer.translate();
  return accepted;
}

WEFT_INTERPOSE int accept4(int fd, struct sockaddr* address, socklen_t* length, int flags) {
  const Reported peer(address, length);
  const int accepted = WEFT_NEXT(accept4)(fd, address, length, flags);
  if (accepted >= 0) peer.translate();
  return accepted;
}

WEFT_INTERPOSE int getsockname(int fd, struct sockaddr* address, socklen_t* length) {
  const Reported own(address, length);
  const int result = WEFT_NEXT(getsockname)(fd, address, length);
  if (result == 0) own.translate();
  return result;
}

WEFT_INTERPOSE int getpeername(int fd, struct sockaddr* address, socklen_t* length) {
  const Reported peer(address, length);
  const int result = WEFT_NEXT(getpeername)(fd, address, length);
  if (result == 0) peer.translate();
  return result;
}
