// augur score: log-probabilities of token sequences under a model.
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cmath>
#include <exception>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "base/tell.h"
#include "cli/commands.h"
#include "cli/flag_checks.h"
#include "cli/stdin_on_ranks.h"
#include "model/forward.h"
#include "model/load.h"
#include "ops/head/log_probs.h"
#include "ops/parallel/ranks.h"
#include "rollout/device.h"

namespace augur {
namespace {

struct ScoreFlags {
  std::string model;
  std::string dtype = "fp32";
  std::string device = "cpu";
  int64_t batch_tokens = 4096;
  int64_t threads = 0;
};

std::vector<int32_t> ReadTokens(const std::string& text, const ModelConfig& config,
                                const std::string& where) {
  const Json object = ParseJson(text, where);
  const Json& list = RequireKey(object, "tokens", where);
  if (!list.is_array()) throw Error(where, "\"tokens\" is not a list", "write {\"tokens\":[1,2,3]}");
  if (list.empty()) throw Error(where, "\"tokens\" is empty", "give at least one token");
  if (static_cast<int64_t>(list.size()) > config.max_positions) {
    throw Error(where,
                fmt::format("{} tokens, but the model reads {} ({})", list.size(), config.max_positions,
                            config.limited_by_window ? "sliding_window" : "max_position_embeddings"),
                "shorten the line");
  }
  std::vector<int32_t> tokens;
  tokens.reserve(list.size());
  for (const Json& id : list) {
    if (!id.is_number_integer()) {
      throw Error(where, fmt::format("\"tokens\" holds {}, which is not a whole number", id.dump()),
                  "give token ids");
    }
    const bool fits =
        id.is_number_unsigned() && id.get<uint64_t>() < static_cast<uint64_t>(config.vocab_size);
    if (!fits) {
      throw Error(where,
                  fmt::format("token id {} is outside the vocabulary of {}", id.dump(), config.vocab_size),
                  "tokenize with this model's tokenizer");
    }
    tokens.push_back(id.get<int32_t>());
  }
  return tokens;
}

// One line redrawn on a terminal, nothing elsewhere.
class LineProgress {
 public:
  void Add(size_t lines, size_t tokens) {
    lines_ += lines;
    tokens_ += tokens;
    if (!terminal_) return;
    Tell("\rscored {} lines, {} tokens, {:.0f} tokens/s", lines_, tokens_,
         static_cast<double>(tokens_) / SecondsSince(start_));
  }
  ~LineProgress() {
    if (terminal_ && lines_ > 0) Tell("\n");
  }

 private:
  bool terminal_ = ::isatty(STDERR_FILENO) != 0;
  Clock::time_point start_ = Clock::now();
  size_t lines_ = 0, tokens_ = 0;
};

// Gathers lines and scores them together, in order.
class LineScorer {
 public:
  LineScorer(const Model& model, int64_t batch_tokens) : model_(model), batch_tokens_(batch_tokens) {}

  void Add(size_t line, std::vector<int32_t> tokens) {
    const auto count = static_cast<int64_t>(tokens.size());
    if (!lines_.empty() && waiting_ + count > batch_tokens_) Flush();
    waiting_ += count;
    lines_.push_back(line);
    sequences_.push_back(std::move(tokens));
  }

  void Flush() {
    if (lines_.empty()) return;
    if (ranks_.alone()) {
      std::cout << Answers(model_, lines_, sequences_);
      std::cout.flush();
    } else if (batches_ % static_cast<size_t>(ranks_.size()) == static_cast<size_t>(ranks_.rank())) {
      try {
        const std::string answers = Answers(model_, lines_, sequences_);
        answers_.Put(batches_);
        answers_.Put(answers);
      } catch (const Error&) {
        Keep(std::current_exception());
      }
    }
    ++batches_;
    progress_.Add(lines_.size(), static_cast<size_t>(waiting_));
    lines_.clear();
    sequences_.clear();
    waiting_ = 0;
  }

  // Of several ranks: the first writes what all answered, in order, up to the first fault, which is thrown
  // (Ranks::Together).
  void Gather() const {
    std::map<size_t, std::string> answers;
    for (const std::string& bytes : ranks_.GatherBytes(answers_.bytes())) {
      for (ByteReader in(bytes); !in.done();) {
        const auto batch = in.Next<size_t>();
        in.Get(&answers[batch]);
      }
    }
    const double first = -ranks_.Max(fault_ ? -static_cast<double>(faulty_batch_) : -HUGE_VAL);
    for (const auto& [batch, lines] : answers) {
      if (static_cast<double>(batch) < first) std::cout << lines;
    }
    std::cout.flush();
    ranks_.Together([&] {
      if (fault_ && static_cast<double>(faulty_batch_) == first) std::rethrow_exception(fault_);
    });
  }

  // Of several ranks: what is wrong with the batch that is next; the first such fault of this rank counts.
  void Keep(std::exception_ptr fault) {
    if (fault_) return;
    fault_ = std::move(fault);
    faulty_batch_ = batches_;
  }

