// SPDX-License-Identifier: Apache-2.0
// Which of the build's code the driver loads, and engines that run without the sm_90a code. All of test_cuda runs
// without it under WARPROW_TEST_COMPUTE_CAPABILITY=80. With CUDA_FORCE_PTX_JIT=1 the driver compiles the portable
// kernels' PTX (cuBLASLt and FlashInfer's decode kernels have none).
#include "device/cuda/cuda_stream.h"
#include "device/cuda/loaded_code.h"
#include "tests/cuda/cuda_test.h"
#include "tests/support/model_rig.h"
#include "tests/support/step_work.h"
#include "tests/support/temp_dir.h"

#include <cstdlib>
#include <limits>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

namespace warprow {
namespace {

int32_t tested_capability() {
  const char* setting = std::getenv("WARPROW_TEST_COMPUTE_CAPABILITY");
  return setting == nullptr ? std::numeric_limits<int32_t>::max() : std::atoi(setting);
}

bool forces_ptx() {
  const char* setting = std::getenv("CUDA_FORCE_PTX_JIT");
  return setting != nullptr && std::string_view(setting) == "1";
}

// Runs before the first test creates a device.
class LimitedCapability final : public ::testing::Environment {
 public:
  void SetUp() override { cuda::limit_compute_capability(tested_capability()); }
};
[[maybe_unused]] const auto* const kLimited =
    ::testing::AddGlobalTestEnvironment(new LimitedCapability);  // NOLINT: googletest owns it

class LoadedCode : public testing::CudaTest {};

TEST_F(LoadedCode, TheDriverTakesBinariesOrCompilesPtx) {
  const int32_t capability = gpu().facts().compute_capability;
  EXPECT_LE(capability, tested_capability());
  EXPECT_GE(cuda::portable_code(), 80);
  if (forces_ptx()) {
    EXPECT_EQ(cuda::portable_code(), 80);
    EXPECT_FALSE(cuda::loads_sm90_code());
    EXPECT_LE(capability, 80) << "kernels for sm_90a would be chosen";
  }
  // Kernels without griddepcontrol.wait must not be launched while the previous kernel runs.
  EXPECT_EQ(cuda::as_cuda(stream()).kernels_wait(), cuda::portable_code() >= 90);
}

// Chunked prefill and decode from graphs, on a GPU that reports compute capability 8.0.
TEST_F(LoadedCode, AnEngineRunsOnPortableKernels) {
  constexpr const char* kModel = R"({
    "architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 2, "hidden_size": 256,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 512,
    "vocab_size": 2000, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 1000000,
    "tie_word_embeddings": true})";
  const test::TempDir dir;
  dir.write("config.json", kModel);
  test::RigOptions options;
  options.config.model = dir.path().string();
  options.config.load_format = "dummy";
  options.config.device = "cuda";
  options.config.max_model_len = 512;
  options.config.max_num_seqs = 8;
  options.config.max_num_batched_tokens = 8;  // keeps every GEMM too small for cuBLASLt
  options.config.kv_cache_memory_bytes = int64_t{16} << 20;
  options.config.enable_prefix_caching = false;
  cuda::limit_compute_capability(80);
  {
    test::ModelRig rig(options);
    for (uint64_t id = 1; id <= 6; ++id) {
      rig.add(test::numbered_request(id, 20, 40, 2000));
    }
    for (const auto& [id, result] : rig.run()) {
      EXPECT_EQ(result.tokens.size(), 40U) << id;
    }
    EXPECT_GT(rig.executor().stats().graphs_full, 0);
  }
  cuda::limit_compute_capability(tested_capability());
}

}  // namespace
}  // namespace warprow
