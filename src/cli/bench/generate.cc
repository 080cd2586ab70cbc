// `augur bench generate`: the rollout engine on a model of known shape with random weights.
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <random>

#include "base/clock.h"
#include "base/error.h"
#include "cli/bench/bench.h"
#include "model/load.h"
#include "model/shapes.h"
#include "rollout/engine.h"

namespace augur {
namespace {

struct GenerateBenchFlags {
  std::string shape = "smollm2-135m", device = "cpu", precision = "bf16", kv_precision = "bf16";
  int64_t prompts = 32, samples = 1, prompt = 64, new_tokens = 64, support = 20;
  int rounds = 2;
};

class Timer {
 public:
  explicit Timer(at::Device device) : device_(device) { Restart(); }
  void Restart() {
    Wait();
    start_ = Clock::now();
  }
  double Seconds() {
    Wait();
    return SecondsSince(start_);
  }

 private:
  void Wait() const {
    if (device_.is_cpu()) return;
    c10::impl::VirtualGuardImpl(device_.type()).synchronizeDevice(std::max<int>(device_.index(), 0));
  }
  at::Device device_;
  Clock::time_point start_;
};

std::vector<GenerateRequest> RandomBenchPrompts(const GenerateBenchFlags& options, int64_t vocab) {
  std::mt19937_64 random(5);
  std::vector<GenerateRequest> requests(options.prompts);
  for (int64_t i = 0; i < options.prompts; ++i) {
    requests[i].key = static_cast<uint64_t>(i);
    requests[i].where = fmt::format("prompt {}", i);
    for (int64_t t = 0; t < options.prompt; ++t) {
      requests[i].tokens.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(vocab)));
    }
  }
  return requests;
}

void RunGenerateBench(const GenerateBenchFlags& options) {
  for (const auto& [name, value] : {std::pair("--prompts", options.prompts),
                                    {"--samples", options.samples},
                                    {"--prompt", options.prompt},
                                    {"--new", options.new_tokens},
                                    {"--rounds", int64_t{options.rounds}}}) {
    if (value < 1) throw Error(name, "must be at least 1", "see augur bench generate --help");
  }
  const at::Device device = ParseDevice(options.device, "--device");
  const RolloutPrecision precision = ParseRolloutPrecision(options.precision, "--precision");
  const auto dtype = precision == RolloutPrecision::kFp32 ? at::kFloat : at::kBFloat16;
  const Model model = NoiseModel(NamedShape(options.shape, "--shape"), dtype, device, 1);
  Engine engine(model, {.precision = precision,
                        .kv_precision = ParseKvPrecision(options.kv_precision, "--kv-precision")});
  SamplingOptions sampling;
  sampling.max_tokens = options.new_tokens;
  sampling.samples = options.samples;
  sampling.support = options.support;
  const std::vector<GenerateRequest> requests = RandomBenchPrompts(options, model.config.vocab_size);
  fmt::print("{} on {} in {}, {} x {} responses, {} + {} tokens, top-{} recorded\n", options.shape,
             options.device, options.precision, options.prompts, options.samples, options.prompt,
             options.new_tokens, options.support);
  Timer timer(device);
  for (int round = 0; round <= options.rounds; ++round) {
    timer.Restart();
    const std::vector<Rollout> rollouts = engine.Generate(requests, sampling);
    const double seconds = timer.Seconds();
    for (const Rollout& rollout : rollouts) {
      if (!rollout.error.empty()) throw Error("bench generate", rollout.error, "see the message");
    }
    const EngineStats& stats = engine.stats();
    fmt::print(
        "  {:8}: {:8.0f} tokens/s, decoding alone {:8.0f}; {:.3f} s, of them {:.3f} prefill of {} "
        "tokens, {:.3f} decode; {:.3f} ms a step\n",
        round == 0 ? "first" : fmt::format("round {}", round),
        static_cast<double>(stats.new_tokens) / seconds,
        static_cast<double>(stats.new_tokens) / stats.decode_seconds, seconds, stats.prefill_seconds,
        stats.prefill_tokens, stats.decode_seconds,
        stats.decode_seconds / static_cast<double>(std::max<int64_t>(1, options.new_tokens - 1)) * 1e3);
  }
  timer.Restart();
  engine.UpdateWeights(model, 1);
  fmt::print("  weight update: {:.1f} ms\n", timer.Seconds() * 1e3);
}

}  // namespace

void AddBenchGenerate(CLI::App& bench) {
  const auto options = std::make_shared<GenerateBenchFlags>();
  CLI::App* command =
      bench.add_subcommand("generate", "The rollout engine on a known shape with random weights");
  command->add_option("--shape", options->shape, "smollm2-135m, qwen3-4b, qwen3-8b or qwen3-30b-a3b")
      ->capture_default_str();
  command->add_option("--device", options->device, "cpu or cuda")->capture_default_str();
  command->add_option("--precision", options->precision, "fp32, bf16 or fp8")->capture_default_str();
  command->add_option("--kv-precision", options->kv_precision, "Of keys and values: bf16 or fp8")
      ->capture_default_str();
  command->add_option("--prompts", options->prompts, "Prompts")->capture_default_str();
  command->add_option("--samples", options->samples, "Responses to each")->capture_default_str();
  command->add_option("--prompt", options->prompt, "Tokens of a prompt")->capture_default_str();
  command->add_option("--new", options->new_tokens, "Tokens of a response")->capture_default_str();
  command->add_option("--support", options->support, "Most likely tokens recorded")->capture_default_str();
  command->add_option("--rounds", options->rounds, "Timed runs, after a first one")->capture_default_str();
  command->callback([options] { RunGenerateBench(*options); });
}

}  // namespace augur
