// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/cublaslt/cublaslt.h"

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "device/cuda/cuda_check.h"
#include "kernels/linear/cublaslt/library.h"
#include "kernels/linear/cublaslt/plans.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <dlfcn.h>
#include <mutex>
#include <optional>
#include <random>
#include <vector>

#include <fmt/format.h>

namespace warprow::cuda {
namespace {

void check_lt(cublasStatus_t status, const char* what) {
  WR_CHECK(status == CUBLAS_STATUS_SUCCESS, "{}: cuBLAS status {}", what, static_cast<int>(status));
}

template <typename F>
void find_symbol(void* library, const char* name, F*& function) {
  function = reinterpret_cast<F*>(dlsym(library, name));
  if (function == nullptr) {
    throw StartupError(ErrorCode::kUnsupported, fmt::format("libcublasLt lacks {}", name));
  }
}

// The upper end of m's range; a range of m shares a plan. Ranges are small where the best kernels change,
// then powers of two.
int32_t range_of(const LtProduct& product, int32_t m) {
  if (product.batch_invariant) {
    return kInvariantRange;
  }
  for (const int32_t limit : {8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024}) {
    if (m <= limit) {
      return limit;
    }
  }
  int32_t limit = 2048;
  while (limit < m) {
    limit *= 2;
  }
  return limit;
}

constexpr int32_t kInvariantTunedAt = 256;  // m at which the algorithm for every m is chosen
constexpr int32_t kMostTunedAt = 1024;      // larger m run alike, and take long to time
constexpr int kMaxCandidates = 8;
constexpr size_t kMaxDevices = 64;

}  // namespace

// The library's functions in use, and the objects created once.
struct LtApi {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtGetVersion) version = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&cublasLtMatmulDescInit_internal) init_desc = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) set_desc = nullptr;
  decltype(&cublasLtMatrixLayoutInit_internal) init_layout = nullptr;
  decltype(&cublasLtMatmulPreferenceInit_internal) init_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference = nullptr;
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDescOpaque_t desc = {};  // the same for every product

  void open(void* library) {
    find_symbol(library, "cublasLtCreate", create);
    find_symbol(library, "cublasLtGetVersion", version);
    find_symbol(library, "cublasLtMatmul", matmul);
    find_symbol(library, "cublasLtMatmulAlgoGetHeuristic", heuristic);
    find_symbol(library, "cublasLtMatmulDescInit_internal", init_desc);
    find_symbol(library, "cublasLtMatmulDescSetAttribute", set_desc);
    find_symbol(library, "cublasLtMatrixLayoutInit_internal", init_layout);
    find_symbol(library, "cublasLtMatmulPreferenceInit_internal", init_preference);
    find_symbol(library, "cublasLtMatmulPreferenceSetAttribute", set_preference);
    if (const cublasStatus_t status = create(&handle); status != CUBLAS_STATUS_SUCCESS) {
      throw StartupError(ErrorCode::kUnsupported,
                         fmt::format("cublasLtCreate: status {}", static_cast<int>(status)));
    }
    check_lt(init_desc(&desc, sizeof(desc), CUBLAS_COMPUTE_32F, CUDA_R_32F), "descriptor");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    check_lt(set_desc(&desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)),
             "transposition");
  }
};

