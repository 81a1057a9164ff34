// The number formats of KV rows and index keys; see ops/kv_rows.h.
#pragma once

#include <cstdint>

namespace onecard::ops {

enum class KvFormat : uint8_t { kF32, kFp8Block32, kFp4Block32, kFp4Block16 };

}  // namespace onecard::ops
