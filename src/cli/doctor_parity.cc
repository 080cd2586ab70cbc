#include "cli/doctor_parity.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "analysis/statistics.h"
#include "base/error.h"
#include "base/json.h"
#include "base/random.h"
#include "cli/exit_code.h"
#include "cli/generate_input.h"
#include "eval/parity.h"
#include "model/load.h"

namespace augur {
namespace {

constexpr double kFp32Bound = 1e-4;
constexpr double kDeltas[] = {0.05, 0.15};  // the masks' thresholds
constexpr int64_t kPromptTokens = 16;
// Upper ends of the histogram's bins; the last bin is open.
constexpr double kBins[] = {1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.05, 0.15};

std::vector<GenerateRequest> RandomPrompts(const ParityOptions& options, const ModelConfig& config) {
  std::vector<GenerateRequest> prompts;
  for (int64_t p = 0; p < options.prompts; ++p) {
    GenerateRequest& prompt = prompts.emplace_back();
    prompt.key = static_cast<uint64_t>(p);
    prompt.where = fmt::format("random prompt {}", p + 1);
    const int64_t length = std::min(kPromptTokens, std::max<int64_t>(config.max_positions / 2, 1));
    for (int64_t t = 0; t < length; ++t) {
      const Philox random = Philox::At(options.seed, static_cast<uint64_t>(t), prompt.key);
      prompt.tokens.push_back(
          static_cast<int32_t>(random.word[0] % static_cast<uint64_t>(config.vocab_size)));
    }
  }
  return prompts;
}

std::vector<GenerateRequest> Prompts(const ParityOptions& options, const ModelConfig& config) {
  if (options.tokens_input.empty()) return RandomPrompts(options, config);
  const GenerateInput input = ReadTokenLines(options.tokens_input);
  for (const std::string& fault : input.faults) {
    if (!fault.empty()) throw Error("", fault, "");
  }
  return input.requests;
}

std::vector<int64_t> Histogram(const std::vector<double>& values) {
  std::vector<int64_t> counts(std::size(kBins) + 1);
  for (const double value : values)
    ++counts[static_cast<size_t>(std::ranges::lower_bound(kBins, value) - kBins)];
  return counts;
}

Json Figures(const std::vector<double>& values) {
  std::vector<double> sorted = values;
  std::ranges::sort(sorted);
  double sum = 0;
  for (const double value : sorted) sum += value;
  Json above = Json::object();
  for (const double delta : kDeltas) above[fmt::format("{}", delta)] = ShareAbove(values, delta);
  return {{"mean", sum / static_cast<double>(sorted.size())},
          {"p50", Quantile(sorted, 0.5)},
          {"p95", Quantile(sorted, 0.95)},
          {"p99", Quantile(sorted, 0.99)},
          {"max", sorted.back()},
          {"share_above", above},
          {"histogram", Histogram(values)}};
}

void PrintHistogram(const std::vector<double>& differences, const std::vector<double>& divergences) {
  const std::vector<int64_t> left = Histogram(differences), right = Histogram(divergences);
  const auto bar = [&](int64_t count) {
    constexpr int64_t kWidth = 24;
    const int64_t cells = (count * kWidth + static_cast<int64_t>(differences.size()) - 1) /
                          static_cast<int64_t>(differences.size());
    std::string text;
    for (int64_t i = 0; i < kWidth; ++i) text += i < cells ? "█" : " ";
    return text;
  };
  fmt::print("  {:<12} {:>7} {:<24} {:>7}\n", "", "|dlogp|", "", "KL");
  for (size_t i = 0; i < left.size(); ++i) {
    const std::string name =
        i < std::size(kBins) ? fmt::format("<= {:g}", kBins[i]) : fmt::format(" > {:g}", kBins[i - 1]);
    fmt::print("  {:<12} {:>7} {} {:>7} {}\n", name, left[i], bar(left[i]), right[i], bar(right[i]));
  }
}

// What rollout and trainer compute in, by the names of model.precision and rollout.kv_precision.
struct PrecisionPair {
  std::string precision;
  std::string kv_precision;