namespace {

// Column-major, as in cuBLAS: D [n, m] = op(A = w [k, n])^T * B [k, m].
struct Layouts {
  cublasLtMatrixLayoutOpaque_t a = {};
  cublasLtMatrixLayoutOpaque_t b = {};
  cublasLtMatrixLayoutOpaque_t d = {};
};

Layouts make_layouts(
    const LtApi& api, const LtProduct& product, int32_t m, int64_t x_stride, int64_t y_stride) {
  Layouts out;
  const cudaDataType_t y_type = product.y_f32 ? CUDA_R_32F : CUDA_R_16BF;
  check_lt(api.init_layout(&out.a, sizeof(out.a), CUDA_R_16BF, product.k, product.n, product.k),
           "layout of w");
  check_lt(api.init_layout(&out.b, sizeof(out.b), CUDA_R_16BF, product.k, m, x_stride),
           "layout of x");
  check_lt(api.init_layout(&out.d, sizeof(out.d), y_type, product.n, m, y_stride), "layout of y");
  return out;
}

cublasStatus_t matmul(const LtApi& api,
                      cudaStream_t stream,
                      const LtProduct& product,
                      const LtOperands& at,
                      const cublasLtMatmulAlgo_t& algo) {
  Layouts layouts = make_layouts(api, product, at.m, at.x_stride, at.y_stride);
  cublasLtMatmulDescOpaque_t desc = api.desc;
  const float one = 1.0F;
  const float beta = product.accumulate ? 1.0F : 0.0F;
  return api.matmul(api.handle,
                    &desc,
                    &one,
                    at.w,
                    &layouts.a,
                    at.x,
                    &layouts.b,
                    &beta,
                    at.y,
                    &layouts.d,
                    at.y,
                    &layouts.d,
                    &algo,
                    at.workspace,
                    kLtWorkspaceBytes,
                    stream);
}

std::vector<cublasLtMatmulAlgo_t> candidates(const LtApi& api,
                                             const LtProduct& product,
                                             int32_t m) {
  cublasLtMatmulPreferenceOpaque_t preference = {};
  check_lt(api.init_preference(&preference, sizeof(preference)), "preference");
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t name, auto value) {
    check_lt(api.set_preference(&preference, name, &value, sizeof(value)), "preference");
  };
  const uint64_t workspace = kLtWorkspaceBytes;
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, uint32_t{16});
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, uint32_t{16});
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, uint32_t{16});
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, uint32_t{16});
  if (product.batch_invariant) {
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE});
  }
  Layouts layouts = make_layouts(api, product, m, product.k, product.n);
  cublasLtMatmulDescOpaque_t desc = api.desc;
  cublasLtMatmulHeuristicResult_t found[kMaxCandidates] = {};
  int num_found = 0;
  check_lt(api.heuristic(api.handle,
                         &desc,
                         &layouts.a,
                         &layouts.b,
                         &layouts.d,
                         &layouts.d,
                         &preference,
                         kMaxCandidates,
                         found,
                         &num_found),
           "heuristic");
  std::vector<cublasLtMatmulAlgo_t> out;
  for (int i = 0; i < num_found; ++i) {
    if (found[i].state == CUBLAS_STATUS_SUCCESS) {
      out.push_back(found[i].algo);
    }
  }
  WR_CHECK(!out.empty(), "no cuBLASLt algorithm for {} x {} x {}", m, product.n, product.k);
  return out;
}

