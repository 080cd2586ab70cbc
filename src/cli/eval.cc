// augur eval: avg@k, maj@k and pass@k of a model by data source.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/stop_signals.h"
#include "base/tell.h"
#include "cli/commands.h"
#include "cli/engine_flags.h"
#include "cli/exit_code.h"
#include "cli/flag_checks.h"
#include "cli/load_or_stop.h"
#include "cli/program.h"
#include "cli/same_on_ranks.h"
#include "eval/evaluate.h"
#include "metrics/progress.h"
#include "ops/parallel/ranks.h"
#include "reward/python_function.h"
#include "train/parallel/stop.h"
#include "trajectory/trajectory_json.h"

namespace augur {
namespace {

constexpr std::string_view kStandardOutput = "-";

struct EvalFlags {
  EngineFlags engine;
  SamplingFlags sampling{.samples = 16};
  PromptFlags prompt;
  std::vector<std::string> files;
  int64_t limit = 0;
  std::string verifier = "auto";
  PythonReward reward{.key = "--reward"};
  std::string output, responses;
  bool no_table = false;
};

Scorer ScorerOf(const EvalFlags& flags) {
  if (flags.reward.function.empty()) return Scorer(flags.verifier, "--verifier");
  return Scorer(flags.reward, /*error_score=*/0);
}

using OrderedJson = nlohmann::ordered_json;

class EvalRun {
 public:
  explicit EvalRun(const EvalFlags& options)
      : options_(options),
        data_(MakeDataSection(options.prompt)),
        scorer_(ScorerOf(options)),
        text_(ModelText::FromDirectory(options.engine.model, data_)),
        loaded_(LoadEngine(options.engine)) {
    data_.max_prompt_tokens = INT64_MAX;  // the engine names those that are too long for the model
    prompts_ = LoadPrompts(*text_, data_, options.files,
                           {.limit = options.limit,
                            .keep_bad_rows = true,
                            .keep_columns = scorer_.uses_python(),
                            .answer_required = !scorer_.uses_python()});
    TellChatFormat(options.engine.model, *text_, data_, prompts_.prompts);
    sampling_ = MakeSamplingOptions(options.sampling, text_, options.engine, loaded_.model.config);
    loaded_.engine->CheckOptions(sampling_, /*has_text=*/true);
    WarnOfSlowPrecision(loaded_);
    verifiers_ = NamesBySource(scorer_, prompts_.prompts);
  }

  // What ranks compare of the prompts.
  std::vector<std::string> InputLines() const {
    std::vector<std::string> lines;
    for (size_t i = 0; i < prompts_.prompts.size(); ++i) {
      const Prompt& prompt = prompts_.prompts[i];
      lines.push_back(PromptLine(i, prompts_.tokens[i], prompt.data_source + prompt.ground_truth.dump()));
    }
    return lines;
  }

  // StopSignals must live.
  void Run() {
    Sample();
    const bool stopped = StopAgreed();
    if (!Ranks::World().first()) return;
    SaveResponses();
    if (stopped) {
      Tell("augur: stopped by {}; no figures, since they would be of a part only\n", StopSignalName());
      throw ExitCode{kInterrupted};
    }
    const bool table =
        !options_.no_table && options_.output != kStandardOutput && options_.responses != kStandardOutput;
    if (table) PrintTable();
    const std::vector<std::string> faults = evaluation_.Faults();
    const OrderedJson report = Report(faults);
    TellResult(report);
    if (!options_.output.empty()) Write(options_.output, report.dump(2) + "\n");
    for (const std::string& fault : faults) {
      if (Hooks().error == nullptr) Tell("augur: {}\n", fault);  // Python has its own words
    }
    const SourceScores all = evaluation_.Overall();
    const int64_t responses = all.prompts * all.samples;
    if (all.errors > 0) {
      Tell("augur: --reward: {} of {} responses could not be scored and count as wrong\n", all.errors,
           responses);
    }
    if (!faults.empty() || (all.errors > 0 && all.errors == responses)) throw ExitCode{kUserError};
  }