  bool fp8_rollout() const { return precision == "fp8" || precision == "fp8_rollout"; }
  std::string name() const { return kv_precision == "fp8" ? precision + "+fp8_kv" : precision; }
};

std::vector<PrecisionPair> PrecisionPairs(const EngineFlags& flags) {
  if (flags.precision != "auto") return {{flags.precision, flags.kv_precision}};
  std::vector<PrecisionPair> settings;
  for (const char* precision : {"fp32", "bf16", "fp8_rollout", "fp8"}) {
    settings.push_back({precision, flags.kv_precision});
  }
  if (flags.kv_precision != "fp8") settings.push_back({"bf16", "fp8"});
  return settings;
}

Parity Measure(const ParityOptions& options, const PrecisionPair& setting,
               const std::vector<GenerateRequest>& prompts, std::string* device) {
  EngineFlags flags = options.engine;
  flags.precision = setting.fp8_rollout() ? "fp8" : setting.precision;
  flags.kv_precision = setting.kv_precision;
  flags.record_routing = true;
  const LoadedEngine loaded = LoadEngine(flags);
  *device = loaded.model.embedding.device().str();
  const ForwardOptions forward{.fp8 = setting.precision == "fp8"};
  return MeasureParity(loaded.model, forward, *loaded.engine, prompts, options.tokens, options.seed);
}

void PrintReport(const std::string& precision, const std::string& device, const Parity& parity, bool json,
                 bool ok) {
  const Json differences = Figures(parity.differences), divergences = Figures(parity.divergences);
  const bool replayed = !parity.replayed_differences.empty();
  if (json) {
    Json report = {{"precision", precision},
                   {"device", device},
                   {"tokens", parity.differences.size()},
                   {"logprob_difference", differences},
                   {"kl", divergences},
                   {"ok", ok}};
    if (replayed) {
      report["replayed_routing"] = {{"logprob_difference", Figures(parity.replayed_differences)},
                                    {"kl", Figures(parity.replayed_divergences)}};
    }
    fmt::print("{}\n", report.dump());
    return;
  }
  fmt::print("parity of rollout ({}) and trainer, {}, {} tokens\n", precision, device,
             parity.differences.size());
  const auto row = [](const char* name, const Json& f) {
    fmt::print("  {:<12} mean {:.2e}  p50 {:.2e}  p95 {:.2e}  p99 {:.2e}  max {:.2e}\n", name,
               f["mean"].get<double>(), f["p50"].get<double>(), f["p95"].get<double>(),
               f["p99"].get<double>(), f["max"].get<double>());
  };
  row("|dlogp|", differences);
  row("KL", divergences);
  if (replayed) {
    fmt::print("  with the rollout's experts (rollout.replay_routing):\n");
    row("|dlogp|", Figures(parity.replayed_differences));
    row("KL", Figures(parity.replayed_divergences));
  }
  PrintHistogram(parity.differences, parity.divergences);
  for (const double delta : kDeltas) {
    fmt::print("  above {:<6} |dlogp| {:.2f}%  KL {:.2f}% of tokens\n", delta,
               100 * ShareAbove(parity.differences, delta), 100 * ShareAbove(parity.divergences, delta));
  }
  if (!ok) fmt::print("  fault: fp32 on the CPU should agree to {}\n", kFp32Bound);
}

}  // namespace

void ShowParity(const ParityOptions& options) {
  const std::vector<GenerateRequest> prompts = Prompts(options, ReadModelConfig(options.engine.model));
  bool all_ok = true;
  for (const PrecisionPair& setting : PrecisionPairs(options.engine)) {
    std::string device;
    const Parity parity = Measure(options, setting, prompts, &device);
    const bool bound = setting.name() == "fp32" && device == "cpu";
    const bool ok = !bound || std::ranges::max(parity.differences) <= kFp32Bound;
    PrintReport(setting.name(), device, parity, options.json, ok);
    all_ok = all_ok && ok;
  }
  if (!all_ok) throw ExitCode{1};
}

}  // namespace augur
