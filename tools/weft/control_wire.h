// SPDX-License-Identifier: Apache-2.0
//
// Framing of the control API: four bytes of length, big-endian, then that many bytes of protobuf, at most 1 MiB.
//
//   std::string bytes = frame_message(reply);
//   MessageReader reader(socket);
//   reader.read([](const std::string& error, Bytes body) { … });   error is empty, "closed" or one line
//
// One read at a time; the body is valid inside the call. Reads ahead in pieces of 64 KiB, because a capture is many small
// messages; grows beyond that only for a message whose length was checked.
#pragma once

#include <boost/asio/local/stream_protocol.hpp>

#include <functional>
#include <string>
#include <vector>

#include "protocols/base/bytes.h"

namespace google::protobuf {
class MessageLite;
}

namespace weft::tools {

inline constexpr uint32_t kMaxControlMessage = 1u << 20;
inline constexpr const char* kClosed = "closed";

using ControlSocket = boost::asio::local::stream_protocol::socket;

/// Empty when the message is longer than kMaxControlMessage.
std::string frame_message(const google::protobuf::MessageLite& message);

class MessageReader {
 public:
  using Handler = std::function<void(const std::string& error, Bytes body)>;

  explicit MessageReader(ControlSocket& socket) : socket_(socket) {}
  void read(Handler handler);

 private:
  bool take(Handler& handler);

  ControlSocket& socket_;
  std::vector<uint8_t> buffer_;  ///< bytes [begin_, end_) are unread
  size_t begin_ = 0;
  size_t end_ = 0;
};

}  // namespace weft::tools
