// `augur bench rollout`: the speed of generation with the support recorded.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "base/random.h"
#include "cli/bench/bench.h"
#include "cli/bench/measure.h"
#include "cli/flag_checks.h"
#include "model/load.h"
#include "model/shapes.h"
#include "rollout/device.h"
#include "rollout/engine.h"

namespace augur {
namespace {

struct RolloutBenchFlags {
  std::string model;
  std::string shape = "smollm2-135m";
  std::string device = "auto";
  std::string precision = "bf16";
  int64_t batch = 32, prompt = 64, tokens = 64, support = 20;
  int rounds = 3;
  bool json = false;
};

struct Run {
  double seconds = 0;
  EngineStats stats;
};

std::vector<GenerateRequest> RandomRequests(const RolloutBenchFlags& options, int64_t vocab) {
  std::vector<GenerateRequest> requests;
  for (int64_t i = 0; i < options.batch; ++i) {
    GenerateRequest& request = requests.emplace_back();
    request.key = static_cast<uint64_t>(i);
    request.where = fmt::format("prompt {}", i + 1);
    for (int64_t t = 0; t < options.prompt; ++t) {
      const Philox random = Philox::At(7, static_cast<uint64_t>(t), request.key);
      request.tokens.push_back(static_cast<int32_t>(random.word[0] % static_cast<uint64_t>(vocab)));
    }
  }
  return requests;
}

// The fastest of the rounds, after one to warm up.
Run BestRun(Engine& engine, const std::vector<GenerateRequest>& requests, const SamplingOptions& sampling,
            int rounds) {
  Run best;
  for (int round = 0; round <= rounds; ++round) {
    const auto start = Clock::now();
    const auto rollouts = engine.Generate(requests, sampling);
    const double seconds = SecondsSince(start);
    for (const Rollout& rollout : rollouts) {
      if (rollout.finish == FinishReason::kFailed) throw Error("", rollout.error, "");
    }
    if (round == 0 || (round > 1 && seconds >= best.seconds)) continue;
    best = {seconds, engine.stats()};
  }
  return best;
}

void Measure(const RolloutBenchFlags& options) {
  RunSection run;
  run.device = options.device;
  SetThreads(0);
  const at::Device device = RunDevice(run);
  const RolloutPrecision precision = ParseRolloutPrecision(options.precision, "--precision");
  const at::ScalarType dtype = precision == RolloutPrecision::kFp32 ? at::kFloat : at::kBFloat16;
  const Model model = options.model.empty()
                          ? NoiseModel(NamedShape(options.shape, "--shape"), dtype, device, 0)
                          : LoadModel(options.model, dtype, device);
  Engine engine(model, {.precision = precision});
  SamplingOptions sampling;
  sampling.max_tokens = options.tokens;
  sampling.support = options.support;
  const Run best =
      BestRun(engine, RandomRequests(options, model.config.vocab_size), sampling, options.rounds);
  const auto rate = [](int64_t tokens, double seconds) {
    return seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0;
  };
  const std::string name = options.model.empty() ? options.shape + ", random weights" : options.model;
  const double peak = static_cast<double>(PeakMemoryBytes(device)) / (1 << 20);
  const Json figures = {{"what", "rollout"},
                        {"model", name},
                        {"device", device.str()},
                        {"precision", options.precision},
                        {"batch", options.batch},
                        {"prompt", options.prompt},
                        {"new", options.tokens},
                        {"top_logprobs", options.support},
                        {"new_tokens_per_s", rate(best.stats.new_tokens, best.seconds)},
                        {"decode_tokens_per_s", rate(best.stats.new_tokens, best.stats.decode_seconds)},
                        {"prefill_tokens_per_s", rate(best.stats.prefill_tokens, best.stats.prefill_seconds)},
                        {"peak_memory_mib", peak}};
  if (options.json) {
    fmt::print("{}\n", figures.dump());
    return;
  }
  fmt::print("rollout, {}, {}, {}: {} x ({} prompt + {} new), top-{} recorded\n", name, device.str(),
             options.precision, options.batch, options.prompt, options.tokens, options.support);
  fmt::print("  all      {:>9.0f} new tokens/s\n", figures["new_tokens_per_s"].get<double>());
  fmt::print("  decode   {:>9.0f} new tokens/s\n", figures["decode_tokens_per_s"].get<double>());
  fmt::print("  prefill  {:>9.0f} tokens/s\n", figures["prefill_tokens_per_s"].get<double>());
  fmt::print("  memory   {:>9.0f} MiB at most\n", peak);
  fmt::print("bench/rollout.py measures transformers.generate beside it in one run\n");
}

}  // namespace

void AddBenchRollout(CLI::App& bench) {
  const auto options = std::make_shared<RolloutBenchFlags>();
  CLI::App* command = bench.add_subcommand("rollout", "Generation with the support recorded");
  command->add_option("MODEL", options->model,
                      "A Hugging Face directory; without it, random weights of --shape");
  command->add_option("--shape", options->shape, "smollm2-135m, qwen3-4b, ...")->capture_default_str();
  command->add_option("--device", options->device, "auto, cpu, cuda or cuda:N")->capture_default_str();
  command->add_option("--precision,--dtype", options->precision, "fp32, bf16 or fp8")->capture_default_str();
  command->add_option("--batch", options->batch, "Prompts")->capture_default_str()->check(AtLeast(1));
  command->add_option("--prompt", options->prompt, "Tokens in each")
      ->capture_default_str()
      ->check(AtLeast(1));
  command->add_option("--new", options->tokens, "Tokens generated after each")
      ->capture_default_str()
      ->check(AtLeast(1));
  command->add_option("--top-logprobs", options->support, "K: most likely tokens recorded at each position")
      ->capture_default_str()
      ->check(AtLeast(0));
  command->add_option("--rounds", options->rounds, "The fastest of this many counts")
      ->capture_default_str()
      ->check(AtLeast(1));
  command->add_flag("--json", options->json, "One JSON line instead of text");
  command->callback([options] { Measure(*options); });
}

}  // namespace augur
