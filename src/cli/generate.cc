// augur generate: text, or rollouts with their support, from a model.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/stop_signals.h"
#include "base/tell.h"
#include "cli/bench/measure.h"
#include "cli/commands.h"
#include "cli/engine_flags.h"
#include "cli/exit_code.h"
#include "cli/generate_input.h"
#include "cli/load_or_stop.h"
#include "cli/program.h"
#include "cli/response_printer.h"
#include "cli/same_on_ranks.h"
#include "cli/stdin_on_ranks.h"
#include "metrics/progress.h"
#include "ops/parallel/ranks.h"
#include "rollout/generate_on_ranks.h"
#include "train/parallel/stop.h"
#include "trajectory/trajectory_json.h"

namespace augur {
namespace {

struct GenerateFlags {
  EngineFlags engine;
  SamplingFlags sampling;
  PromptFlags prompt;
  std::vector<std::string> prompts, files;
  std::string tokens_input;
  int64_t top_logprobs = 0;
  std::string output;
  std::string stats;
};

constexpr const char* kGenerateFooter =
    R"(Text goes to standard output as it arrives. With --output every response becomes a JSON line (- for standard output):
prompt, sample, prompt_tokens, tokens, spans, text, logprobs, temperature, weight_version, finish_reason (eos, length, stop,
cancelled, failed); with --top-logprobs K also support_ids and support_logprobs, [tokens][K+1]: column 0 is the sampled
token, the rest the K most likely without it, -1 and null where unused. With --tokens-input the lines go to standard
output where there is no --output.

A prompt that is empty, too long or holds ids outside the vocabulary is reported by its line; the others go on, and the
exit code is 2. Ctrl-C ends generation and keeps what is there.

Examples:
  augur generate models/smollm2-135m-instruct --chat --prompt 'What is a trust region?'
  echo '{"tokens":[1,2,3]}' | augur generate MODEL --tokens-input - --max-tokens 64 --ignore-eos --stats json
  augur generate MODEL --data prompts.jsonl --samples 8 --top-logprobs 20 --output rollouts.jsonl)";

constexpr double kRateSeconds = 2;  // between two rates of the progress line

void CheckInputs(const GenerateFlags& options) {
  const int kinds = !options.prompts.empty() + !options.files.empty() + !options.tokens_input.empty();
  if (kinds == 0) {
    throw Error("augur generate", "no prompt given", "use --prompt TEXT, --data FILE or --tokens-input FILE");
  }
  if (!options.tokens_input.empty() && kinds > 1) {
    throw Error("--tokens-input", "goes with neither --prompt nor --data", "give one of them");
  }
  if (options.top_logprobs < 0) {
    throw Error("--top-logprobs", fmt::format("{} is negative", options.top_logprobs), "20 is usual");
  }
  if (!options.output.empty() && options.output != "-") {
    RefuseInput(options.output, options.files, "--output");
    RefuseInput(options.output, {&options.tokens_input, 1}, "--output");
    RequireWritable(options.output);
  }
  if (!options.stats.empty() && options.stats != "json") {
    throw Error("--stats", fmt::format("'{}' is no format", options.stats), "write --stats json");
  }
}

// What turns text into tokens, unless tokens come in and no text is needed.
std::optional<ModelText> LoadText(const GenerateFlags& options, const DataSection& data) {
  if (!options.tokens_input.empty() && options.sampling.stop.empty()) return std::nullopt;
  DataSection needed = data;
  // A template that is not known does not matter to plain text.
  if (options.files.empty() && !options.prompt.chat && data.chat_format == "auto") needed.chat_format = "raw";
  return ModelText::FromDirectory(options.engine.model, needed);
}

class Generate {
 public:
  // `stdin_text` is what standard input held, where the prompts come from there.
  Generate(const GenerateFlags& options, const std::string& stdin_text)
      : options_(options), data_(MakeDataSection(options.prompt)), text_(LoadText(options, data_)) {
    input_ = options.tokens_input.empty()
                 ? ReadTextPrompts(options.prompts, options.files, options.engine.model, *text_, data_)
             : options.tokens_input == "-" ? TokensOfText(stdin_text)
                                           : ReadTokenLines(options.tokens_input);
    if (input_.requests.empty()) throw Error("augur generate", "the input holds no prompt", "add a line");
    loaded_ = LoadEngine(options.engine);
    sampling_ = MakeSamplingOptions(options.sampling, text_, options.engine, loaded_.model.config);
    sampling_.support = options.top_logprobs;
    const int64_t rows = loaded_.model.config.vocab_size;
    CheckSupport(sampling_.support, sampling_.vocab_size > 0 ? sampling_.vocab_size : rows, "--top-logprobs");
    loaded_.engine->CheckOptions(sampling_, text_.has_value());
    WarnOfSlowPrecision(loaded_);
  }

