#include "rollout/generation.h"

#include <algorithm>

#include "base/clock.h"
#include "base/error.h"
#include "base/stop_signals.h"

namespace augur {
namespace {

// Prompts prefilled in one call hold about this many tokens together.
constexpr int64_t kPrefillTokens = 8192;

class Stopwatch {
 public:
  explicit Stopwatch(double* seconds) : seconds_(seconds) {}
  ~Stopwatch() { *seconds_ += SecondsSince(start_); }

 private:
  double* seconds_;
  Clock::time_point start_ = Clock::now();
};

// What is wrong with a prompt, or "".
std::string PromptFault(const GenerateRequest& request, const ModelConfig& config) {
  const auto length = static_cast<int64_t>(request.tokens.size());
  auto message = [&](std::string what, std::string_view remedy) {
    return std::string(Error(request.where, what, remedy).what());
  };
  if (length == 0) return message("the prompt is empty", "give at least one token");
  if (length >= config.max_positions) {
    return message(fmt::format("the prompt has {} tokens, which leaves no room in the model's context of {}",
                               length, config.max_positions),
                   "shorten it");
  }
  for (const int32_t token : request.tokens) {
    if (token < 0 || token >= config.vocab_size) {
      return message(
          fmt::format("token id {} is outside the model's vocabulary of {}", token, config.vocab_size),
          "tokenize with this model's tokenizer");
    }
  }
  return "";
}

}  // namespace

Generation::Generation(const Setting& setting, std::span<const GenerateRequest> requests,
                       const SamplingOptions& options, const GenerateHooks& hooks)
    : setting_(setting), options_(options), hooks_(hooks), pool_(setting.pages) {
  sampling_.vocab_size = options.vocab_size > 0 ? options.vocab_size : setting.config.vocab_size;
  sampling_.stride = setting.config.vocab_size;
  sampling_.temperature = static_cast<float>(options.temperature);
  sampling_.support = static_cast<int32_t>(options.support);
  sampling_.top_k = options.top_k;
  sampling_.top_p = static_cast<float>(options.top_p);
  sampling_.min_p = static_cast<float>(options.min_p);
  Enqueue(requests);
}

void Generation::Enqueue(std::span<const GenerateRequest> requests) {
  rollouts_.resize(requests.size() * options_.samples);
  progress_.total = static_cast<int64_t>(rollouts_.size());
  for (size_t r = 0; r < requests.size(); ++r) {
    const GenerateRequest& request = requests[r];
    Group& group = groups_.emplace_back();
    group.request = &request;
    group.unfinished = options_.samples;
    std::string fault = PromptFault(request, setting_.config);
    const auto length = static_cast<int64_t>(request.tokens.size());
    if (fault.empty() && PagesFor(length + 1) > pool_.pages()) {
      fault = Error(request.where,
                    fmt::format("the prompt has {} tokens, but the memory for keys and values holds {}",
                                length, pool_.pages() * setting_.backend.page_tokens()),
                    "shorten it or give the rollout more memory")
                  .what();
    }
    for (int64_t s = 0; s < options_.samples; ++s) {
      Rollout& rollout = rollouts_[r * options_.samples + s];
      rollout.prompt = request.key;
      rollout.sample = s;
      rollout.prompt_tokens = request.tokens;
      rollout.temperature = options_.temperature;
      rollout.weight_version = setting_.weight_version;
      rollout.support.columns = sampling_.columns();
      if (setting_.records_routing) {
        rollout.routing.layers = std::ranges::count(setting_.config.sparse, true);
        rollout.routing.experts_per_token = setting_.config.moe.experts_per_token;
      }
      Sample& sample = samples_.emplace_back();
      sample.group = &group;
      sample.rollout = &rollout;
      sample.limit = std::min(options_.max_tokens, setting_.config.max_positions - length);
      if (fault.empty()) {
        if (!hooks_.next) waiting_.push_back(&sample);
      } else {
        Finish(&sample, FinishReason::kFailed, fault);
      }
    }
  }
}

void Generation::TakeRequests() {
  if (!hooks_.next) return;
  while (static_cast<int64_t>(waiting_.size() + running_.size()) < setting_.max_batch) {
    std::erase_if(taken_, [](const Group* group) { return group->unfinished == 0; });
    const std::optional<size_t> request = hooks_.next(static_cast<int64_t>(taken_.size()));
    if (!request) return;
    const size_t first = *request * static_cast<size_t>(options_.samples);
    taken_.push_back(samples_[first].group);
    for (int64_t s = 0; s < options_.samples; ++s) {
      Sample* sample = &samples_[first + static_cast<size_t>(s)];
      if (!sample->finished) waiting_.push_back(sample);
    }
  }
}

std::vector<Rollout> Generation::Run(EngineStats* stats) {
  stats_ = stats;
  const auto start = Clock::now();
  while (true) {
    TakeRequests();
    if (waiting_.empty() && running_.empty()) break;
    CheckStop();
    if (hooks_.cancelled && hooks_.cancelled()) {
      for (Sample& sample : samples_) {
        if (!sample.finished) Finish(&sample, FinishReason::kCancelled);
      }
      break;
    }
    PrefillPrompts();
    AdmitSamples();
    MakeRoom();
    TakeAhead();
    DecodeStep();
    progress_.new_tokens = stats_->new_tokens;
    progress_.prefill_tokens = stats_->prefill_tokens;
    progress_.seconds = SecondsSince(start);
    if (hooks_.progress) hooks_.progress(progress_);
  }
  return std::move(rollouts_);
}

int64_t Generation::PagesFor(int64_t tokens) const {
  const int64_t size = setting_.backend.page_tokens();
  return (tokens + size - 1) / size;
}

// Pages a sample needs besides the whole ones of its prompt.
int64_t Generation::OwnPages(const Sample& sample) const {
  const int64_t prompt = PromptLength(*sample.group);
  return PagesFor(prompt + static_cast<int64_t>(sample.rollout->tokens.size()) + 1) -
         prompt / setting_.backend.page_tokens();
}

int64_t Generation::PromptLength(const Group& group) const {
  return static_cast<int64_t>(group.request->tokens.size());
}

void Generation::PrefillPrompts() {
  int64_t slots = setting_.max_batch - static_cast<int64_t>(running_.size());
  int64_t budget = kPrefillTokens;
  std::vector<Group*> chosen;
  for (Sample* sample : waiting_) {
    if (slots-- <= 0) break;
    Group* group = sample->group;
    if (!group->pages.empty()) continue;
    const int64_t length = PromptLength(*group), pages = PagesFor(length);
    if (!chosen.empty() && length > budget) break;
    // A page for each running sample is left, so that what is admitted need not be preempted at once.
    const bool alone = running_.empty() && chosen.empty();
    const int64_t spare = OwnPages(*sample) + static_cast<int64_t>(running_.size() + chosen.size());
    if (pool_.free_pages() < pages + spare && !(alone && EnsureFreePages(pages, group))) break;
    for (int64_t i = 0; i < pages; ++i) group->pages.push_back(pool_.Take());
    chosen.push_back(group);
    budget -= length;
  }
  if (!chosen.empty()) RunPrefill(chosen);
}

void Generation::RunPrefill(const std::vector<Group*>& groups) {
  std::vector<PrefillSequence> sequences;
  std::vector<Sample*> drawn;
  draws_.clear();
  for (size_t row = 0; row < groups.size(); ++row) {
    Group* group = groups[row];
    sequences.push_back({group->request->tokens, group->pages});
    stats_->prefill_tokens += PromptLength(*group);
    const size_t first = static_cast<size_t>(group->request - groups_.front().request) * options_.samples;
    for (int64_t s = 0; s < options_.samples; ++s) {
      Sample* sample = &samples_[first + s];
      if (sample->finished || !sample->rollout->tokens.empty()) continue;
      draws_.push_back(DrawFor(*sample, static_cast<int64_t>(row)));
      drawn.push_back(sample);
    }
  }
  const SampleResults results = MakeResults(draws_.size());
  {
    const Stopwatch watch(&stats_->prefill_seconds);
    setting_.backend.Prefill(sequences, draws_, sampling_, results);
  }
  int64_t token = 0;
  for (const Group* group : groups) {
    for (Sample* sample : drawn) {
      if (sample->group == group) NoteRouting(sample, 0, token, PromptLength(*group));
    }
    token += PromptLength(*group);
  }
  for (size_t i = 0; i < drawn.size(); ++i) Append(drawn[i], static_cast<int64_t>(i));
  std::erase_if(waiting_, [](const Sample* sample) { return sample->finished; });
}

void Generation::AdmitSamples() {
  while (!waiting_.empty() && static_cast<int64_t>(running_.size()) < setting_.max_batch) {
    Sample* sample = waiting_.front();
    if (sample->group->pages.empty() || !Attach(sample)) break;
    waiting_.pop_front();
    running_.push_back(sample);
    ++sample->group->running;
  }
}

bool Generation::Attach(Sample* sample) {
  Group* group = sample->group;
  const int64_t length = PromptLength(*group), whole = length / setting_.backend.page_tokens();
  const int64_t own = OwnPages(*sample);
  if (pool_.free_pages() < own + static_cast<int64_t>(running_.size())) {
    if (!running_.empty()) return false;
    if (!EnsureFreePages(own, group)) {
      // Nothing else holds memory: the prompt's pages become the sample's.
      sample->pages.swap(group->pages);
      sample->cached = length;
      return true;
    }
  }
  sample->pages.assign(group->pages.begin(), group->pages.begin() + whole);
  for (const int32_t page : sample->pages) pool_.Share(page);
  if (static_cast<int64_t>(group->pages.size()) > whole) {
    sample->pages.push_back(pool_.Take());
    const std::pair<int32_t, int32_t> copy{group->pages.back(), sample->pages.back()};
    setting_.backend.CopyPages({&copy, 1});
  }
  sample->cached = length;
  return true;
}

// Drops prompts that no running sample uses, other than `needed`, until `count` pages are free.
bool Generation::EnsureFreePages(int64_t count, const Group* needed) {
  for (Group& group : groups_) {
    if (pool_.free_pages() >= count) return true;
    if (&group != needed && group.running == 0) pool_.DropAll(&group.pages);
  }
  return pool_.free_pages() >= count;
}

void Generation::MakeRoom() {
  for (size_t i = 0; i < running_.size(); ++i) {
    Sample* sample = running_[i];
    if (PagesFor(sample->cached + 1) <= static_cast<int64_t>(sample->pages.size())) continue;
    while (!EnsureFreePages(1, nullptr) && running_.size() > i + 1) Preempt(running_.back());
    if (pool_.free_pages() == 0 && i > 0) {
      Preempt(sample);
      return;
    }
    if (pool_.free_pages() == 0) pool_.DropAll(&sample->group->pages);
    if (pool_.free_pages() > 0) {
      sample->pages.push_back(pool_.Take());
      continue;
    }
    Finish(sample, FinishReason::kFailed,
           Error(sample->group->request->where,
                 fmt::format("the memory for keys and values is full at {} tokens", sample->cached),
                 "ask for fewer tokens or give the rollout more memory")
               .what());
    running_.erase(running_.begin());
    return;
  }
}

void Generation::TakeAhead() {
  for (Sample* sample : running_) {
    if (pool_.free_pages() <= static_cast<int64_t>(running_.size())) return;
    if (PagesFor(sample->cached + 2) > static_cast<int64_t>(sample->pages.size())) {
      sample->pages.push_back(pool_.Take());
    }
  }
}

void Generation::Preempt(Sample* sample) {
  pool_.DropAll(&sample->pages);
  sample->cached = 0;
  --sample->group->running;
  std::erase(running_, sample);
  waiting_.push_front(sample);
  ++stats_->preemptions;
}

void Generation::DecodeStep() {
  if (running_.empty()) return;
  decodes_.clear();
  draws_.clear();
  for (size_t row = 0; row < running_.size(); ++row) {
    const Sample& sample = *running_[row];
    const int64_t index = sample.cached - PromptLength(*sample.group);
    decodes_.push_back(
        {sample.rollout->tokens[index], static_cast<int32_t>(sample.cached), std::span(sample.pages)});
    draws_.push_back(DrawFor(sample, static_cast<int64_t>(row)));
  }
  const SampleResults results = MakeResults(draws_.size());
  stats_->decode_batch = std::max(stats_->decode_batch, static_cast<int64_t>(running_.size()));
  {
    const Stopwatch watch(&stats_->decode_seconds);
    setting_.backend.Decode(decodes_, draws_, sampling_, results);
  }
  for (size_t row = 0; row < running_.size(); ++row) {
    Sample* sample = running_[row];
    NoteRouting(sample, sample->cached, static_cast<int64_t>(row), 1);
    ++sample->cached;
    const auto known = PromptLength(*sample->group) + static_cast<int64_t>(sample->rollout->tokens.size());
    if (sample->cached == known) Append(sample, static_cast<int64_t>(row));
  }
  std::erase_if(running_, [](const Sample* sample) { return sample->finished; });
}

void Generation::NoteRouting(Sample* sample, int64_t position, int64_t from, int64_t count) {
  if (!setting_.records_routing) return;
  RecordedRouting& routing = sample->rollout->routing;
  const int64_t width = routing.width();
  const auto known = setting_.backend.routing().subspan(from * width, count * width);
  if (static_cast<int64_t>(routing.experts.size()) < (position + count) * width) {
    routing.experts.resize((position + count) * width);
  }
  std::ranges::copy(known, routing.experts.begin() + position * width);
}

SampleDraw Generation::DrawFor(const Sample& sample, int64_t row) const {
  return MakeSampleDraw(static_cast<int32_t>(row), options_.seed, sample.rollout->prompt,
                        static_cast<uint32_t>(sample.rollout->sample),
                        static_cast<uint32_t>(sample.rollout->tokens.size()));
}

SampleResults Generation::MakeResults(size_t draws) {
  const size_t columns = static_cast<size_t>(sampling_.columns());
  tokens_.resize(draws);
  logprobs_.resize(draws);
  finite_.resize(draws);
  support_ids_.resize(draws * columns);
  support_logprobs_.resize(draws * columns);
  return {tokens_.data(), logprobs_.data(), support_ids_.data(), support_logprobs_.data(), finite_.data()};
}

void Generation::Append(Sample* sample, int64_t draw) {
  Rollout& rollout = *sample->rollout;
  if (finite_[draw] == 0) {
    rollout.not_finite = true;
    Finish(sample, FinishReason::kFailed,
           Error(sample->group->request->where,
                 fmt::format("the model's logits are not finite after {} tokens of the response: its weights "
                             "hold NaN, or overflow in this precision",
                             rollout.tokens.size()),
                 "take another checkpoint, or fp32")
               .what());
    return;
  }
  const int32_t token = tokens_[draw];
  const int64_t columns = sampling_.columns();
  rollout.tokens.push_back(token);
  rollout.logprobs.push_back(logprobs_[draw]);
  RecordedSupport& support = rollout.support;
  const auto ids = support_ids_.begin() + draw * columns;
  const auto logprobs = support_logprobs_.begin() + draw * columns;
  support.ids.insert(support.ids.end(), ids, ids + columns);
  support.logprobs.insert(support.logprobs.end(), logprobs, logprobs + columns);
  ++stats_->new_tokens;
  if (hooks_.token) {
    hooks_.token(static_cast<size_t>(sample->group->request - groups_.front().request), rollout.sample,
                 token);
  }
  if (std::ranges::find(options_.end_tokens, token) != options_.end_tokens.end()) {
    Finish(sample, FinishReason::kEos);
  } else if (!options_.stop_texts.empty() && sample->stop.Add(hooks_.text(token), options_.stop_texts)) {
    Finish(sample, FinishReason::kStopText);
  } else if (static_cast<int64_t>(rollout.tokens.size()) >= sample->limit) {
    Finish(sample, FinishReason::kLength);
  }
}

void Generation::Finish(Sample* sample, FinishReason reason, std::string error) {
  sample->finished = true;
  sample->rollout->finish = reason;
  sample->rollout->error = std::move(error);
  Group* group = sample->group;
  if (sample->cached > 0) --group->running;  // it was in the batch
  pool_.DropAll(&sample->pages);
  if (--group->unfinished == 0) pool_.DropAll(&group->pages);
  ++progress_.finished;
  if (hooks_.finished) {
    hooks_.finished(static_cast<size_t>(sample->rollout - rollouts_.data()), *sample->rollout);
  }
}

}  // namespace augur
