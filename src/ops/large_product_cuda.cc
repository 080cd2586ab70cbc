#include <ATen/cuda/CUDAContext.h>
#include <cublasLt.h>

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "ops/large_product.h"

namespace augur {
namespace {

constexpr int64_t kTileRows = 256, kTileColumns = 128;
constexpr int64_t kWaves = 8;  // from here on the last wave's empty places hardly matter
constexpr int kCandidates = 8;
constexpr uintptr_t kAlignment = 256;  // of all data; what cuBLAS assumes unless told

template <typename T, cublasStatus_t (*kDestroy)(T)>
struct Destroyer {
  void operator()(T x) const { kDestroy(x); }
};
template <typename T, cublasStatus_t (*kDestroy)(T)>
using Owned = std::unique_ptr<std::remove_pointer_t<T>, Destroyer<T, kDestroy>>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Operation = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

// A matrix as cuBLAS sees it, column by column: ours transposed.
struct Operand {
  int64_t rows, columns, stride;
  bool transposed;
  cudaDataType_t type;

  Layout MakeLayout() const {
    cublasLtMatrixLayout_t layout = nullptr;
    TORCH_CUDABLAS_CHECK(cublasLtMatrixLayoutCreate(&layout, type, transposed ? columns : rows,
                                                    transposed ? rows : columns, stride));
    return Layout(layout);
  }
};

std::optional<Operand> OperandOf(const at::Tensor& x) {
  const bool by_rows = x.stride(1) == 1, by_columns = x.stride(0) == 1;
  const int64_t stride = by_rows ? x.stride(0) : x.stride(1);
  const bool aligned = reinterpret_cast<uintptr_t>(x.const_data_ptr()) % kAlignment == 0 && stride % 8 == 0;
  if (!aligned || !(by_rows || by_columns)) return std::nullopt;
  const auto type = x.scalar_type() == at::kBFloat16 ? CUDA_R_16BF
                    : x.scalar_type() == at::kHalf   ? CUDA_R_16F
                                                     : CUDA_R_32F;
  return Operand{x.size(1), x.size(0), stride, !by_rows, type};
}

// out' = b' a', ready to run.
class Plan {
 public:
  Plan(const Operand& out, const Operand& a, const Operand& b)
      : out_(out.MakeLayout()), a_(a.MakeLayout()), b_(b.MakeLayout()) {
    cublasLtMatmulDesc_t operation = nullptr;
    TORCH_CUDABLAS_CHECK(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    operation_.reset(operation);
    const auto transpose = [&](cublasLtMatmulDescAttributes_t attribute, bool yes) {
      const cublasOperation_t value = yes ? CUBLAS_OP_T : CUBLAS_OP_N;
      TORCH_CUDABLAS_CHECK(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof(value)));
    };
    transpose(CUBLASLT_MATMUL_DESC_TRANSA, b.transposed);
    transpose(CUBLASLT_MATMUL_DESC_TRANSB, a.transposed);
    Choose();
  }

  bool found() const { return algorithm_.has_value(); }

  void Run(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add) const {
    const float one = 1, before = add ? 1 : 0;
    void* result = out.mutable_data_ptr();
    TORCH_CUDABLAS_CHECK(cublasLtMatmul(at::cuda::getCurrentCUDABlasLtHandle(), operation_.get(), &one,
                                        b.const_data_ptr(), b_.get(), a.const_data_ptr(), a_.get(), &before,
                                        result, out_.get(), result, out_.get(), &*algorithm_, nullptr, 0,
                                        at::cuda::getCurrentCUDAStream(out.device().index())));
  }

 private:
  // The first candidate with our tile, two of which share what they read.
  void Choose() {
    cublasLtMatmulPreference_t preference = nullptr;
    TORCH_CUDABLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference));
    const Preference owner(preference);
    std::array<cublasLtMatmulHeuristicResult_t, kCandidates> candidates;
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        at::cuda::getCurrentCUDABlasLtHandle(), operation_.get(), b_.get(), a_.get(), out_.get(), out_.get(),
        preference, kCandidates, candidates.data(), &count);
    if (status != CUBLAS_STATUS_SUCCESS) return;
    for (int i = 0; i < count && !found(); ++i) {
      uint32_t tile = 0;
      uint16_t cluster = 0;
      size_t written = 0;
      const auto* algorithm = &candidates[i].algo;
      cublasLtMatmulAlgoConfigGetAttribute(algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID, &tile, sizeof(tile),
                                           &written);
      cublasLtMatmulAlgoConfigGetAttribute(algorithm, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, &cluster,
                                           sizeof(cluster), &written);
      if (tile == CUBLASLT_MATMUL_TILE_256x128 && cluster == CUBLASLT_CLUSTER_SHAPE_1x2x1) {
        algorithm_ = *algorithm;
      }
    }
  }

  Layout out_, a_, b_;
  Operation operation_;
  std::optional<cublasLtMatmulAlgo_t> algorithm_;
};

// Plans are made once for each shape.
const Plan& PlanFor(c10::DeviceIndex device, const Operand& out, const Operand& a, const Operand& b) {
  using Key = std::array<int64_t, 10>;
  static std::mutex mutex;
  static std::map<Key, std::unique_ptr<Plan>> plans;
  const Key key{device,   out.rows, out.columns,  a.rows,       out.stride,
                a.stride, b.stride, a.transposed, b.transposed, out.type * 256 + a.type};
  const std::lock_guard lock(mutex);
  std::unique_ptr<Plan>& plan = plans[key];
  if (plan == nullptr) plan = std::make_unique<Plan>(out, a, b);
  return *plan;
}

}  // namespace

bool LargeProductCuda(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add) {
  const int64_t tiles = out.numel() / (kTileRows * kTileColumns);
  const int units = at::cuda::getDeviceProperties(out.device().index())->multiProcessorCount;
  if (a.element_size() != 2 || tiles < kWaves * units) return false;
  const auto out_operand = OperandOf(out), a_operand = OperandOf(a), b_operand = OperandOf(b);
  if (!out_operand || out_operand->transposed || !a_operand || !b_operand) return false;
  const Plan& plan = PlanFor(out.device().index(), *out_operand, *a_operand, *b_operand);
  if (plan.found()) plan.Run(out, a, b, add);
  return plan.found();
}

}  // namespace augur
