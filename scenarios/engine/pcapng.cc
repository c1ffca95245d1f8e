// SPDX-License-Identifier: Apache-2.0
#include "scenarios/engine/pcapng.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace weft {
namespace {

// Block types and options of the draft, sections 4 and 3.5.
constexpr uint32_t kSectionHeader = 0x0A0D0D0A;
constexpr uint32_t kInterfaceDescription = 1;
constexpr uint32_t kEnhancedPacket = 6;
constexpr uint32_t kByteOrderMagic = 0x1A2B3C4D;
constexpr uint16_t kLinkTypeEthernet = 1;
constexpr uint16_t kOptionEnd = 0;
constexpr uint16_t kOptionComment = 1;
constexpr uint16_t kOptionApplication = 4;  // of a section
constexpr uint16_t kOptionName = 2;         // of an interface
constexpr uint16_t kOptionResolution = 9;   // of an interface: 10^-value
constexpr uint16_t kOptionFlags = 2;        // of a packet: low two bits the direction
constexpr size_t kWriteAt = 1 << 18;
constexpr size_t kMaxOptionBytes = 0xFFFF;

}  // namespace

PcapngWriter::PcapngWriter(int fd, std::string_view application) : fd_(fd) {
  const size_t block = begin_block(kSectionHeader);
  put32(kByteOrderMagic);
  put16(1);           // major
  put16(0);           // minor
  put32(0xFFFFFFFF);  // section length: not known
  put32(0xFFFFFFFF);
  put_option(kOptionApplication, application);
  end_options();
  end_block(block);
}

PcapngWriter::~PcapngWriter() { flush(); }

uint32_t PcapngWriter::add_interface(std::string_view name) {
  const size_t block = begin_block(kInterfaceDescription);
  put16(kLinkTypeEthernet);
  put16(0);
  put32(0);  // snap length: no limit
  put_option(kOptionName, name);
  const char resolution = 9;
  put_option(kOptionResolution, {&resolution, 1});
  end_options();
  end_block(block);
  return interfaces_++;
}

int PcapngWriter::add_frame(uint32_t interface, uint64_t unix_ns, Bytes frame, PcapngDirection direction,
                            std::string_view comment) {
  if (error_ != 0) return error_;
  if (interface >= interfaces_) return EINVAL;
  const size_t block = begin_block(kEnhancedPacket);
  put32(interface);
  put32(static_cast<uint32_t>(unix_ns >> 32));
  put32(static_cast<uint32_t>(unix_ns));
  put32(static_cast<uint32_t>(frame.size()));
  put32(static_cast<uint32_t>(frame.size()));
  put_bytes(frame.data(), frame.size());
  if (direction != PcapngDirection::kUnknown || !comment.empty()) {
    if (direction != PcapngDirection::kUnknown) {
      const uint32_t flags = static_cast<uint32_t>(direction);
      char raw[sizeof(flags)];
      std::memcpy(raw, &flags, sizeof(flags));
      put_option(kOptionFlags, {raw, sizeof(raw)});
    }
    if (!comment.empty()) put_option(kOptionComment, comment);
    end_options();
  }
  end_block(block);
  return buffer_.size() >= kWriteAt ? flush() : 0;
}

int PcapngWriter::flush() {
  size_t done = 0;
  while (error_ == 0 && done < buffer_.size()) {
    const ssize_t n = write(fd_, buffer_.data() + done, buffer_.size() - done);
    if (n >= 0) {
      done += static_cast<size_t>(n);
    } else if (errno != EINTR) {
      error_ = errno;
    }
  }
  buffer_.clear();
  return error_;
}

void PcapngWriter::put16(uint32_t value) {
  const uint16_t narrow = static_cast<uint16_t>(value);
  const uint8_t* raw = reinterpret_cast<const uint8_t*>(&narrow);
  buffer_.insert(buffer_.end(), raw, raw + sizeof(narrow));
}

void PcapngWriter::put32(uint32_t value) {
  const uint8_t* raw = reinterpret_cast<const uint8_t*>(&value);
  buffer_.insert(buffer_.end(), raw, raw + sizeof(value));
}

void PcapngWriter::put_bytes(const void* data, size_t bytes) {
  const uint8_t* raw = static_cast<const uint8_t*>(data);
  buffer_.insert(buffer_.end(), raw, raw + bytes);
  buffer_.resize(buffer_.size() + (0 - bytes) % 4);
}

void PcapngWriter::put_option(uint16_t code, std::string_view value) {
  value = value.substr(0, kMaxOptionBytes);
  put16(code);
  put16(static_cast<uint32_t>(value.size()));
  put_bytes(value.data(), value.size());
}

void PcapngWriter::end_options() { put32(kOptionEnd); }

size_t PcapngWriter::begin_block(uint32_t type) {
  const size_t start = buffer_.size();
  put32(type);
  put32(0);  // total length, known at the end
  return start;
}

void PcapngWriter::end_block(size_t start) {
  const uint32_t total = static_cast<uint32_t>(buffer_.size() - start + 4);
  std::memcpy(buffer_.data() + start + 4, &total, sizeof(total));
  put32(total);
}

}  // namespace weft
