#include "train/checkpoint/run_state.h"

#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/experience_file.h"
#include "train/checkpoint/state_tensors.h"

namespace augur {
namespace {

constexpr const char* kQueue = "queue.safetensors";

Json OrNull(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

std::optional<double> FromJson(const Json& value) {
  return value.is_number() ? std::optional<double>(value.get<double>()) : std::nullopt;
}

}  // namespace

Json SaveState(const RunState& state, Learner& learner, const std::filesystem::path& directory) {
  SaveStateTensors(learner.optimizer(), directory);
  if (!Ranks::World().first()) return {};
  std::vector<const Experience*> waiting;
  for (const Experience& experience : state.waiting) waiting.push_back(&experience);
  const Json queue = SaveExperiences(waiting, directory / kQueue);
  return {{"position", state.position},
          {"updates", learner.optimizer().updates()},
          {"bad_in_row", learner.bad_updates().in_row()},
          {"before", OrNull(state.before)},
          {"after", OrNull(state.after)},
          {"zero_steps", state.zero_steps},
          {"equal_steps", state.equal_steps},
          {"waiting", queue}};
}

RunState LoadState(const Json& json, const std::filesystem::path& directory, const TokenizedPrompts& prompts,
                   bool keep_waiting, Learner* learner) {
  RunState state;
  int64_t updates = 0;
  Ranks::World().Together([&] {
    state.position = json.at("position");
    state.before = FromJson(json.at("before"));
    state.after = FromJson(json.at("after"));
    state.zero_steps = json.value("zero_steps", int64_t{0});
    state.equal_steps = json.value("equal_steps", int64_t{0});
    updates = json.at("updates");
    learner->bad_updates().set_in_row(json.at("bad_in_row"));
    LoadStateTensors(learner->optimizer(), directory);
    const Json& waiting = json.at("waiting");
    if (!keep_waiting && !waiting.empty()) {
      state.position = waiting.front().value("position", state.position);  // earlier versions: goes on behind
      return;
    }
    for (Experience& experience : LoadExperiences(waiting, directory / kQueue, prompts.tokens)) {
      state.waiting.push_back(std::move(experience));
    }
  });
  learner->optimizer().Restored(updates);
  return state;
}

}  // namespace augur
