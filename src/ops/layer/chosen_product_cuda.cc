#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include <cublasLt.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>

#include "base/error.h"
#include "ops/device.h"
#include "ops/layer/chosen_product.h"

namespace augur {
namespace {

// By columns, as cuBLAS sees it: out [n, m] = b' [n, k] a' [k, m].
struct Sizes {
  int64_t m, n, k;
  at::ScalarType type;
};

// For so many tokens and a weight [out, in].
struct Choice {
  at::ScalarType type;
  int64_t least, most;  // tokens
  int64_t out, in;
  cublasLtMatmulTile_t tile;
  cublasLtClusterShape_t cluster;
};

constexpr auto kBf16 = at::kBFloat16, kFp8 = at::kFloat8_e4m3fn;

// Measured on an H200 with cuBLAS 13 and Qwen3-4B's weights, each within a layer's other kernels.
constexpr Choice kChoices[] = {
    {kBf16, 33, 64, 6144, 2560, CUBLASLT_MATMUL_TILE_72x64, CUBLASLT_CLUSTER_SHAPE_4x1x1},
    {kBf16, 33, 64, 151936, 2560, CUBLASLT_MATMUL_TILE_144x64, CUBLASLT_CLUSTER_SHAPE_2x1x1},
    {kBf16, 193, 256, 2560, 9728, CUBLASLT_MATMUL_TILE_96x64, CUBLASLT_CLUSTER_SHAPE_2x4x1},
    {kBf16, 193, 256, 151936, 2560, CUBLASLT_MATMUL_TILE_168x128, CUBLASLT_CLUSTER_SHAPE_1x2x1},
    {kFp8, 33, 64, 6144, 2560, CUBLASLT_MATMUL_TILE_80x64, CUBLASLT_CLUSTER_SHAPE_4x1x1},
    {kFp8, 33, 64, 2560, 4096, CUBLASLT_MATMUL_TILE_32x64, CUBLASLT_CLUSTER_SHAPE_4x1x1},
    {kFp8, 33, 64, 19456, 2560, CUBLASLT_MATMUL_TILE_96x64, CUBLASLT_CLUSTER_SHAPE_4x1x1},
    {kFp8, 33, 64, 2560, 9728, CUBLASLT_MATMUL_TILE_32x64, CUBLASLT_CLUSTER_SHAPE_4x1x1},
    {kFp8, 193, 256, 19456, 2560, CUBLASLT_MATMUL_TILE_176x128, CUBLASLT_CLUSTER_SHAPE_1x2x1},
};

const Choice* FindChoice(const Sizes& s) {
  for (const Choice& c : kChoices) {
    if (c.type == s.type && c.out == s.n && c.in == s.k && c.least <= s.m && s.m <= c.most) return &c;
  }
  return nullptr;
}

void Check(cublasStatus_t status) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw Error("a product on the GPU", fmt::format("cuBLAS answered {}", static_cast<int>(status)),
                "report it with the sizes of the model");
  }
}

struct Destroy {
  void operator()(cublasLtMatmulDesc_t x) const { cublasLtMatmulDescDestroy(x); }
  void operator()(cublasLtMatrixLayout_t x) const { cublasLtMatrixLayoutDestroy(x); }
  void operator()(cublasLtMatmulPreference_t x) const { cublasLtMatmulPreferenceDestroy(x); }
};
template <typename T>
using Handle = std::unique_ptr<std::remove_pointer_t<T>, Destroy>;

cudaDataType_t TypeOf(at::ScalarType type) {
  return type == kFp8 ? CUDA_R_8F_E4M3 : type == at::kFloat ? CUDA_R_32F : CUDA_R_16BF;
}

Handle<cublasLtMatrixLayout_t> MakeLayout(at::ScalarType type, int64_t rows, int64_t columns) {
  cublasLtMatrixLayout_t layout = nullptr;
  Check(cublasLtMatrixLayoutCreate(&layout, TypeOf(type), static_cast<uint64_t>(rows),
                                   static_cast<uint64_t>(columns), rows));
  return Handle<cublasLtMatrixLayout_t>(layout);
}