 private:
  void Sample() {
    const auto responses = static_cast<int64_t>(prompts_.prompts.size()) * sampling_.samples;
    Progress progress("eval", "response", responses);
    GenerateHooks hooks;
    hooks.cancelled = [] { return StopSignals::Received() != nullptr; };
    hooks.progress = [&](const GenerateProgress& now) {
      progress.Update(now.finished,
                      fmt::format("{:.0f} tokens/s", static_cast<double>(now.new_tokens) / now.seconds));
    };
    evaluation_ = Evaluate({*loaded_.engine, *text_, prompts_, scorer_, sampling_}, hooks);
  }

  // What scored a data source; nothing where no row of it could be read.
  std::string VerifierOf(const std::string& source) const {
    const auto found = verifiers_.find(source);
    return found == verifiers_.end() ? "-" : found->second;
  }

  void PrintTable() const {
    const auto samples = sampling_.samples;
    const auto sources = ScoresBySource(evaluation_.prompts);
    const SourceScores all = evaluation_.Overall();
    size_t width = 12, verifier_width = 8;
    for (const auto& [name, scores] : sources) {
      width = std::max(width, Visible(name).size() + 1);
      verifier_width = std::max(verifier_width, VerifierOf(name).size());
    }
    const auto row = [&](const std::string& name, const std::string& verifier, const SourceScores& scores) {
      fmt::print("{:<{}} {:<{}}{:>8}", name, width, verifier, verifier_width, scores.prompts);
      if (scores.prompts > 0) {
        fmt::print("{:>9.1f}%{:>9.1f}%{:>9.1f}%{:>9.1f}%{:>10.1f}{:>10.1f}%", 100 * scores.average,
                   100 * scores.majority, 100 * scores.pass.at(samples), 100 * scores.answered, scores.tokens,
                   100 * scores.cut_off);
      } else {
        for (const int column : {10, 10, 10, 10, 10, 11}) fmt::print("{:>{}}", "-", column);
      }
      if (all.failed > 0) fmt::print("{:>8}", scores.failed);
      fmt::print("\n");
    };
    fmt::print("{:<{}} {:<{}}{:>8}{:>10}{:>10}{:>10}{:>10}{:>10}{:>11}{}\n", "data source", width, "verifier",
               verifier_width, "prompts", fmt::format("avg@{}", samples), fmt::format("maj@{}", samples),
               fmt::format("pass@{}", samples), "answered", "tokens", "cut off",
               all.failed > 0 ? "  failed" : "");
    for (const auto& [name, scores] : sources) row(Visible(name), VerifierOf(name), scores);
    if (sources.size() > 1) row("all", "", all);
  }

  OrderedJson Report(const std::vector<std::string>& faults) const {
    OrderedJson sources = OrderedJson::object();
    for (const auto& [name, scores] : ScoresBySource(evaluation_.prompts)) {
      sources[name] = {{"verifier", VerifierOf(name)}};
      sources[name].update(Figures(scores));
    }
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
                          {"failed", faults}};
    const SourceScores all = evaluation_.Overall();
    report["overall"] = all.prompts > 0 ? Figures(all) : OrderedJson();
    return report;
  }

  // Of no prompt but failed ones: the counts alone.
  static OrderedJson Figures(const SourceScores& scores) {
    OrderedJson figures = {{"prompts", scores.prompts}, {"failed", scores.failed}};
    if (scores.prompts == 0) return figures;
    figures[fmt::format("avg@{}", scores.samples)] = scores.average;
    figures[fmt::format("maj@{}", scores.samples)] = scores.majority;
    for (const auto& [n, value] : scores.pass) figures[fmt::format("pass@{}", n)] = value;
    figures["score"] = scores.score;
    figures["answered"] = scores.answered;
    figures["response_tokens"] = scores.tokens;
    figures["cut_off"] = scores.cut_off;
    if (scores.errors > 0) figures["reward_errors"] = scores.errors;
    for (const auto& [name, sum] : scores.figures) {
      figures["reward"][name] = sum.first / static_cast<double>(sum.second);
    }
    return figures;
  }

