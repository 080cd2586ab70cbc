#include "train/checkpoint/run_state.h"

#include "base/error.h"
#include "base/file.h"
#include "config/read.h"
#include "config/write.h"
#include "train/checkpoint/experience_file.h"
#include "train/checkpoint/state_tensors.h"
#include "train/run/resume.h"

namespace augur {
namespace {

constexpr const char* kState = "state.json";
constexpr const char* kTensors = "tensors.safetensors";
constexpr const char* kQueue = "queue.safetensors";
constexpr const char* kConfig = "config.yaml";

Json OrNull(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

std::optional<double> FromJson(const Json& value) {
  return value.is_number() ? std::optional<double>(value.get<double>()) : std::nullopt;
}

}  // namespace

void SaveState(const RunState& state, Learner& learner, RlConfig config,
               const std::filesystem::path& directory) {
  SaveStateTensors(learner.optimizer().State(), directory / kTensors);
  std::vector<const Experience*> waiting;
  for (const Experience& experience : state.waiting) waiting.push_back(&experience);
  const Json queue = SaveExperiences(waiting, directory / kQueue);
  const Json json = {{"step", state.step},
                     {"position", state.position},
                     {"updates", learner.optimizer().updates()},
                     {"bad_in_row", learner.bad_updates().in_row()},
                     {"before", OrNull(state.before)},
                     {"after", OrNull(state.after)},
                     {"train_seconds", state.train_seconds},
                     {"config_hash", ConfigHash(config)},
                     {"waiting", queue}};
  WriteFileAtomically(directory / kState, json.dump(2) + "\n");
  WriteFileAtomically(directory / kConfig, ToYaml(FieldsOf(config)));
}

RunState LoadState(const std::filesystem::path& directory, const TokenizedPrompts& prompts,
                   Learner* learner) {
  const std::filesystem::path path = directory / kState;
  const Json json = ParseJson(ReadFile(path), path.string());
  try {
    RunState state;
    state.step = json.at("step");
    state.position = json.at("position");
    state.before = FromJson(json.at("before"));
    state.after = FromJson(json.at("after"));
    state.train_seconds = json.at("train_seconds");
    LoadStateTensors(learner->optimizer().State(), directory / kTensors);
    learner->optimizer().Restored(json.at("updates"));
    learner->bad_updates().set_in_row(json.at("bad_in_row"));
    for (Experience& experience : LoadExperiences(json.at("waiting"), directory / kQueue, prompts.tokens)) {
      state.waiting.push_back(std::move(experience));
    }
    return state;
  } catch (const Json::exception& fault) {
    throw Error(path.string(), fault.what(), kOtherCheckpoint);
  }
}

void CheckSameConfig(const std::filesystem::path& checkpoint, const RlConfig& config) {
  RefuseChanges(config.run, checkpoint, ChangedKeys(ReadRlConfig(checkpoint / kConfig), config));
}

}  // namespace augur
