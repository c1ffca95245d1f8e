// SPDX-License-Identifier: Apache-2.0
//
// Addresses of datagrams, and of what travels beside them (IP_PKTINFO). Messages without an address pass through; those
// of a connected socket never come here with one.
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include "nic/preload/host_view.h"
#include "nic/preload/next.h"

extern "C" ssize_t __recvfrom_chk(int fd, void* data, size_t bytes, size_t capacity, int flags, struct sockaddr* from,
                                  socklen_t* length);

namespace {

using weft::preload::AddressView;
using weft::preload::Destination;

constexpr size_t kMaxControl = 512;

void translate_ipv4(const AddressView& view, in_addr& address, bool outwards) {
  uint32_t ip = 0;
  const uint32_t given = ntohl(address.s_addr);
  if (outwards ? view.to_loopback(given, ip) : view.to_fabric(given, ip)) address.s_addr = htonl(ip);
}

void translate_mapped(const AddressView& view, in6_addr& address, bool outwards) {
  in_addr inner;
  if (!IN6_IS_ADDR_V4MAPPED(&address)) return;
  memcpy(&inner, address.s6_addr + 12, sizeof inner);
  translate_ipv4(view, inner, outwards);
  memcpy(address.s6_addr + 12, &inner, sizeof inner);
}

// The local address that a datagram came to or shall come from.
void translate_packet_info(const AddressView& view, msghdr& message, bool outwards) {
  for (cmsghdr* entry = CMSG_FIRSTHDR(&message); entry != nullptr; entry = CMSG_NXTHDR(&message, entry)) {
    if (entry->cmsg_level == IPPROTO_IP && entry->cmsg_type == IP_PKTINFO &&
        entry->cmsg_len >= CMSG_LEN(sizeof(in_pktinfo))) {
      in_pktinfo info;
      memcpy(&info, CMSG_DATA(entry), sizeof info);
      translate_ipv4(view, info.ipi_spec_dst, outwards);
      translate_ipv4(view, info.ipi_addr, outwards);
      memcpy(CMSG_DATA(entry), &info, sizeof info);
    } else if (entry->cmsg_level == IPPROTO_IPV6 && entry->cmsg_type == IPV6_PKTINFO &&
               entry->cmsg_len >= CMSG_LEN(sizeof(in6_pktinfo))) {
      in6_pktinfo info;
      memcpy(&info, CMSG_DATA(entry), sizeof info);
      translate_mapped(view, info.ipi6_addr, outwards);
      memcpy(CMSG_DATA(entry), &info, sizeof info);
    }
  }
}

bool has_packet_info(const msghdr& message) {
  if (message.msg_control == nullptr || message.msg_controllen > kMaxControl) return false;
  auto* walk = const_cast<msghdr*>(&message);  // the macro is not const-correct; nothing is written
  for (cmsghdr* entry = CMSG_FIRSTHDR(walk); entry != nullptr; entry = CMSG_NXTHDR(walk, entry)) {
    if (entry->cmsg_level == IPPROTO_IP && entry->cmsg_type == IP_PKTINFO) return true;
    if (entry->cmsg_level == IPPROTO_IPV6 && entry->cmsg_type == IPV6_PKTINFO) return true;
  }
  return false;
}

bool concerns_us(const msghdr& message) { return message.msg_name != nullptr || has_packet_info(message); }

ssize_t send_translated(int fd, const msghdr& message, int flags) {
  const Destination to(fd, static_cast<const sockaddr*>(message.msg_name), message.msg_namelen);
  msghdr sent = message;
  sent.msg_name = const_cast<sockaddr*>(to.address());
  sent.msg_namelen = to.length();
  alignas(cmsghdr) char control[kMaxControl];
  if (has_packet_info(message)) {
    memcpy(control, message.msg_control, message.msg_controllen);
    sent.msg_control = control;
    translate_packet_info(weft::preload::address_view(), sent, true);
  }
  return WEFT_NEXT(sendmsg)(fd, &sent, flags);
}

void translate_received(const AddressView& view, msghdr& message, socklen_t room) {
  const socklen_t length = message.msg_namelen < room ? message.msg_namelen : room;
  if (message.msg_name != nullptr && length != 0) {
    weft::preload::translate_back(view, static_cast<sockaddr*>(message.msg_name), length);
  }
  if (message.msg_control != nullptr) translate_packet_info(view, message, false);
}

void translate_source(struct sockaddr* from, const socklen_t* length, socklen_t room) {
  if (from == nullptr || room == 0) return;
  const AddressView view = weft::preload::address_view();
  // A connected stream reports no source and leaves the address as it was.
  if (view.on() && *length != 0) weft::preload::translate_back(view, from, *length < room ? *length : room);
}

}  // namespace

