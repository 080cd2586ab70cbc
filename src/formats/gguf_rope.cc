#include "formats/gguf_rope.h"

#include <cmath>
#include <numbers>

#include "base/utf8.h"
#include "formats/dequantize.h"

namespace augur {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Every Llama 3.1, 3.2 and 3.3 model has these; only the factor differs.
constexpr double kLowFrequencyFactor = 1.0, kHighFrequencyFactor = 4.0, kOriginalContext = 8192.0;

// What transformers' llama3 scaling divides the i-th of n frequencies by.
double Llama3Divisor(double theta, int64_t i, int64_t n, double factor) {
  const double frequency = std::pow(theta, -static_cast<double>(i) / static_cast<double>(n));
  const double turns = kOriginalContext * frequency / (2 * std::numbers::pi);
  if (turns > kHighFrequencyFactor) return 1.0;
  if (turns < kLowFrequencyFactor) return factor;
  const double smooth = (turns - kLowFrequencyFactor) / (kHighFrequencyFactor - kLowFrequencyFactor);
  return 1.0 / ((1.0 - smooth) / factor + smooth);
}

OrderedJson Llama3Scaling(const GgufTensor& tensor, const GgufMetadata& metadata, int64_t head_dim,
                          double theta) {
  const Error fault(metadata.where(), "rope_freqs.weight does not hold the frequency factors of Llama 3",
                    "augur convert does not know this rope scaling");
  const int64_t n = head_dim / 2;
  if (tensor.shape != std::vector<int64_t>{n}) throw fault;
  std::vector<float> divisors(static_cast<size_t>(n));
  Dequantize(tensor.type, tensor.bytes, divisors);
  const double factor = divisors.back();
  for (int64_t i = 0; i < n; ++i) {
    const double expected = Llama3Divisor(theta, i, n, factor);
    if (!(std::abs(divisors[static_cast<size_t>(i)] - expected) <= 1e-3 * expected)) throw fault;
  }
  if (factor == 1.0) return nullptr;
  return {{"rope_type", "llama3"},
          {"factor", factor},
          {"low_freq_factor", kLowFrequencyFactor},
          {"high_freq_factor", kHighFrequencyFactor},
          {"original_max_position_embeddings", static_cast<int64_t>(kOriginalContext)}};
}

}  // namespace

OrderedJson ReadRopeScaling(const GgufContent& content, const GgufMetadata& metadata,
                            const std::string& prefix, int64_t head_dim, double theta) {
  if (const auto found = content.tensors.find("rope_freqs.weight"); found != content.tensors.end()) {
    return Llama3Scaling(found->second, metadata, head_dim, theta);
  }
  const std::string scaling = prefix + "rope.scaling.";
  const std::string type = metadata.String(scaling + "type").value_or("none");
  const double factor = metadata.Number(scaling + "factor").value_or(1.0);
  if (!(factor > 0 && std::isfinite(factor))) {
    throw Error(metadata.where(), fmt::format("\"{}factor\" is {}", scaling, factor),
                "it must be a positive number");
  }
  if (type == "none" || (type == "linear" && factor == 1.0)) return nullptr;
  if (type == "linear") return {{"rope_type", "linear"}, {"factor", factor}};
  if (type == "yarn") {
    OrderedJson json = {{"rope_type", "yarn"}, {"factor", factor}};
    if (const auto original = metadata.Integer(scaling + "original_context_length")) {
      json["original_max_position_embeddings"] = *original;
    }
    return json;
  }
  throw Error(metadata.where(), fmt::format("rope scaling of type {}", Quoted(type)),
              "augur convert knows linear, yarn and Llama 3's");
}

}  // namespace augur
