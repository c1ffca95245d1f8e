// SPDX-License-Identifier: Apache-2.0
#include "tools/weft/control_wire.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/read.hpp>
#include <google/protobuf/message_lite.h>

namespace weft::tools {

std::string frame_message(const google::protobuf::MessageLite& message) {
  const size_t size = message.ByteSizeLong();
  std::string bytes;
  if (size > kMaxControlMessage) return bytes;
  const Be32 length(static_cast<uint32_t>(size));
  bytes.assign(reinterpret_cast<const char*>(length.raw.data()), length.raw.size());
  if (!message.AppendToString(&bytes)) bytes.clear();
  return bytes;
}

void MessageReader::read(Handler handler) {
  boost::asio::async_read(socket_, boost::asio::buffer(head_),
                          [this, handler = std::move(handler)](const boost::system::error_code& error, size_t) mutable {
                            if (error) return handler(kClosed, {});
                            Be32 length;
                            length.raw = head_;
                            if (length.get() > kMaxControlMessage) {
                              return handler("a message of " + std::to_string(length.get()) + " bytes is too long", {});
                            }
                            read_body(length.get(), std::move(handler));
                          });
}

void MessageReader::read_body(uint32_t size, Handler handler) {
  body_.resize(size);
  boost::asio::async_read(socket_, boost::asio::buffer(body_),
                          [this, handler = std::move(handler)](const boost::system::error_code& error, size_t) {
                            if (error) return handler(kClosed, {});
                            handler({}, Bytes(body_));
                          });
}

}  // namespace weft::tools
