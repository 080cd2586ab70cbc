// `augur bench rollout`: the speed of generation with the support recorded.
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "base/names.h"
#include "base/random.h"
#include "cli/bench/bench.h"
#include "cli/bench/busy_process.h"
#include "cli/bench/lengths.h"
#include "cli/bench/measure.h"
#include "cli/flag_checks.h"
#include "kernels/simd/isa.h"
#include "model/load.h"
#include "model/shapes.h"
#include "rollout/device.h"
#include "rollout/engine.h"
#include "rollout/part_timer.h"

namespace augur {
namespace {

struct RolloutBenchFlags {
  std::string model;
  std::string shape = "smollm2-135m";
  std::string device = "auto";
  std::string precision = "bf16", kv_precision = "bf16";
  ResponseLengths lengths;
  double memory_share = 0.5;
  int64_t batch = 32, samples = 1, prompt = 64, new_tokens = 64, support = 20;
  int64_t max_batch = 0, threads = 0;
  int rounds = 3;
  bool with_load = false, parts = false, json = false;
};

struct RolloutRuns {
  double first_seconds = 0;  // of the run that warms up
  double seconds = 0;        // of the fastest after it
  EngineStats stats;
};

std::vector<GenerateRequest> RandomRequests(const RolloutBenchFlags& options, int64_t vocab_size) {
  std::vector<GenerateRequest> requests;
  for (int64_t i = 0; i < options.batch; ++i) {
    GenerateRequest& request = requests.emplace_back();
    request.key = static_cast<uint64_t>(i);
    request.where = fmt::format("prompt {}", i + 1);
    request.max_tokens = options.lengths.Of(request.key, options.new_tokens);
    for (int64_t t = 0; t < options.prompt; ++t) {
      const Philox random = Philox::At(7, static_cast<uint64_t>(t), request.key);
      request.tokens.push_back(static_cast<int32_t>(random.word[0] % static_cast<uint64_t>(vocab_size)));
    }
  }
  return requests;
}

RolloutRuns RunRounds(Engine& engine, const std::vector<GenerateRequest>& requests,
                      const SamplingOptions& sampling, int rounds) {
  RolloutRuns runs;
  for (int round = 0; round <= rounds; ++round) {
    const auto start = Clock::now();
    const auto rollouts = engine.Generate(requests, sampling);
    const double seconds = SecondsSince(start);
    for (const Rollout& rollout : rollouts) {
      if (rollout.finish == FinishReason::kFailed) throw Error("", rollout.error, "");
    }
    if (round == 0) runs.first_seconds = seconds;
    if (round == 0 || (round > 1 && seconds >= runs.seconds)) continue;
    runs.seconds = seconds;
    runs.stats = engine.stats();
  }
  return runs;
}

// The same next to a process that keeps a core busy, and which part of the speed is left.
Json LoadFigures(Engine& engine, const std::vector<GenerateRequest>& requests,
                 const SamplingOptions& sampling, int rounds, double idle_seconds) {
  const BusyProcess busy;
  const RolloutRuns runs = RunRounds(engine, requests, sampling, rounds);
  return {{"new_tokens_per_s", static_cast<double>(runs.stats.new_tokens) / runs.seconds},
          {"of_idle", idle_seconds / runs.seconds},
          {"mean_threads", runs.stats.mean_threads()}};
}

double WeightUpdateSeconds(Engine& engine, const Model& model) {
  Synchronize(model.embedding.device());
  const auto start = Clock::now();
  engine.UpdateWeights(model, 1);
  Synchronize(model.embedding.device());
  return SecondsSince(start);
}

// One decode step by its parts, as the engine itself ran it.
Json PartFigures(const std::vector<PartTime>& parts) {
  Json figures = Json::array();
  for (const PartTime& part : parts) {
    figures.push_back({{"part", part.part}, {"calls", part.calls}, {"ms", part.seconds * 1e3}});
  }
  return figures;
}

// Sequences of the step that the parts are of: on a CPU the mean of all steps, on a GPU the largest.
double SequencesOfStep(const EngineStats& stats, at::Device device) {
  if (!device.is_cpu()) return static_cast<double>(stats.decode_batch);
  return static_cast<double>(stats.decoded_tokens) /
         static_cast<double>(std::max<int64_t>(1, stats.decode_steps));
}

void PrintParts(const std::vector<PartTime>& parts, double sequences) {
  double total = 0;
  for (const PartTime& part : parts) total += part.seconds;
  fmt::print("  {:<26}{:>12}{:>8}{:>12}{:>8}\n", "one decode step", "us a call", "calls", "ms", "share");
  for (const PartTime& part : parts) {
    fmt::print("  {:<26}{:>12.2f}{:>8}{:>12.3f}{:>7.1f}%\n", part.part,
               part.seconds * 1e6 / static_cast<double>(std::max<int64_t>(part.calls, 1)), part.calls,
               part.seconds * 1e3, 100 * part.seconds / total);
  }
  fmt::print("  {:<26}{:>12}{:>8}{:>12.3f}   {:.0f} tokens/s\n", "sum", "", "", total * 1e3,
             sequences / total);
}

Json Figures(const RolloutBenchFlags& options, at::Device device, const RolloutRuns& runs) {
  const auto rate = [](int64_t tokens, double seconds) {
    return seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0;
  };
  const auto steps = static_cast<double>(std::max<int64_t>(1, runs.stats.decode_steps));
  return {{"what", "rollout"},
          {"cpu", IsaName(CurrentIsa())},
          {"threads", at::get_num_threads()},
          {"mean_threads", runs.stats.mean_threads()},
          {"model", options.model.empty() ? options.shape + ", random weights" : options.model},
          {"device", device.str()},
          {"precision", options.precision},
          {"kv_precision", options.kv_precision},
          {"batch", options.batch},
          {"samples", options.samples},
          {"prompt", options.prompt},
          {"new", options.new_tokens},
          {"lengths", options.lengths.kind},
          {"support", options.support},
          {"new_tokens_per_s", rate(runs.stats.new_tokens, runs.seconds)},
          {"decode_tokens_per_s", rate(runs.stats.decoded_tokens, runs.stats.decode_seconds)},
          {"prefill_tokens_per_s", rate(runs.stats.prefill_tokens, runs.stats.prefill_seconds)},
          {"decode_step_ms", runs.stats.decode_seconds / steps * 1e3},
          {"new_tokens", runs.stats.new_tokens},
          {"decode_batch", runs.stats.decode_batch},
          {"preemptions", runs.stats.preemptions},
          {"idle_share", runs.stats.idle_share()},
          {"first_s", runs.first_seconds},
          {"peak_memory_mib", static_cast<double>(PeakMemoryBytes(device)) / (1 << 20)}};
}

void PrintFigures(const RolloutBenchFlags& options, const Json& figures) {
  const auto text = [&](const char* key) { return figures[key].get<std::string>(); };
  const auto figure = [&](const char* key) { return figures[key].get<double>(); };
  fmt::print("rollout, {}, {}, {}: {} x {} x ({} prompt + {}{} new), top-{} recorded\n", text("model"),
             text("device"), options.precision, options.batch, options.samples, options.prompt,
             options.lengths.long_tailed() ? "up to " : "", options.new_tokens, options.support);
  if (text("device") == "cpu") {
    fmt::print("  {} instructions, {} threads, of which {:.1f} took part in a decode step\n", text("cpu"),
               figures["threads"].get<int64_t>(), figure("mean_threads"));
  }
  fmt::print("  all      {:>9.0f} new tokens/s; {:.3f} s the first time\n", figure("new_tokens_per_s"),
             figure("first_s"));
  fmt::print("  decode   {:>9.0f} new tokens/s, {:.3f} ms a step\n", figure("decode_tokens_per_s"),
             figure("decode_step_ms"));
  fmt::print("  prefill  {:>9.0f} tokens/s\n", figure("prefill_tokens_per_s"));
  fmt::print(
      "  batch    {:>9} sequences at most, {:.1f}% of its places idle; {} preemptions; {} new tokens\n",
      figures["decode_batch"].get<int64_t>(), 100 * figure("idle_share"),
      figures["preemptions"].get<int64_t>(), figures["new_tokens"].get<int64_t>());
  fmt::print("  weights  {:>9.1f} ms to take over an update\n", figure("weight_update_ms"));
  fmt::print("  memory   {:>9.0f} MiB at most\n", figure("peak_memory_mib"));
  if (figures.contains("with_load")) {
    const Json& load = figures["with_load"];
    fmt::print(
        "  all, while a process keeps a core busy: {:.0f} new tokens/s, {:.0f}% of the above, with {:.1f} "
        "threads\n",
        load["new_tokens_per_s"].get<double>(), 100 * load["of_idle"].get<double>(),
        load["mean_threads"].get<double>());
  }
}

void Measure(const RolloutBenchFlags& options) {
  RunSection run;
  run.device = options.device;
  SetThreads(options.threads);
  const at::Device device = RunDevice(run);
  const RolloutPrecision precision = ParseRolloutPrecision(options.precision, "--precision");
  const KvPrecision kv_precision = ParseKvPrecision(options.kv_precision, "--kv-precision");
  const at::ScalarType dtype = precision == RolloutPrecision::kFp32 ? at::kFloat : at::kBFloat16;
  const Model model = options.model.empty()
                          ? NoiseModel(NamedShape(options.shape, "--shape"), dtype, device, 0)
                          : LoadModel(options.model, dtype, device);
  std::unique_ptr<PartTimer> timer;
  if (options.parts) timer = device.is_cpu() ? MakeCpuPartTimer() : MakeCudaPartTimer();
  Engine engine(model, {.precision = precision,
                        .kv_precision = kv_precision,
                        .memory_share = options.memory_share,
                        .max_batch = options.max_batch,
                        .parts = timer.get()});
  SamplingOptions sampling;
  sampling.max_tokens = options.new_tokens;
  sampling.samples = options.samples;
  sampling.support = options.support;
  const std::vector<GenerateRequest> requests = RandomRequests(options, model.config.vocab_size);
  const RolloutRuns runs = RunRounds(engine, requests, sampling, options.rounds);
  const std::vector<PartTime> parts = timer ? timer->Times() : std::vector<PartTime>();
  Json figures = Figures(options, device, runs);
  figures["weight_update_ms"] = WeightUpdateSeconds(engine, model) * 1e3;
  if (timer) figures["parts"] = PartFigures(parts);
  if (options.with_load)
    figures["with_load"] = LoadFigures(engine, requests, sampling, options.rounds, runs.seconds);
  if (options.json) {
    fmt::print("{}\n", figures.dump());
    return;
  }
  PrintFigures(options, figures);
  if (timer) PrintParts(parts, SequencesOfStep(runs.stats, device));
  fmt::print("bench/rollout.py measures transformers.generate and this in turns, in one run\n");
}

}  // namespace

void AddBenchRollout(CLI::App& bench) {
  const auto options = std::make_shared<RolloutBenchFlags>();
  CLI::App* command = bench.add_subcommand("rollout", "Generation with the support recorded");
  const auto count = [&](const char* flag, auto* value, int64_t least, const char* description) {
    command->add_option(flag, *value, description)->capture_default_str()->check(AtLeast(least));
  };
  command->add_option("MODEL", options->model,
                      "A Hugging Face directory; without it, random weights of --shape");
  command->add_option("--shape", options->shape, OneOf(ShapeNames()))->capture_default_str();
  command->add_option("--device", options->device, "auto, cpu, cuda or cuda:N")->capture_default_str();
  command->add_option("--precision,--dtype", options->precision, OneOf(kNamesOf<RolloutPrecision>))
      ->capture_default_str();
  command
      ->add_option("--kv-precision", options->kv_precision,
                   "Of keys and values: " + OneOf(kNamesOf<KvPrecision>))
      ->capture_default_str();
  count("--batch", &options->batch, 1, "Prompts");
  count("--samples", &options->samples, 1, "Responses to each");
  count("--prompt", &options->prompt, 1, "Tokens in each prompt");
  count("--new", &options->new_tokens, 1, "Tokens generated after each");
  options->lengths.AddFlag(command);
  count("--support", &options->support, 0, "Most likely tokens recorded with the sampled one");
  count("--rounds", &options->rounds, 1, "The fastest of this many counts, after one to warm up");
  count("--max-batch", &options->max_batch, 0,
        "Most sequences decoded at once; 0 takes what fits, 256 at most");
  command->add_option("--memory-share", options->memory_share, "Share of the free memory for keys and values")
      ->capture_default_str();
  command->add_option("--threads", options->threads, "CPU threads; 0 takes all cores")
      ->capture_default_str()
      ->check(Within(0, 1024));
  command->add_flag("--with-load", options->with_load,
                    "Once more while another process keeps a core busy, and which part of the speed is left");
  command->add_flag("--parts", options->parts,
                    "Where a decode step's time goes: on a CPU the mean of all steps, on a GPU the last of "
                    "the largest batch, timed within its graph");
  command->add_flag("--json", options->json, "One JSON line instead of text");
  command->callback([options] { Measure(*options); });
}

}  // namespace augur