  // What ranks compare of the prompts.
  std::vector<std::string> InputLines() const {
    std::vector<std::string> lines;
    for (size_t i = 0; i < input_.requests.size(); ++i)
      lines.push_back(PromptLine(i, input_.requests[i].tokens));
    return lines;
  }

  // StopSignals must live.
  void Run() {
    const auto start = Clock::now();
    Sample();
    seconds_ = SecondsSince(start);
    stats_ = StatsOfAll(loaded_.engine->stats());
    const bool stopped = StopAgreed();
    if (!ranks_.first()) return;
    Save();
    if (options_.stats == "json") fmt::print("{}\n", Stats().dump());
    ReportFailures();
    if (stopped) throw ExitCode{kInterrupted};
  }

 private:
  bool Prints() const {
    return text_.has_value() && options_.tokens_input.empty() && options_.output.empty();
  }

  void Sample() {
    GenerateHooks hooks;
    std::optional<ResponsePrinter> printer;
    std::optional<Progress> progress;
    hooks.cancelled = [] { return StopSignals::Received() != nullptr; };
    if (text_) hooks.text = [this](int32_t token) { return text_->tokenizer.TokenBytes(token); };
    if (Prints()) {
      printer.emplace(text_->tokenizer, input_.requests.size(), sampling_.samples);
    }
    if (printer && ranks_.alone()) {
      std::vector<int64_t> counts(input_.requests.size() * static_cast<size_t>(sampling_.samples));
      hooks.token = [&, counts](size_t request, int64_t sample, int32_t token) mutable {
        int64_t& count =
            counts[request * static_cast<size_t>(sampling_.samples) + static_cast<size_t>(sample)];
        const bool ends = std::ranges::find(sampling_.end_tokens, token) != sampling_.end_tokens.end();
        printer->Add(request, sample, token, ends || ++count == sampling_.max_tokens);
      };
    }
    // A bar would run into the text where both go to the same terminal.
    if (!Prints() || ::isatty(STDOUT_FILENO) == 0) {
      progress.emplace("generate", "response",
                       static_cast<int64_t>(input_.requests.size()) * sampling_.samples);
      // Of the last seconds: a prompt's samples all get their first token at once.
      hooks.progress = [&, rate = std::string(),
                        last = GenerateProgress()](const GenerateProgress& now) mutable {
        if (now.seconds - last.seconds >= kRateSeconds) {
          rate = fmt::format("{:.0f} tokens/s", static_cast<double>(now.new_tokens - last.new_tokens) /
                                                    (now.seconds - last.seconds));
          last = now;
        }
        progress->Update(now.finished, rate);
      };
    }
    rollouts_ = GenerateOnRanks(*loaded_.engine, input_.requests, sampling_, hooks);
    for (size_t i = 0; i < rollouts_.size(); ++i) {
      const std::string& fault = input_.faults[i / static_cast<size_t>(sampling_.samples)];
      if (!fault.empty()) rollouts_[i].error = fault;
    }
    if (printer && !ranks_.alone()) PrintAll(&*printer);
    if (printer) printer->Finish();
  }

  // What came from several ranks, in order.
  void PrintAll(ResponsePrinter* printer) const {
    const auto samples = static_cast<size_t>(sampling_.samples);
    for (size_t i = 0; i < rollouts_.size(); ++i) {
      const std::vector<int32_t>& tokens = rollouts_[i].tokens;
      for (size_t t = 0; t < tokens.size(); ++t) {
        printer->Add(i / samples, static_cast<int64_t>(i % samples), tokens[t], t + 1 == tokens.size());
      }
    }
  }

  // Tokens of all ranks, and the time of the slowest.
  EngineStats StatsOfAll(EngineStats stats) const {
    double counts[] = {static_cast<double>(stats.prefill_tokens), static_cast<double>(stats.new_tokens),
                       static_cast<double>(stats.decoded_tokens), static_cast<double>(stats.preemptions)};
    ranks_.Sum(counts, std::size(counts));
    stats.prefill_tokens = static_cast<int64_t>(counts[0]);
    stats.new_tokens = static_cast<int64_t>(counts[1]);
    stats.decoded_tokens = static_cast<int64_t>(counts[2]);
    stats.preemptions = static_cast<int64_t>(counts[3]);
    stats.prefill_seconds = ranks_.Max(stats.prefill_seconds);
    stats.decode_seconds = ranks_.Max(stats.decode_seconds);
    return stats;
  }

