// One call of Engine::Generate: which sequences run, wait, share and are preempted.
//
// A request's samples are a group. Its prompt is prefilled once; the first tokens of all samples are drawn
// from that prefill; each sample then shares the prompt's full pages and has its own copy of the last, partly
// filled one. Samples are admitted while what all of them are expected to grow to has room. When pages run
// out all the same, prompts that no running sample uses are dropped, then the sample admitted last is
// preempted: it keeps its tokens, gives back its pages, and on its return is prefilled with its tokens, so
// that it goes on as if nothing had happened.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "rollout/backend.h"
#include "rollout/engine.h"
#include "rollout/growth.h"
#include "rollout/page_pool.h"
#include "rollout/stop_text.h"

namespace augur {

// Pages with which as many of the responses as run at once can all become as long as they may.
int64_t PagesInFull(std::span<const GenerateRequest> requests, const SamplingOptions& options,
                    const ModelConfig& config, int64_t max_batch, int64_t page_tokens);

class Generation {
 public:
  struct Setting {
    const ModelConfig& config;
    Backend& backend;
    int64_t pages;      // reserved in the backend
    int64_t max_batch;  // most sequences at once
    int64_t weight_version;
    bool records_routing = false;
  };

  Generation(const Setting& setting, std::span<const GenerateRequest> requests,
             const SamplingOptions& options, const GenerateHooks& hooks);

  std::vector<Rollout> Run(EngineStats* stats);

 private:
  struct Group {
    const GenerateRequest* request = nullptr;
    std::vector<int32_t> pages;  // of the prompt, its keys and values computed; empty while they are not
    int64_t unfinished = 0, running = 0;
  };
  struct Sample {
    Group* group = nullptr;
    Rollout* rollout = nullptr;
    std::vector<int32_t> pages;
    int64_t cached = 0;  // positions whose keys and values are computed
    int64_t limit = 0;   // most tokens of the response
    StopTextFinder stop;
    bool finished = false;
  };

  void Enqueue(std::span<const GenerateRequest> requests);
  // Where requests are handed out one by one: asks for as many as there are slots for.
  void TakeRequests();

  // How many of the waiting samples may join, in order: for so many there are slots, and room to grow.
  int64_t CountJoining() const;
  // Prefills the prompts of `joining` waiting samples as far as pages allow.
  void PrefillPrompts(int64_t joining);
  void RunPrefill(const std::vector<Group*>& groups);
  // Moves up to `joining` waiting samples whose prompt is computed into the batch.
  void AdmitSamples(int64_t joining);
  bool Attach(Sample* sample);
  // Computes keys and values of samples that were preempted, as far as their tokens go.
  void PrefillReturned(std::span<Sample* const> samples);
  // Gives every running sample the page its next token needs; some may be preempted.
  void MakeRoom();
  void DecodeStep();

  bool EnsureFreePages(int64_t count, const Group* needed);
  // A page for the token after the next one, where there is plenty: a backend may then run a step ahead.
  void TakeAhead();
  void Preempt(Sample* sample);
  // The result of a draw into the sample's rollout.
  void Append(Sample* sample, int64_t draw);
  void Finish(Sample* sample, FinishReason reason, std::string error = "");

  int64_t PagesFor(int64_t tokens) const;
  int64_t OwnPages(const Sample& sample) const;
  // Positions whose keys and values the sample's next step needs.
  int64_t KnownTokens(const Sample& sample) const;
  int64_t PromptLength(const Group& group) const;
  // Takes `count` tokens of the backend's routing, from the `from`-th on, for positions `position` on.
  void NoteRouting(Sample* sample, int64_t position, int64_t from, int64_t count);
  SampleDraw DrawFor(const Sample& sample, int64_t row) const;
  SampleResults MakeResults(size_t draws);

  const Setting setting_;
  const SamplingOptions& options_;
  const GenerateHooks& hooks_;
  SampleSettings sampling_;
  std::vector<Rollout> rollouts_;
  std::deque<Group> groups_;
  std::deque<Sample> samples_;
  std::deque<Sample*> waiting_;
  std::vector<const Group*> taken_;  // of those handed out
  std::vector<Sample*> running_;
  PagePool pool_;
  ResponseGrowth growth_;
  bool roomy_ = true;  // there is PagesInFull
  EngineStats* stats_ = nullptr;
  GenerateProgress progress_;

  // Reused from step to step.
  std::vector<DecodeSequence> decodes_;
  std::vector<SampleDraw> draws_;
  std::vector<int32_t> tokens_, support_ids_;
  std::vector<float> logprobs_, support_logprobs_;
  std::vector<uint8_t> finite_;
};

}  // namespace augur