// A product as cuBLAS knows it.
struct Problem {
  Problem(const Sizes& s, at::ScalarType out_type) {
    cublasLtMatmulDesc_t made = nullptr;
    Check(cublasLtMatmulDescCreate(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    description.reset(made);
    Set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    if (s.type == kFp8) Set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{1});
    b = MakeLayout(s.type, s.k, s.n);
    a = MakeLayout(s.type, s.k, s.m);
    out = MakeLayout(out_type, s.n, s.m);
  }

  template <typename T>
  void Set(cublasLtMatmulDescAttributes_t what, const T& value) {
    Check(cublasLtMatmulDescSetAttribute(description.get(), what, &value, sizeof(value)));
  }

  Handle<cublasLtMatmulDesc_t> description;
  Handle<cublasLtMatrixLayout_t> a, b, out;
};

template <typename T>
T ReadConfig(const cublasLtMatmulAlgo_t& kernel, cublasLtMatmulAlgoConfigAttributes_t what) {
  T value{};
  size_t written = 0;
  Check(cublasLtMatmulAlgoConfigGetAttribute(&kernel, what, &value, sizeof(value), &written));
  return value;
}

// The kernel of the choice among those that cuBLAS offers; nothing where it is not among them.
std::optional<cublasLtMatmulAlgo_t> FindKernel(const Problem& problem, const Choice& choice) {
  constexpr int kOffers = 64;
  cublasLtMatmulPreference_t made = nullptr;
  Check(cublasLtMatmulPreferenceCreate(&made));
  const Handle<cublasLtMatmulPreference_t> preference(made);
  const size_t workspace = at::cuda::getCUDABlasLtWorkspaceSize();
  Check(cublasLtMatmulPreferenceSetAttribute(made, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                             sizeof(workspace)));
  cublasLtMatmulHeuristicResult_t offers[kOffers];
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      at::cuda::getCurrentCUDABlasLtHandle(), problem.description.get(), problem.b.get(), problem.a.get(),
      problem.out.get(), problem.out.get(), made, kOffers, offers, &count);
  for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < count; ++i) {
    const cublasLtMatmulAlgo_t& kernel = offers[i].algo;
    if (ReadConfig<uint32_t>(kernel, CUBLASLT_ALGO_CONFIG_TILE_ID) == choice.tile &&
        ReadConfig<uint16_t>(kernel, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID) == choice.cluster &&
        ReadConfig<int32_t>(kernel, CUBLASLT_ALGO_CONFIG_SPLITK_NUM) <= 1) {
      return kernel;
    }
  }
  return std::nullopt;
}

// Looked for once for each product.
const std::optional<cublasLtMatmulAlgo_t>& KernelOf(const Sizes& s, at::ScalarType out_type,
                                                    const Problem& problem, const Choice& choice) {
  using Key = std::tuple<int64_t, int64_t, int64_t, at::ScalarType, at::ScalarType>;
  static std::mutex mutex;
  static std::map<Key, std::optional<cublasLtMatmulAlgo_t>> kernels;
  const Key key{s.m, s.n, s.k, s.type, out_type};
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = kernels.find(key);
  if (found != kernels.end()) return found->second;
  return kernels.emplace(key, FindKernel(problem, choice)).first->second;
}

}  // namespace

bool HasChosenProducts(const at::Tensor& on) {
  if (!on.is_cuda()) return false;
  return GpuGeneration(on) == 90 &&
         at::cuda::getDeviceProperties(on.device().index())->multiProcessorCount == 132;
}

bool ChosenProductInto(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  const Sizes sizes{a.size(0), b.size(1), a.size(1), a.scalar_type()};
  const Choice* choice = FindChoice(sizes);
  if (choice == nullptr || !HasChosenProducts(a) || b.scalar_type() != sizes.type || !a.is_contiguous() ||
      !b.t().is_contiguous() || !out.is_contiguous()) {
    return false;
  }
  const c10::cuda::CUDAGuard guard(a.device());  // the handle and the workspace are the current GPU's
  const Problem problem(sizes, out.scalar_type());
  const std::optional<cublasLtMatmulAlgo_t>& kernel = KernelOf(sizes, out.scalar_type(), problem, *choice);
  if (!kernel) return false;
  const float one = 1, zero = 0;
  Check(cublasLtMatmul(at::cuda::getCurrentCUDABlasLtHandle(), problem.description.get(), &one, b.data_ptr(),
                       problem.b.get(), a.data_ptr(), problem.a.get(), &zero, out.data_ptr(),
                       problem.out.get(), out.data_ptr(), problem.out.get(), &*kernel,
                       at::cuda::getCUDABlasLtWorkspace(), at::cuda::getCUDABlasLtWorkspaceSize(),
                       c10::cuda::getCurrentCUDAStream()));
  return true;
}

}  // namespace augur
