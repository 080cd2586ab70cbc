// augur eval: avg@k, maj@k and pass@k of a model by data source.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/stop_signals.h"
#include "cli/commands.h"
#include "cli/engine_flags.h"
#include "cli/exit_code.h"
#include "cli/flag_checks.h"
#include "cli/program.h"
#include "eval/scores.h"
#include "metrics/progress.h"
#include "reward/verifier.h"
#include "rollout/rollout_json.h"

namespace augur {
namespace {

struct EvalFlags {
  EngineFlags engine;
  SamplingFlags sampling{.samples = 16};
  PromptFlags prompt;
  std::vector<std::string> files;
  int64_t limit = 0;
  std::string verifier = "auto";
  std::string output, responses;
};

using OrderedJson = nlohmann::ordered_json;

class EvalRun {
 public:
  explicit EvalRun(const EvalFlags& options)
      : options_(options),
        data_(MakeDataSection(options.prompt)),
        text_(ModelText::FromDirectory(options.engine.model, data_)),
        loaded_(LoadEngine(options.engine)) {
    if (options.verifier != "auto") FindVerifier(options.verifier, "--verifier");
    data_.max_prompt_tokens = INT64_MAX;  // the engine names those that are too long for the model
    prompts_ = LoadPrompts(*text_, data_, options.files, {.limit = options.limit, .keep_bad_rows = true});
    sampling_ = MakeSamplingOptions(options.sampling, text_, options.engine, loaded_.model.config);
  }

  void Run() {
    const StopSignals signals;
    Sample();
    if (StopSignals::Received() != nullptr) {
      fmt::print(stderr, "augur: stopped by {}; no figures, since they would be of a part only\n",
                 StopSignals::Received());
      SaveResponses();
      throw ExitCode{kInterrupted};
    }
    ScoreAll();
    SaveResponses();
    PrintTable();
    const OrderedJson report = Report();
    TellResult(report);
    if (!options_.output.empty()) WriteFileAtomically(options_.output, report.dump(2) + "\n");
    for (const std::string& fault : faults_) fmt::print(stderr, "augur: {}\n", fault);
    if (!faults_.empty()) throw ExitCode{kUserError};
  }

 private:
  void Sample() {
    std::vector<GenerateRequest> requests;
    for (size_t i = 0; i < prompts_.prompts.size(); ++i) {
      requests.push_back({prompts_.prompts[i].index, prompts_.tokens[i], prompts_.prompts[i].Where()});
    }
    Progress progress("eval", "response", static_cast<int64_t>(requests.size()) * sampling_.samples);
    GenerateHooks hooks;
    hooks.text = [this](int32_t token) { return text_->tokenizer.TokenBytes(token); };
    hooks.cancelled = [] { return StopSignals::Received() != nullptr; };
    hooks.progress = [&](const GenerateProgress& now) {
      progress.Update(now.finished,
                      fmt::format("{:.0f} tokens/s", static_cast<double>(now.new_tokens) / now.seconds));
    };
    rollouts_ = loaded_.engine->Generate(requests, sampling_, hooks);
  }

  // Prompts that failed are named and counted, and have no part in the figures.
  void ScoreAll() {
    const auto samples = static_cast<size_t>(sampling_.samples);
    for (size_t i = 0; i < prompts_.prompts.size(); ++i) {
      const Prompt& prompt = prompts_.prompts[i];
      try {
        if (!prompt.fault.empty()) throw Error("", prompt.fault, "");
        PromptScores scored{.data_source = prompt.data_source, .right = {}, .scores = {}, .answers = {}};
        const Verifier& verifier = VerifierFor(options_.verifier, prompt, "--verifier");
        for (size_t s = 0; s < samples; ++s) {
          const Rollout& rollout = rollouts_[i * samples + s];
          if (rollout.finish == FinishReason::kFailed) throw Error("", rollout.error, "");
          const std::string response = text_->ResponseText(rollout.tokens);
          scored.scores.push_back(verifier.score(response, prompt.ground_truth));
          scored.right.push_back(scored.scores.back() == verifier.right);
          scored.answers.push_back(verifier.answer(response));
          CountResponse(prompt, rollout);
        }
        scores_of_[i] = scored_.size();
        scored_.push_back(std::move(scored));
      } catch (const Error& error) {
        const std::string message = error.what();
        faults_.push_back(message.starts_with(prompt.Where()) ? message : prompt.Where() + ": " + message);
      }
    }
  }

  void CountResponse(const Prompt& prompt, const Rollout& rollout) {
    for (Lengths* lengths : {&lengths_[prompt.data_source], &lengths_[""]}) {
      ++lengths->responses;
      lengths->tokens += static_cast<int64_t>(rollout.tokens.size());
      lengths->truncated += rollout.finish == FinishReason::kLength;
    }
  }