// Device memory for timing candidates: so many copies of w that they do not fit in L2.
class TuningGround {
 public:
  TuningGround(const LtProduct& product, int32_t m) : product_(product), m_(m) {
    w_bytes_ = size_t{2} * product.n * product.k;
    copies_ = static_cast<int>(std::clamp<size_t>((size_t{192} << 20) / w_bytes_, 1, 64));
    w_ = allocate(w_bytes_ * copies_);
    x_ = allocate(size_t{2} * m * product.k);
    y_ = allocate(size_t{4} * m * product.n);
    workspace_ = allocate(kLtWorkspaceBytes);
    WR_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    WR_CUDA(cudaEventCreate(&begin_));
    WR_CUDA(cudaEventCreate(&end_));
    WR_CUDA(cudaDeviceSynchronize());
  }
  ~TuningGround() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
    cudaStreamDestroy(stream_);
    for (std::byte* block : blocks_) {
      cudaFree(block);
    }
  }
  TuningGround(const TuningGround&) = delete;
  TuningGround& operator=(const TuningGround&) = delete;

  // Whether all allocations succeeded.
  [[nodiscard]] bool ready() const { return std::ranges::find(blocks_, nullptr) == blocks_.end(); }

  // Microseconds of one product, the minimum of a few tries; negative if the algorithm does not run.
  float time_us(const LtApi& api, const cublasLtMatmulAlgo_t& algo) {
    constexpr int kTries = 4;  // the first warms up
    float best = -1.0F;
    for (int i = 0; i < kTries; ++i) {
      const float us = try_us(api, algo);
      if (us < 0.0F) {
        return us;
      }
      best = i == 0 || us < best ? us : best;
    }
    return best;
  }

 private:
  float try_us(const LtApi& api, const cublasLtMatmulAlgo_t& algo) {
    constexpr int kRuns = 6;
    WR_CUDA(cudaEventRecord(begin_, stream_));
    for (int run = 0; run < kRuns; ++run) {
      LtOperands at;
      at.m = m_;
      at.x = x_;
      at.x_stride = product_.k;
      at.w = w_ + w_bytes_ * (next_++ % copies_);
      at.y = y_;
      at.y_stride = product_.n;
      at.workspace = workspace_;
      if (matmul(api, stream_, product_, at, algo) != CUBLAS_STATUS_SUCCESS) {
        return -1.0F;
      }
    }
    WR_CUDA(cudaEventRecord(end_, stream_));
    WR_CUDA(cudaEventSynchronize(end_));
    float ms = 0.0F;
    WR_CUDA(cudaEventElapsedTime(&ms, begin_, end_));
    return ms * 1e3F / kRuns;
  }

  // Fills with values of either sign about 0.01, as bf16 and as float32. They must differ: equal values draw
  // so little power that the GPU clocks higher than with a model's values.
  static void fill(std::byte* block, size_t bytes) {
    static const std::vector<uint16_t> numbers = [] {
      std::vector<uint16_t> drawn(size_t{1} << 20);
      std::mt19937 random(1);
      for (uint16_t& bits : drawn) {
        bits = static_cast<uint16_t>((random() & 0x807FU) | 0x3C00U);
      }
      return drawn;
    }();
    size_t done = std::min(bytes, numbers.size() * sizeof(uint16_t));
    WR_CUDA(cudaMemcpy(block, numbers.data(), done, cudaMemcpyHostToDevice));
    while (done < bytes) {
      const size_t more = std::min(done, bytes - done);
      WR_CUDA(cudaMemcpy(block + done, block, more, cudaMemcpyDeviceToDevice));
      done += more;
    }
  }

  std::byte* allocate(size_t bytes) {
    void* block = nullptr;
    if (cudaMalloc(&block, bytes) == cudaSuccess) {
      fill(static_cast<std::byte*>(block), bytes);
    } else {
      cudaGetLastError();
    }
    blocks_.push_back(static_cast<std::byte*>(block));
    return blocks_.back();
  }

  LtProduct product_;
  int32_t m_;
  size_t w_bytes_ = 0;
  int copies_ = 1;
  int next_ = 0;
  std::byte* w_ = nullptr;
  std::byte* x_ = nullptr;
  std::byte* y_ = nullptr;
  std::byte* workspace_ = nullptr;
  std::vector<std::byte*> blocks_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

// The fastest candidate at m, or nothing if there is too little memory to time them.
std::optional<LtPlan> measure(const LtApi& api, const LtPlanKey& key, int32_t m) {
  TuningGround ground(key.product, m);
  if (!ground.ready()) {
    return std::nullopt;
  }
  LtPlan best = {key, {}};
  float best_us = -1.0F;
  for (const cublasLtMatmulAlgo_t& algo : candidates(api, key.product, m)) {
    const float us = ground.time_us(api, algo);
    // Between algorithms of about equal speed, the library's order decides.
    if (us > 0.0F && (best_us < 0.0F || us < 0.98F * best_us)) {
      best_us = us;
      best.algo = algo;
    }
  }
  WR_CHECK(best_us > 0.0F, "no algorithm ran: {} x {} x {}", m, key.product.n, key.product.k);
  return best;
}

}  // namespace

struct LtPlans {
  std::mutex mutex;
  LtPlanTable chosen;    // the plans in use
  LtPlanTable measured;  // the plans of the file and of new measurements
  std::string file;