  void Save() const {
    std::string lines;
    const bool to_stdout =
        options_.output == "-" || (options_.output.empty() && !options_.tokens_input.empty());
    if (!to_stdout && options_.output.empty()) return;
    for (const Rollout& rollout : rollouts_) {
      TrajectoryJson line = ToJson(rollout);
      if (text_) line["text"] = text_->ResponseText(rollout.tokens);
      lines += line.dump(-1, ' ', /*ensure_ascii=*/true) + "\n";
    }
    if (to_stdout) {
      fmt::print("{}", lines);
    } else {
      WriteFileAtomically(options_.output, lines);
    }
  }

  nlohmann::ordered_json Stats() const {
    const EngineStats& stats = stats_;
    const auto rate = [](int64_t tokens, double seconds) {
      return seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0;
    };
    return {{"new_tokens_per_s", rate(stats.new_tokens, seconds_)},
            {"prefill_tokens_per_s", rate(stats.prefill_tokens, stats.prefill_seconds)},
            {"decode_tokens_per_s", rate(stats.decoded_tokens, stats.decode_seconds)},
            {"peak_memory_mib",
             static_cast<double>(PeakMemoryBytes(loaded_.model.embedding.device())) / (1 << 20)},
            {"new_tokens", stats.new_tokens},
            {"prefill_tokens", stats.prefill_tokens},
            {"seconds", seconds_},
            {"responses", rollouts_.size()},
            {"preemptions", stats.preemptions},
            {"precision", loaded_.precision},
            {"device", loaded_.model.embedding.device().str()}};
  }

  // One line for each prompt that failed; Python has its own.
  void ReportFailures() const {
    size_t failed = 0;
    for (const Rollout& rollout : rollouts_) {
      if (rollout.finish != FinishReason::kFailed) continue;
      const bool first = &rollout == &rollouts_.front() || (&rollout)[-1].prompt != rollout.prompt ||
                         (&rollout)[-1].finish != FinishReason::kFailed;
      if (first && Hooks().error == nullptr) Tell("augur: {}\n", rollout.error);
      failed += first;
    }
    if (failed > 0) throw ExitCode{kUserError};
  }

  const Ranks ranks_ = Ranks::World();
  const GenerateFlags& options_;
  const DataSection data_;
  const std::optional<ModelText> text_;
  GenerateInput input_;
  LoadedEngine loaded_;
  SamplingOptions sampling_;
  std::vector<Rollout> rollouts_;
  EngineStats stats_;
  double seconds_ = 0;
};

}  // namespace

void AddGenerateCommand(CLI::App& app) {
  CLI::App* command = app.add_subcommand("generate", "Sample responses, with the support the mask needs");
  const auto options = std::make_shared<GenerateFlags>();
  AddEngineFlags(command, &options->engine);
  command->add_option("--prompt", options->prompts, "A prompt; may be given several times")
      ->allow_extra_args(false);
  command->add_option("--data", options->files, "Prompts from JSONL or Parquet files");
  command->add_option(
      "--tokens-input", options->tokens_input,
      "Prompts as {\"tokens\":[...]} lines of a file, or of standard input for -; needs no tokenizer");
  AddPromptFlags(command, &options->prompt);
  AddSamplingFlags(command, &options->sampling);
  command
      ->add_option("--top-logprobs", options->top_logprobs,
                   "K: record this many most likely tokens at each position")
      ->capture_default_str();
  command->add_option("--output", options->output, "Write rollouts as JSON lines to this file");
  command->add_option("--stats", options->stats, "json: at the end print a line with speed and memory");
  command->footer(kGenerateFooter);
  command->callback([options, command] {
    const Ranks ranks = Ranks::World();
    ranks.OnFirst([&] { CheckInputs(*options); });
    const std::string stdin_text = options->tokens_input == "-" ? StdinOnRanks() : "";
    const StopSignals signals;  // only now: Ctrl-C ends the wait for standard input at once
    std::optional<Generate> generate;
    LoadOrStop([&] { generate.emplace(*options, stdin_text); });
    ExpectSameOnRanks(*command, options->engine.model, generate->InputLines());
    generate->Run();
  });
}

}  // namespace augur