  void PrintTable() const {
    const auto samples = sampling_.samples;
    size_t width = 12;
    const auto sources = ScoresBySource(scored_);
    for (const auto& [name, scores] : sources) width = std::max(width, name.size() + 2);
    const auto row = [&](const std::string& name, const SourceScores& scores, const Lengths& lengths) {
      fmt::print("{:<{}}{:>8}{:>9.1f}%{:>9.1f}%{:>9.1f}%{:>12.1f}{:>10.1f}%\n", name, width, scores.prompts,
                 100 * scores.average, 100 * scores.majority, 100 * scores.pass.at(samples),
                 lengths.MeanTokens(), 100 * lengths.Truncated());
    };
    fmt::print("{:<{}}{:>8}{:>10}{:>10}{:>10}{:>12}{:>11}\n", "data source", width, "prompts",
               fmt::format("avg@{}", samples), fmt::format("maj@{}", samples),
               fmt::format("pass@{}", samples), "tokens", "cut off");
    for (const auto& [name, scores] : sources) row(name, scores, lengths_.at(name));
    if (sources.size() > 1) row("all", ScoresOverall(scored_), lengths_.at(""));
  }

  OrderedJson Report() const {
    OrderedJson sources = OrderedJson::object();
    for (const auto& [name, scores] : ScoresBySource(scored_))
      sources[name] = Figures(scores, lengths_.at(name));
    OrderedJson report = {{"model", options_.engine.model},
                          {"precision", loaded_.precision},
                          {"samples", sampling_.samples},
                          {"temperature", sampling_.temperature},
                          {"top_k", sampling_.top_k},
                          {"top_p", sampling_.top_p},
                          {"min_p", sampling_.min_p},
                          {"max_tokens", sampling_.max_tokens},
                          {"seed", sampling_.seed},
                          {"sources", sources},
                          {"failed", faults_}};
    report["overall"] = scored_.empty() ? OrderedJson() : Figures(ScoresOverall(scored_), lengths_.at(""));
    return report;
  }

  struct Lengths {
    int64_t responses = 0, tokens = 0, truncated = 0;
    double MeanTokens() const { return static_cast<double>(tokens) / static_cast<double>(responses); }
    double Truncated() const { return static_cast<double>(truncated) / static_cast<double>(responses); }
  };

  static OrderedJson Figures(const SourceScores& scores, const Lengths& lengths) {
    OrderedJson figures = {{"prompts", scores.prompts},
                           {fmt::format("avg@{}", scores.samples), scores.average},
                           {fmt::format("maj@{}", scores.samples), scores.majority}};
    for (const auto& [n, value] : scores.pass) figures[fmt::format("pass@{}", n)] = value;
    figures["score"] = scores.score;
    figures["response_tokens"] = lengths.MeanTokens();
    figures["cut_off"] = lengths.Truncated();
    return figures;
  }

  void SaveResponses() const {
    if (options_.responses.empty()) return;
    std::string lines;
    const auto samples = static_cast<size_t>(sampling_.samples);
    for (size_t i = 0; i < rollouts_.size(); ++i) {
      const Prompt& prompt = prompts_.prompts[i / samples];
      OrderedJson line = {
          {"data_source", prompt.data_source},   {"prompt", rollouts_[i].prompt},
          {"sample", rollouts_[i].sample},       {"response", text_->ResponseText(rollouts_[i].tokens)},
          {"ground_truth", prompt.ground_truth}, {"finish_reason", FinishReasonName(rollouts_[i].finish)}};
      const auto found = scores_of_.find(i / samples);
      if (found != scores_of_.end()) line["score"] = scored_[found->second].scores[i % samples];
      lines += line.dump(-1, ' ', /*ensure_ascii=*/true) + "\n";
    }
    WriteFileAtomically(options_.responses, lines);
  }

  const EvalFlags& options_;
  DataSection data_;
  const std::optional<ModelText> text_;
  LoadedEngine loaded_;
  TokenizedPrompts prompts_;
  SamplingOptions sampling_;
  std::vector<Rollout> rollouts_;
  std::vector<PromptScores> scored_;
  std::map<size_t, size_t> scores_of_;      // prompt to its place in scored_
  std::map<std::string, Lengths> lengths_;  // by data source; "" is all
  std::vector<std::string> faults_;
};

}  // namespace

void AddEvalCommand(CLI::App& app) {
  CLI::App* command = app.add_subcommand("eval", "avg@k, maj@k and pass@k of a model by data source");
  const auto options = std::make_shared<EvalFlags>();
  AddEngineFlags(command, &options->engine);
  command->add_option("--data", options->files, "JSONL or Parquet files of prompts and answers")->required();
  command
      ->add_option("--prompts", options->limit, "How many prompts of each file, from its beginning; 0: all")
      ->capture_default_str()
      ->check(AtLeast(0));
  command
      ->add_option("--verifier", options->verifier,
                   "How responses are scored (augur verify); auto chooses by ground truth and data source")
      ->capture_default_str();
  AddPromptFlags(command, &options->prompt);
  AddSamplingFlags(command, &options->sampling);
  command->add_option("--output,--json", options->output, "Write the figures as JSON to this file");
  command->add_option("--responses", options->responses, "Write every response with its score as JSON lines");
  command->footer(
      "avg@k is the share of right responses, maj@k whether the answer most responses give is right, pass@k "
      "whether\n"
      "one of k is; each the mean over prompts. The JSON has pass@n for n = 1, 2, 4, ... too, by the "
      "unbiased estimate.\n"
      "Draws follow from --seed and the prompt's place alone.\n\n"
      "Example: augur eval models/smollm2-135m-instruct --chat --data gsm8k_test.jsonl --samples 16 --output "
      "gsm8k.json");
  command->callback([options] {
    for (const std::string& file : {options->output, options->responses}) {
      if (!file.empty()) RequireWritable(file);
    }
    EvalRun(*options).Run();
  });
}

}  // namespace augur