  // Precondition: the lock is held. Returns the plan of m's range; makes it if it is missing.
  const LtPlan& find_or_make(const LtApi& api, const LtProduct& product, int32_t m) {
    const LtPlanKey key = {product, range_of(product, m)};
    if (const LtPlan* plan = chosen.find(key); plan != nullptr) {
      return *plan;
    }
    if (const LtPlan* plan = measured.find(key); plan != nullptr) {
      return chosen.insert(*plan);
    }
    const int32_t at = product.batch_invariant ? kInvariantTunedAt : key.range;
    return chosen.insert({key, candidates(api, product, at).front()});
  }
};

CublasLt& CublasLt::of(const DeviceFacts& device) {
  static std::array<std::atomic<CublasLt*>, kMaxDevices> made{};  // never deleted
  static std::mutex making;
  std::atomic<CublasLt*>& mine = made.at(static_cast<size_t>(device.ordinal));
  if (CublasLt* found = mine.load(std::memory_order_acquire); found != nullptr) {
    return *found;
  }
  const std::lock_guard lock(making);
  if (mine.load(std::memory_order_relaxed) == nullptr) {
    mine.store(new CublasLt(device), std::memory_order_release);  // NOLINT: never deleted
  }
  return *mine.load(std::memory_order_relaxed);
}

CublasLt::CublasLt(const DeviceFacts& device)
    : api_(std::make_unique<LtApi>()), plans_(std::make_unique<LtPlans>()) {
  std::string path;
  api_->open(open_cublaslt(path));
  const size_t number = api_->version();
  version_ = fmt::format("{}.{}.{} ({})", number / 10000, number / 100 % 100, number % 100, path);
  plans_->file = lt_plan_file(device.name);
  plans_->measured = LtPlanTable::read(plans_->file, number);
}

CublasLt::~CublasLt() = default;  // the handle is never destroyed

void CublasLt::prepare(const LtProduct& product, int32_t min_m, int32_t max_m) {
  const std::lock_guard lock(plans_->mutex);
  for (int32_t m = min_m; m <= max_m; m = range_of(product, m) + 1) {
    plans_->find_or_make(*api_, product, m);
    if (product.batch_invariant) {
      return;
    }
  }
}

void CublasLt::tune(const LtProduct& product, int32_t min_m, int32_t max_m) {
  const std::lock_guard lock(plans_->mutex);
  bool found = false;
  for (int32_t m = min_m; m <= std::min(max_m, kMostTunedAt); m = range_of(product, m) + 1) {
    const LtPlanKey key = {product, range_of(product, m)};
    const int32_t at = product.batch_invariant ? kInvariantTunedAt : key.range;
    if (plans_->measured.find(key) == nullptr) {
      const std::optional<LtPlan> best = measure(*api_, key, at);
      if (!best) {
        WR_LOG_WARN("too little device memory to time cuBLASLt's algorithms: taking the first");
        break;
      }
      plans_->measured.insert(*best);
      found = true;
    }
    plans_->chosen.insert(*plans_->measured.find(key));
    if (product.batch_invariant) {
      break;
    }
  }
  if (found && !plans_->measured.write(plans_->file, api_->version())) {
    WR_LOG_WARN("cannot write {}: cuBLASLt will be measured again", plans_->file);
  }
}

void CublasLt::run(cudaStream_t stream, const LtProduct& product, const LtOperands& operands) {
  cublasLtMatmulAlgo_t algo;
  {
    const std::lock_guard lock(plans_->mutex);
    algo = plans_->find_or_make(*api_, product, operands.m).algo;
  }
  const cublasStatus_t status = matmul(*api_, stream, product, operands, algo);
  WR_CHECK(status == CUBLAS_STATUS_SUCCESS,
           "cublasLtMatmul {} x {} x {}: status {}",
           operands.m,
           product.n,
           product.k,
           static_cast<int>(status));
}

}  // namespace warprow::cuda