WEFT_INTERPOSE ssize_t sendto(int fd, const void* data, size_t bytes, int flags, const struct sockaddr* address,
                              socklen_t length) {
  const Destination to(fd, address, length);
  return WEFT_NEXT(sendto)(fd, data, bytes, flags, to.address(), to.length());
}

WEFT_INTERPOSE ssize_t sendmsg(int fd, const struct msghdr* message, int flags) {
  const bool ours = message != nullptr && concerns_us(*message) && weft::preload::address_view().on();
  return ours ? send_translated(fd, *message, flags) : WEFT_NEXT(sendmsg)(fd, message, flags);
}

WEFT_INTERPOSE int sendmmsg(int fd, struct mmsghdr* messages, unsigned count, int flags) {
  bool ours = false;
  if (messages != nullptr && weft::preload::address_view().on()) {
    for (unsigned i = 0; i < count && !ours; ++i) ours = concerns_us(messages[i].msg_hdr);
  }
  if (!ours) return WEFT_NEXT(sendmmsg)(fd, messages, count, flags);
  for (unsigned i = 0; i < count; ++i) {
    const ssize_t sent = send_translated(fd, messages[i].msg_hdr, flags);
    if (sent < 0) return i == 0 ? -1 : static_cast<int>(i);
    messages[i].msg_len = static_cast<unsigned>(sent);
  }
  return static_cast<int>(count);
}

WEFT_INTERPOSE ssize_t recvfrom(int fd, void* data, size_t bytes, int flags, struct sockaddr* from, socklen_t* length) {
  const socklen_t room = from != nullptr && length != nullptr ? *length : 0;
  const ssize_t got = WEFT_NEXT(recvfrom)(fd, data, bytes, flags, from, length);
  if (got >= 0) translate_source(from, length, room);
  return got;
}

// What _FORTIFY_SOURCE makes of it.
WEFT_INTERPOSE ssize_t __recvfrom_chk(int fd, void* data, size_t bytes, size_t capacity, int flags,
                                      struct sockaddr* from, socklen_t* length) {
  const socklen_t room = from != nullptr && length != nullptr ? *length : 0;
  const ssize_t got = WEFT_NEXT(__recvfrom_chk)(fd, data, bytes, capacity, flags, from, length);
  if (got >= 0) translate_source(from, length, room);
  return got;
}

WEFT_INTERPOSE ssize_t recvmsg(int fd, struct msghdr* message, int flags) {
  const AddressView view = weft::preload::address_view();
  const socklen_t room = view.on() && message != nullptr && message->msg_name != nullptr ? message->msg_namelen : 0;
  const ssize_t got = WEFT_NEXT(recvmsg)(fd, message, flags);
  if (got >= 0 && view.on() && message != nullptr) translate_received(view, *message, room);
  return got;
}

WEFT_INTERPOSE int recvmmsg(int fd, struct mmsghdr* messages, unsigned count, int flags, struct timespec* timeout) {
  const AddressView view = weft::preload::address_view();
  // Programs have the same room in every message; where not, the smallest is safe.
  socklen_t room = sizeof(sockaddr_storage);
  for (unsigned i = 0; view.on() && messages != nullptr && i < count; ++i) {
    const msghdr& message = messages[i].msg_hdr;
    if (message.msg_name != nullptr && message.msg_namelen < room) room = message.msg_namelen;
  }
  const int got = WEFT_NEXT(recvmmsg)(fd, messages, count, flags, timeout);
  for (int i = 0; view.on() && i < got; ++i) translate_received(view, messages[i].msg_hdr, room);
  return got;
}
