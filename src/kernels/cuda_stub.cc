// The CUDA kernels of a build without nvcc: each says so when called.
#include "kernels/adamw.h"
#include "kernels/add_at_random.h"
#include "kernels/decode/decode_attention.h"
#include "kernels/decode/experts.h"
#include "kernels/decode/few_tokens_product.h"
#include "kernels/decode/gate_up_product.h"
#include "kernels/decode/sample_support.h"
#include "kernels/decode/take_tokens.h"
#include "kernels/head/decide.h"
#include "kernels/head/live_rows.h"
#include "kernels/head/row_stats.h"
#include "kernels/head/scale.h"
#include "kernels/head/support_logits.h"
#include "kernels/head/surrogate.h"
#include "kernels/head/unnormalised_gradient.h"
#include "kernels/layer/quantise_rows.h"
#include "kernels/layer/rms_norm.h"
#include "kernels/layer/rotary.h"
#include "kernels/layer/swiglu.h"
#include "kernels/layer/zero_groups.h"
#include "kernels/no_cuda.h"

namespace augur {

void AdamWCuda(const AdamWArrays&, const AdamWSettings&, void*) { ThrowNoCuda("AdamW"); }

template <typename T>
void DecideCuda(const MaskRule&, const DecideInput<T>&, const DecideOutput<T>&, void*) {
  ThrowNoCuda("token decisions");
}

template void DecideCuda(const MaskRule&, const DecideInput<float>&, const DecideOutput<float>&, void*);
template void DecideCuda(const MaskRule&, const DecideInput<double>&, const DecideOutput<double>&, void*);

int DecodeAttentionSplits(int64_t, int, int64_t) { return 1; }

int64_t DecodeAttentionWorkspaceBytes(int64_t, int, int, int) { return 0; }

template <typename T>
void DecodeAttentionCuda(const DecodeAttention<T>&, void*) {
  ThrowNoCuda("attention over pages");
}

template void DecodeAttentionCuda(const DecodeAttention<float>&, void*);
template void DecodeAttentionCuda(const DecodeAttention<BFloat16>&, void*);

bool HasExpertKernelsCuda() { return false; }

void RouteTokensCuda(const BFloat16*, bool, const ExpertRoutes&, void*) { ThrowNoCuda("routing"); }

void ExpertProductCuda(const ExpertRoutes&, const ExpertProduct&, void*) { ThrowNoCuda("experts"); }

void MixExpertsCuda(const ExpertRoutes&, int64_t, const BFloat16*, BFloat16*, void*) {
  ThrowNoCuda("experts");
}

bool HasFewTokensProductCuda(const FewTokensProduct&) { return false; }

bool PaysFewTokensProductCuda(const FewTokensProduct&) { return false; }

void FewTokensProductCuda(const FewTokensProduct&, void*) { ThrowNoCuda("products of few tokens"); }

bool HasGateUpProductCuda(const GateUpProduct&) { return false; }

void GateUpProductCuda(const GateUpProduct&, void*) { ThrowNoCuda("products of gate and up"); }

template <typename T>
void LiveRowsCuda(const LiveRowsInput<T>&, int32_t*, int32_t*, void*) {
  ThrowNoCuda("live rows");
}

template void LiveRowsCuda(const LiveRowsInput<float>&, int32_t*, int32_t*, void*);
template void LiveRowsCuda(const LiveRowsInput<double>&, int32_t*, int32_t*, void*);

template <typename T>
void UnnormalisedGradientCuda(const LogitRows&, const UnnormalisedGradient<T>&, void*) {
  ThrowNoCuda("row gradients");
}

template void UnnormalisedGradientCuda(const LogitRows&, const UnnormalisedGradient<float>&, void*);
template void UnnormalisedGradientCuda(const LogitRows&, const UnnormalisedGradient<double>&, void*);

template <typename T>
void QuantiseRowsCuda(int64_t, int64_t, const T*, uint8_t*, float*, void*) {
  ThrowNoCuda("quantisation");
}

template void QuantiseRowsCuda(int64_t, int64_t, const float*, uint8_t*, float*, void*);
template void QuantiseRowsCuda(int64_t, int64_t, const BFloat16*, uint8_t*, float*, void*);

template <typename T>
void QuantiseColumnsCuda(const ColumnsToRound<T>&, uint8_t*, float*, float*, void*) {
  ThrowNoCuda("quantisation");
}

template void QuantiseColumnsCuda(const ColumnsToRound<float>&, uint8_t*, float*, float*, void*);
template void QuantiseColumnsCuda(const ColumnsToRound<BFloat16>&, uint8_t*, float*, float*, void*);

template <typename T>
void RmsNormForwardCuda(const RmsNormRows<T>&, void*) {
  ThrowNoCuda("RMSNorm");
}

int64_t RmsNormPartialRows(int64_t rows) { return rows; }

template <typename T>
void RmsNormBackwardCuda(int64_t, int64_t, const T*, const T*, const float*, const T*, const T*, T*, float*,
                         float*, void*) {
  ThrowNoCuda("RMSNorm");
}

#define AUGUR_STUB(T)                                                                                \
  template void RmsNormForwardCuda<T>(const RmsNormRows<T>&, void*);                                 \
  template void RmsNormBackwardCuda<T>(int64_t, int64_t, const T*, const T*, const float*, const T*, \
                                       const T*, T*, float*, float*, void*);
AUGUR_STUB(float)
AUGUR_STUB(BFloat16)

template <typename T>
void RotaryForwardCuda(const RotaryInput<T>&, T*, const PagedKv<T>*, void*) {
  ThrowNoCuda("rotation");
}

int64_t RotaryPartialRows() { return 0; }

template <typename T>
void RotaryBackwardCuda(const RotaryInput<T>&, const RotaryGradients<T>&, T*, float*, float*, void*) {
  ThrowNoCuda("rotation");
}

#undef AUGUR_STUB
#define AUGUR_STUB(T)                                                                                       \
  template void RotaryForwardCuda<T>(const RotaryInput<T>&, T*, const PagedKv<T>*, void*);                  \
  template void RotaryBackwardCuda<T>(const RotaryInput<T>&, const RotaryGradients<T>&, T*, float*, float*, \
                                      void*);
AUGUR_STUB(float)
AUGUR_STUB(BFloat16)

template <typename T>
void RowStatsCuda(const LogitRows&, const RowStats<T>&, void*) {
  ThrowNoCuda("row statistics");
}

template <typename T>
void RowGradientCuda(const LogitRows&, const RowGradient<T>&, void*) {
  ThrowNoCuda("row gradients");
}

template void RowStatsCuda(const LogitRows&, const RowStats<float>&, void*);
template void RowStatsCuda(const LogitRows&, const RowStats<double>&, void*);
template void RowGradientCuda(const LogitRows&, const RowGradient<float>&, void*);
template void RowGradientCuda(const LogitRows&, const RowGradient<double>&, void*);

int64_t SampleSupportWorkspaceBytes(int64_t, const SampleSettings&) { return 0; }

void SampleSupportCuda(ElementType, const void*, const SampleDraw*, int64_t, const SampleSettings&,
                       const SampleResults&, void*, void*) {
  ThrowNoCuda("sampling");
}

void ScaleCuda(void*, ElementType, int64_t, const float*, void*) { ThrowNoCuda("scaling"); }

template <typename T>
void SupportLogitsCuda(const SupportRows&, T*, void*) {
  ThrowNoCuda("support logits");
}

template void SupportLogitsCuda(const SupportRows&, float*, void*);
template void SupportLogitsCuda(const SupportRows&, double*, void*);

template <typename T>
void SurrogateCuda(const MaskRule&, const SurrogateInput<T>&, const SurrogateOutput<T>&, void*) {
  ThrowNoCuda("policy loss");
}

template <typename T>
void DecisionSumsCuda(const MaskRule&, const SurrogateInput<T>&, const T*, double*, void*) {
  ThrowNoCuda("decision metrics");
}

template void SurrogateCuda(const MaskRule&, const SurrogateInput<float>&, const SurrogateOutput<float>&,
                            void*);
template void SurrogateCuda(const MaskRule&, const SurrogateInput<double>&, const SurrogateOutput<double>&,
                            void*);
template void DecisionSumsCuda(const MaskRule&, const SurrogateInput<float>&, const float*, double*, void*);
template void DecisionSumsCuda(const MaskRule&, const SurrogateInput<double>&, const double*, double*, void*);

template <typename T>
void SwigluForwardCuda(int64_t, int64_t, const T*, const ProductScale&, T*, uint8_t*, float*, void*) {
  ThrowNoCuda("SwiGLU");
}

template <typename T>
void SwigluBackwardCuda(int64_t, int64_t, const T*, const ProductScale&, const T*, const SwigluGradient<T>&,
                        void*) {
  ThrowNoCuda("SwiGLU");
}

#undef AUGUR_STUB
#define AUGUR_STUB(T)                                                                                       \
  template void SwigluForwardCuda<T>(int64_t, int64_t, const T*, const ProductScale&, T*, uint8_t*, float*, \
                                     void*);                                                                \
  template void SwigluBackwardCuda<T>(int64_t, int64_t, const T*, const ProductScale&, const T*,            \
                                      const SwigluGradient<T>&, void*);
AUGUR_STUB(float)
AUGUR_STUB(BFloat16)

void ZeroEmptyGroupsCuda(int64_t, int64_t, const int32_t*, void*, void*) {
  ThrowNoCuda("gradients of experts");
}

void TakeTokensCuda(int64_t, const int32_t*, const int32_t*, int32_t*, void*) { ThrowNoCuda("decoding"); }

void AddAtRandomCuda(const RandomSum&, void*) { ThrowNoCuda("gradient sums"); }

}  // namespace augur
