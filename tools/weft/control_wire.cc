// SPDX-License-Identifier: Apache-2.0
#include "tools/weft/control_wire.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <google/protobuf/message_lite.h>

#include <algorithm>

namespace weft::tools {
namespace {
constexpr size_t kLengthBytes = 4;
constexpr size_t kReadAhead = 64 * 1024;
}  // namespace

std::string frame_message(const google::protobuf::MessageLite& message) {
  const size_t size = message.ByteSizeLong();
  std::string bytes;
  if (size > kMaxControlMessage) return bytes;
  const Be32 length(static_cast<uint32_t>(size));
  bytes.assign(reinterpret_cast<const char*>(length.raw.data()), length.raw.size());
  if (!message.AppendToString(&bytes)) bytes.clear();
  return bytes;
}

/// Hands over a message that is here whole, or an impossible length. Through the loop: a buffer full of small messages
/// would otherwise become as many calls deep.
bool MessageReader::take(Handler& handler) {
  if (end_ - begin_ < kLengthBytes) return false;
  Be32 length;
  std::copy_n(buffer_.begin() + static_cast<std::ptrdiff_t>(begin_), kLengthBytes, length.raw.begin());
  const size_t whole = kLengthBytes + length.get();
  if (length.get() <= kMaxControlMessage && end_ - begin_ < whole) {
    if (buffer_.size() < whole) buffer_.resize(whole);
    return false;
  }
  boost::asio::post(socket_.get_executor(), [this, length, whole, call = std::move(handler)] {
    if (length.get() > kMaxControlMessage) return call("a message of " + std::to_string(length.get()) + " bytes is too long", {});
    const Bytes body(buffer_.data() + begin_ + kLengthBytes, length.get());
    begin_ += whole;
    call({}, body);
  });
  return true;
}

void MessageReader::read(Handler handler) {
  if (buffer_.empty()) buffer_.resize(kReadAhead);
  if (take(handler)) return;
  if (begin_ > 0) {
    std::copy(buffer_.begin() + static_cast<std::ptrdiff_t>(begin_), buffer_.begin() + static_cast<std::ptrdiff_t>(end_), buffer_.begin());
    end_ -= begin_;
    begin_ = 0;
  }
  socket_.async_read_some(boost::asio::buffer(buffer_.data() + end_, buffer_.size() - end_),
                          [this, handler = std::move(handler)](const boost::system::error_code& error, size_t got) mutable {
                            if (error) return handler(kClosed, {});
                            end_ += got;
                            read(std::move(handler));
                          });
}

}  // namespace weft::tools