 private:
  static std::string Answers(const Model& model, std::span<const size_t> lines,
                             std::span<const std::vector<int32_t>> sequences) {
    const PackedBatch batch = PackSequences(sequences, model.embedding.device());
    const at::Tensor hidden = Forward(model, batch).hidden;
    const int64_t rows = batch.tokens.size(0) - 1;  // row t predicts token t + 1; the last predicts nothing
    const Head head{hidden.narrow(0, 0, rows), model.head, {}};
    const at::Tensor scores =
        ComputeLogProbs(head, batch.tokens.narrow(0, 1, rows).unsqueeze(1), {}).sampled().cpu().contiguous();
    const float* score = scores.const_data_ptr<float>();
    std::string answers;
    for (size_t i = 0; i < lines.size(); ++i) {
      answers += Answer(model, lines[i], {score, sequences[i].size() - 1});
      score += sequences[i].size();  // past the row that would predict the next sequence's first token
    }
    return answers;
  }

  static std::string Answer(const Model& model, size_t line, std::span<const float> scores) {
    for (const float score : scores) {
      if (!std::isfinite(score)) {
        const bool exact = model.embedding.scalar_type() == at::kFloat;
        throw Error(fmt::format("line {}", line), "a log-probability is not finite",
                    exact ? "the model's weights overflow on this input; take another checkpoint"
                          : "the model overflows on this input; try --dtype fp32");
      }
    }
    return fmt::format("{{\"logprobs\":[{}]}}\n", fmt::join(scores, ","));
  }

  const Ranks ranks_ = Ranks::World();
  const Model& model_;
  const int64_t batch_tokens_;
  int64_t waiting_ = 0;
  std::vector<size_t> lines_;
  std::vector<std::vector<int32_t>> sequences_;
  size_t batches_ = 0;
  ByteWriter answers_;  // this rank's, where there are several
  std::exception_ptr fault_;
  size_t faulty_batch_ = 0;
  LineProgress progress_;
};

// Several ranks take turns with the batches that one would make.
void ScoreLinesOnRanks(const Model& model, const ScoreFlags& options, const Ranks& ranks) {
  std::istringstream in(StdinOnRanks());
  LineScorer scorer(model, options.batch_tokens);
  ranks.Together([&] {
    std::string text;
    for (size_t line = 1; std::getline(in, text); ++line) {
      if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
      std::vector<int32_t> tokens;
      try {
        tokens = ReadTokens(text, model.config, fmt::format("line {}", line));
      } catch (const Error&) {
        scorer.Flush();  // the lines before the bad one are answered
        scorer.Keep(std::current_exception());
        return;
      }
      scorer.Add(line, std::move(tokens));
    }
    scorer.Flush();
  });
  scorer.Gather();
}

void ScoreLines(const ScoreFlags& options) {
  const Ranks ranks = Ranks::World();
  SetThreads(options.threads);
  std::optional<Model> loaded;
  ranks.Together([&] {
    const at::ScalarType dtype = ParsePrecision(options.dtype, "--dtype");
    loaded = LoadModel(options.model, dtype, UseDevice(options.device, "--device"));
  });
  const Model& model = *loaded;
  const at::NoGradGuard no_grad;
  if (!ranks.alone()) return ScoreLinesOnRanks(model, options, ranks);
  std::ios::sync_with_stdio(false);
  LineScorer scorer(model, options.batch_tokens);
  std::string text;
  for (size_t line = 1; std::getline(std::cin, text); ++line) {
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    std::vector<int32_t> tokens;
    try {
      tokens = ReadTokens(text, model.config, fmt::format("line {}", line));
    } catch (const Error&) {
      scorer.Flush();  // the lines before the bad one are answered
      throw;
    }
    scorer.Add(line, std::move(tokens));
    if (std::cin.rdbuf()->in_avail() <= 0) scorer.Flush();  // so that a program may converse through pipes
  }
  scorer.Flush();
}

}  // namespace

void AddScoreCommand(CLI::App& app) {
  CLI::App* command = app.add_subcommand("score", "Log-probabilities of token sequences under a model");
  const auto options = std::make_shared<ScoreFlags>();
  command
      ->add_option("MODEL", options->model,
                   "A Hugging Face directory (config.json, safetensors), or a model of the hub: Org/Name")
      ->transform(ModelPath())
      ->required();
  command->add_option("--dtype", options->dtype, "What to compute in: fp32 (default) or bf16");
  command->add_option("--device", options->device, "Where: cpu (default), cuda or cuda:N");
  command
      ->add_option("--batch-tokens", options->batch_tokens,
                   "Lines are computed together up to this many tokens (default 4096)")
      ->check(AtLeast(1));
  command->add_option("--threads", options->threads, "CPU threads; 0 takes all cores")
      ->capture_default_str()
      ->check(CLI::Range(0, 1024));
  command->footer(
      "Reads {\"tokens\": [...]} a line from standard input and writes {\"logprobs\": [...]} a line: the "
      "natural\n"
      "logarithm of the probability of each token given those before it, from the second token on. The\n"
      "directory needs no tokenizer.\n\n"
      "Example: echo '{\"tokens\":[1,2,3]}' | augur score models/smollm2-135m-instruct");
  command->callback([options] { ScoreLines(*options); });
}

}  // namespace augur
