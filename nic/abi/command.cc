// SPDX-License-Identifier: Apache-2.0
#include "nic/abi/command.h"

#include <netinet/in.h>
#include <rdma/ib_user_verbs.h>

#include <cerrno>
#include <cstring>

#include "nic/engine/copy.h"

namespace weft::abi {
namespace {

struct Shape {
  uint16_t request;
  uint16_t response;
  bool known;
};

template <typename Request>
constexpr Shape shape() {
  return {sizeof(Request), 0, true};
}
template <typename Request, typename Response>
constexpr Shape shape() {
  return {sizeof(Request), sizeof(Response), true};
}

/// Core sizes of the commands that exist here; the kernel's UAPI_DEF_WRITE tables.
constexpr Shape plain_shape(uint32_t number) {
  switch (number) {
    case IB_USER_VERBS_CMD_GET_CONTEXT:
      return shape<ib_uverbs_get_context, ib_uverbs_get_context_resp>();
    case IB_USER_VERBS_CMD_QUERY_DEVICE:
      return shape<ib_uverbs_query_device, ib_uverbs_query_device_resp>();
    case IB_USER_VERBS_CMD_QUERY_PORT:
      return shape<ib_uverbs_query_port, ib_uverbs_query_port_resp>();
    case IB_USER_VERBS_CMD_ALLOC_PD:
      return shape<ib_uverbs_alloc_pd, ib_uverbs_alloc_pd_resp>();
    case IB_USER_VERBS_CMD_DEALLOC_PD:
      return shape<ib_uverbs_dealloc_pd>();
    case IB_USER_VERBS_CMD_CREATE_AH:
      return shape<ib_uverbs_create_ah, ib_uverbs_create_ah_resp>();
    case IB_USER_VERBS_CMD_DESTROY_AH:
      return shape<ib_uverbs_destroy_ah>();
    case IB_USER_VERBS_CMD_REG_MR:
      return shape<ib_uverbs_reg_mr, ib_uverbs_reg_mr_resp>();
    case IB_USER_VERBS_CMD_DEREG_MR:
      return shape<ib_uverbs_dereg_mr>();
    case IB_USER_VERBS_CMD_REREG_MR:
      return shape<ib_uverbs_rereg_mr, ib_uverbs_rereg_mr_resp>();
    case IB_USER_VERBS_CMD_ALLOC_MW:
      return shape<ib_uverbs_alloc_mw, ib_uverbs_alloc_mw_resp>();
    case IB_USER_VERBS_CMD_DEALLOC_MW:
      return shape<ib_uverbs_dealloc_mw>();
    case IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL:
      return shape<ib_uverbs_create_comp_channel, ib_uverbs_create_comp_channel_resp>();
    case IB_USER_VERBS_CMD_CREATE_CQ:
      return shape<ib_uverbs_create_cq, ib_uverbs_create_cq_resp>();
    case IB_USER_VERBS_CMD_RESIZE_CQ:
      return shape<ib_uverbs_resize_cq, ib_uverbs_resize_cq_resp>();
    case IB_USER_VERBS_CMD_DESTROY_CQ:
      return shape<ib_uverbs_destroy_cq, ib_uverbs_destroy_cq_resp>();
    case IB_USER_VERBS_CMD_REQ_NOTIFY_CQ:
      return shape<ib_uverbs_req_notify_cq>();
    case IB_USER_VERBS_CMD_CREATE_QP:
      return shape<ib_uverbs_create_qp, ib_uverbs_create_qp_resp>();
    case IB_USER_VERBS_CMD_QUERY_QP:
      return shape<ib_uverbs_query_qp, ib_uverbs_query_qp_resp>();
    case IB_USER_VERBS_CMD_MODIFY_QP:
      return shape<ib_uverbs_modify_qp>();
    case IB_USER_VERBS_CMD_DESTROY_QP:
      return shape<ib_uverbs_destroy_qp, ib_uverbs_destroy_qp_resp>();
    case IB_USER_VERBS_CMD_CREATE_SRQ:
      return shape<ib_uverbs_create_srq, ib_uverbs_create_srq_resp>();
    case IB_USER_VERBS_CMD_CREATE_XSRQ:
      return shape<ib_uverbs_create_xsrq, ib_uverbs_create_srq_resp>();
    case IB_USER_VERBS_CMD_MODIFY_SRQ:
      return shape<ib_uverbs_modify_srq>();
    case IB_USER_VERBS_CMD_QUERY_SRQ:
      return shape<ib_uverbs_query_srq, ib_uverbs_query_srq_resp>();
    case IB_USER_VERBS_CMD_DESTROY_SRQ:
      return shape<ib_uverbs_destroy_srq, ib_uverbs_destroy_srq_resp>();
    case IB_USER_VERBS_CMD_ATTACH_MCAST:
      return shape<ib_uverbs_attach_mcast>();
    case IB_USER_VERBS_CMD_DETACH_MCAST:
      return shape<ib_uverbs_detach_mcast>();
    case IB_USER_VERBS_CMD_POST_SEND:
      return shape<ib_uverbs_post_send, ib_uverbs_post_send_resp>();
    default:
      return {};
  }
}

constexpr Shape extended_shape(uint32_t number) {
  switch (number) {
    case IB_USER_VERBS_EX_CMD_QUERY_DEVICE:
      // Everything behind response_length is optional.
      return {sizeof(ib_uverbs_ex_query_device), offsetof(ib_uverbs_ex_query_device_resp, odp_caps), true};
    case IB_USER_VERBS_EX_CMD_CREATE_QP:
      return shape<ib_uverbs_ex_create_qp, ib_uverbs_ex_create_qp_resp>();
    default:
      return {};
  }
}

constexpr uint32_t kFlagBits = ~static_cast<uint32_t>(IB_USER_VERBS_CMD_COMMAND_MASK);
constexpr size_t kExtendedHeaders = sizeof(ib_uverbs_cmd_hdr) + sizeof(ib_uverbs_ex_cmd_hdr);

}  // namespace

long Command::parse(const void* data, size_t bytes) {
  ib_uverbs_cmd_hdr head;
  if (bytes < sizeof head) return -EINVAL;
  if (!nic::copy_from_user(&head, data, sizeof head)) return -EFAULT;
  if ((head.command & kFlagBits & ~IB_USER_VERBS_CMD_FLAG_EXTENDED) != 0) return -EINVAL;
  number_ = head.command & IB_USER_VERBS_CMD_COMMAND_MASK;
  extended_ = (head.command & IB_USER_VERBS_CMD_FLAG_EXTENDED) != 0;
  const Shape known = extended_ ? extended_shape(number_) : plain_shape(number_);
  if (!known.known) return -EOPNOTSUPP;

  const auto* from = static_cast<const uint8_t*>(data);
  if (!extended_) {
    if (head.in_words * 4u != bytes) return -EINVAL;
    body_bytes_ = bytes - sizeof head;
    if (body_bytes_ < known.request) return -ENOSPC;
    response_bytes_ = head.out_words * 4u;
    if (response_bytes_ < known.response) return -ENOSPC;
    core_room_ = response_bytes_;
    if (body_bytes_ > kMaxBytes) body_bytes_ = kMaxBytes;
    if (!nic::copy_from_user(body_, from + sizeof head, body_bytes_)) return -EFAULT;
    if (known.response != 0) memcpy(&response_, body_, sizeof response_);
    return 0;
  }

  ib_uverbs_ex_cmd_hdr more;
  if (bytes < kExtendedHeaders) return -EINVAL;
  if (!nic::copy_from_user(&more, from + sizeof head, sizeof more)) return -EFAULT;
  body_bytes_ = bytes - kExtendedHeaders;
  if ((static_cast<size_t>(head.in_words) + more.provider_in_words) * 8u != body_bytes_) return -EINVAL;
  if (head.in_words * 8u < known.request) return -ENOSPC;
  if (more.cmd_hdr_reserved != 0) return -EINVAL;
  const bool wants_response = head.out_words != 0 || more.provider_out_words != 0;
  if (wants_response != (more.response != 0)) return -EINVAL;
  if (more.response != 0 && head.out_words * 8u < known.response) return -ENOSPC;
  if (body_bytes_ > kMaxBytes) return -EOPNOTSUPP;
  if (!nic::copy_from_user(body_, from + kExtendedHeaders, body_bytes_)) return -EFAULT;
  // A longer request than ours comes from a newer library; what we do not know it must not use.
  for (size_t i = known.request; i < head.in_words * 8u; ++i) {
    if (body_[i] != 0) return -EOPNOTSUPP;
  }
  response_ = more.response;
  core_room_ = head.out_words * 8u;
  response_bytes_ = core_room_ + more.provider_out_words * 8u;
  return 0;
}

long Command::respond(const void* core, size_t core_bytes, const void* driver, size_t driver_bytes) const {
  auto* to = reinterpret_cast<uint8_t*>(response_);
  const size_t core_part = core_bytes < core_room_ ? core_bytes : core_room_;
  if (driver_bytes != 0 && response_bytes_ < core_part + driver_bytes) return -EINVAL;
  if (core_part != 0 && !nic::copy_to_user(to, core, core_part)) return -EFAULT;
  if (driver_bytes != 0 && !nic::copy_to_user(to + core_part, driver, driver_bytes)) return -EFAULT;
  return 0;
}

}  // namespace weft::abi
