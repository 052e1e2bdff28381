// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "layers/linear_delta.h"
#include "models/bank_layout.h"

#include <cstddef>
#include <span>
#include <string>

namespace warprow {

// Reads a LoRA adapter as PEFT saves it (adapter_config.json and adapter_model.safetensors in dir) into a bank of this layout,
// on the host. Modules that it has no tensors for get rank 0. Of a module whose rows or columns ranks divide, the part of this
// rank is kept, as its site says. elsewhere: modules of other stages of a pipeline, whose tensors are left to them.
//
// Errors are one line that names the file and the tensor, module or key: what read_peft_config refuses; tensors of modules
// that the model does not have or that take no adapter (embeddings, the head, experts); shapes that do not fit the model or
// the configuration; a rank above max_rank; a missing half of a pair; values that are not finite. `to` is then undefined.
Result<void> read_peft_adapter(const std::string& dir,
                               std::span<const LinearSite> sites,
                               std::span<const std::string> elsewhere,
                               const BankLayout& layout,
                               int32_t max_rank,
                               std::byte* to);

}  // namespace warprow