  void SaveResponses() const {
    if (options_.responses.empty()) return;
    std::string lines;
    const auto samples = static_cast<size_t>(sampling_.samples);
    for (size_t i = 0; i < evaluation_.rollouts.size(); ++i) {
      const Rollout& rollout = evaluation_.rollouts[i];
      const Prompt& prompt = prompts_.prompts[i / samples];
      OrderedJson line = {{"data_source", prompt.data_source},
                          {"prompt", rollout.prompt},
                          {"sample", rollout.sample},
                          {"response", text_->ResponseText(rollout.tokens)},
                          {"ground_truth", prompt.ground_truth},
                          {"finish_reason", FinishReasonName(rollout.finish)}};
      if (!evaluation_.prompts.empty() && evaluation_.prompts[i / samples].fault.empty()) {
        const PromptScores& scored = evaluation_.prompts[i / samples];
        line["score"] = scored.scores[i % samples];
        line["answered"] = scored.answers[i % samples].has_value();
      }
      lines += line.dump(-1, ' ', /*ensure_ascii=*/true) + "\n";
    }
    Write(options_.responses, lines);
  }

  static void Write(const std::string& file, const std::string& text) {
    if (file == kStandardOutput) {
      fmt::print("{}", text);
    } else {
      WriteFileAtomically(file, text);
    }
  }

  const EvalFlags& options_;
  DataSection data_;
  const Scorer scorer_;
  const std::optional<ModelText> text_;
  LoadedEngine loaded_;
  TokenizedPrompts prompts_;
  VerifierNames verifiers_;
  SamplingOptions sampling_;
  Evaluation evaluation_;
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
  command
      ->add_option("--reward", options->reward.function,
                   "Score by a Python function instead, FILE.py:FUNCTION, as reward.python does")
      ->excludes(command->get_option("--verifier"));
  command
      ->add_option("--reward-workers", options->reward.workers, "Its processes; 0: one per core, 8 at most")
      ->capture_default_str()
      ->check(AtLeast(0));
  command->add_option("--reward-timeout", options->reward.timeout_s, "Seconds it may take for a response")
      ->capture_default_str()
      ->check(Between(0.001, 1e9));
  AddPromptFlags(command, &options->prompt);
  AddSamplingFlags(command, &options->sampling);
  command->add_option("--output,--json", options->output,
                      "Write the figures as JSON to this file; - is standard output, without the table");
  command->add_option("--responses", options->responses,
                      "Write every response with its score as JSON lines; -: as above");
  command->add_flag("--no-table", options->no_table, "Print no table to standard output");
  command->footer(
      "avg@k is the share of right responses, maj@k whether the answer most responses give is right, pass@k "
      "whether\n"
      "one of k is, answered the share of responses in which the verifier found an answer, right or wrong; "
      "each the mean\n"
      "over prompts. Prompts that fail are counted and left out. The JSON has pass@n for n = 1, 2, 4, ... "
      "too, by the\n"
      "unbiased estimate. Draws follow from --seed and the prompt's place alone.\n\n"
      "Example: augur eval models/smollm2-135m-instruct --chat --data gsm8k_test.jsonl --samples 16 --output "
      "gsm8k.json");
  command->callback([options, command] {
    const StopSignals signals;
    std::optional<EvalRun> run;
    LoadOrStop([&] {
      std::vector<std::string> inputs = options->files;
      if (const auto file = FileOfFunction(options->reward.function)) inputs.push_back(*file);
      for (const auto& [flag, file] :
           {std::pair("--output", options->output), {"--responses", options->responses}}) {
        if (file.empty() || file == kStandardOutput) continue;
        RefuseInput(file, inputs, flag);
        if (Ranks::World().first()) RequireWritable(file);
      }
      if (!options->output.empty() && options->output == options->responses) {
        throw Error("--responses", fmt::format("is {}, as --output is", options->responses),
                    "name another file");
      }
      run.emplace(*options);
    });
    ExpectSameOnRanks(*command, options->engine.model, run->InputLines());
    run->Run();
  });
}

}  // namespace augur
