#include "cli/frontier_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "cli/compare_file.h"
#include "config/pin.h"
#include "config/read.h"

namespace augur {
namespace {

constexpr int64_t kDefaultSeeds = 4;
constexpr std::string_view kLrFactor = "lr_factor", kUpdates = "updates_per_batch", kMask = "mask";

template <typename T>
T ParseAxisValue(std::string_view axis, const std::string& text, std::string_view kind) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [stop, fault] = std::from_chars(text.data(), end, value);
  if (fault != std::errc() || stop != end || !(value > 0)) {
    throw Error(fmt::format("grid.{}", axis), fmt::format("'{}' is not {}", text, kind), "correct it");
  }
  return value;
}

// Prompts in a minibatch where they suffice for that many updates, else single prompts several times over.
std::vector<std::string> UpdateOverrides(const RlConfig& config, int64_t updates) {
  const int64_t prompts = config.rollout.prompts;
  const int64_t minibatch = std::max<int64_t>(1, prompts / updates);
  const int64_t epochs = std::max<int64_t>(1, updates / prompts);
  if (epochs * (prompts / minibatch) != updates || prompts % minibatch != 0) {
    throw Error(fmt::format("grid.{}", kUpdates),
                fmt::format("{} updates cannot be made from rollout.prompts = {}", updates, prompts),
                "choose divisors or multiples of rollout.prompts");
  }
  return {fmt::format("train.minibatch={}", minibatch), fmt::format("train.epochs={}", epochs)};
}

std::string_view LeafOf(std::string_view key) { return key.substr(key.rfind('.') + 1); }

// "lr_factor-4.staleness-0"
std::string CellName(std::span<const FrontierAxis> axes, const std::vector<size_t>& place) {
  std::string name;
  for (size_t a = 0; a < axes.size(); ++a) {
    name += fmt::format("{}{}-{}", a == 0 ? "" : ".", LeafOf(axes[a].name), axes[a].values[place[a]]);
  }
  return name;
}

void CheckAxes(const std::string& file, std::span<const FrontierAxis> axes) {
  for (const FrontierAxis& axis : axes) {
    const bool known = axis.name == kLrFactor || axis.name == kUpdates || axis.name == kMask ||
                       axis.name.find('.') != std::string::npos;
    if (!known) {
      throw Error(
          file, fmt::format("the grid has no axis '{}'", axis.name),
          fmt::format("write {}, {}, {} or a key such as rollout.staleness", kLrFactor, kUpdates, kMask));
    }
    RefuseKeysOfStudy(std::vector{axis.name + "=" + axis.values.front()});
    for (const std::string& value : axis.values) {
      const bool plain = std::ranges::all_of(value, [](char c) {
        return ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z') || ('0' <= c && c <= '9') ||
               std::string_view("-_.+").find(c) != std::string_view::npos;
      });
      if (value.empty() || !plain || std::ranges::count(axis.values, value) > 1) {
        throw Error(file,
                    fmt::format("grid.{}: '{}' is twice there or cannot name a directory", axis.name, value),
                    "write numbers or plain words, each once");
      }
    }
  }
}

// What the grid decides cannot be set as well. `overrides` are those of an arm.
void CheckOverrides(std::span<const FrontierAxis> axes, std::span<const std::string> overrides) {
  const auto refuse = [](const FrontierAxis& axis, std::string_view key) {
    throw Error(fmt::format("grid.{}", axis.name), fmt::format("decides {}, which is set as well", key),
                "remove one of the two");
  };
  for (const FrontierAxis& axis : axes) {
    if (Sets(overrides, axis.name)) refuse(axis, axis.name);
    if (axis.name != kUpdates) continue;
    for (const std::string_view key : {"train.minibatch", "train.epochs"}) {
      if (Sets(overrides, key) || std::ranges::find(axes, key, &FrontierAxis::name) != axes.end()) {
        refuse(axis, key);
      }
    }
  }
}

void CheckEvaluates(const RlConfig& config) {
  if (config.eval.files.empty() || !config.eval.at_start || config.eval.every < 1 || config.train.steps < 1) {
    throw Error("frontier", "a run is judged by its accuracy from start to end, and these are not evaluated",
                "set eval.files, eval.at_start=true, eval.every and train.steps to 1 or more");
  }
}

}  // namespace

RlConfig FrontierPlan::ConfigOf(const FrontierRun& run) const {
  std::vector<std::string> words = overrides[run.arm];
  const std::vector<size_t> place = CellPlace(axes, run.cell);
  const auto value_of = [&](std::string_view name) -> const std::string* {
    const auto found = std::ranges::find(axes, name, &FrontierAxis::name);
    return found == axes.end() ? nullptr : &found->values[place[static_cast<size_t>(found - axes.begin())]];
  };
  for (size_t a = 0; a < axes.size(); ++a) {
    if (axes[a].name == kLrFactor || axes[a].name == kUpdates) continue;
    words.push_back(fmt::format("{}={}", axes[a].name, axes[a].values[place[a]]));
  }
  words.push_back(fmt::format("run.seed={}", run.seed));
  words.push_back(fmt::format("run.dir={}", DirectoryOf(run).string()));
  words.push_back("log.console=false");
  const std::string *factor = value_of(kLrFactor), *updates = value_of(kUpdates);
  // Set anew, whatever the base says, so that the two fit each other.
  if (updates != nullptr) words.insert(words.end(), {"train.minibatch=0", "train.epochs=1"});
  const RlConfig before = ReadRlConfig(base, words);
  if (factor != nullptr) {
    const auto times = ParseAxisValue<double>(kLrFactor, *factor, "a number above 0");
    words.push_back(fmt::format("train.lr={:.12g}", before.train.optimizer.lr * times));
  }
  if (updates != nullptr) {
    const auto count = ParseAxisValue<int64_t>(kUpdates, *updates, "a whole number above 0");
    for (std::string& word : UpdateOverrides(before, count)) words.push_back(std::move(word));
  }
  return PinRevisions(ReadRlConfig(base, words));
}

FrontierPlan MakeFrontierPlan(const FrontierPlanOptions& options) {
  std::vector<std::string> files, changes;
  for (const std::string& word : options.words) {
    (word.find('=') == std::string::npos ? files : changes).push_back(word);
  }
  RefuseKeysOfStudy(changes);
  if (files.size() != 1) {
    throw Error("frontier", fmt::format("{} files were named", files.size()),
                "name one, for example recipes/frontier-tiny.yaml");
  }
  const CompareFile file = ReadCompareFile(files[0]);
  if (file.grid.empty()) {
    throw Error(files[0], "has no grid", "add grid: {lr_factor: [1, 4], updates_per_batch: [4, 16]}");
  }
  CheckAxes(files[0], file.grid);
  FrontierPlan plan;
  plan.dir = options.dir.empty() ? file.dir : options.dir;
  plan.axes = file.grid;
  const int64_t seeds = options.seeds > 0 ? options.seeds : file.seeds > 0 ? file.seeds : kDefaultSeeds;
  for (int64_t i = 0; i < seeds; ++i) plan.seeds.push_back(options.first_seed + i);
  plan.base = file.arms.front().config;
  for (const CompareArm& arm : file.arms) {
    plan.arms.push_back(arm.name);
    RefuseKeysOfArm(arm, changes);
    std::vector<std::string> words = arm.overrides;
    words.insert(words.end(), changes.begin(), changes.end());
    CheckOverrides(plan.axes, words);
    // One thread a run: there are more runs than cores, and the result does not depend on the machine.
    words.insert(words.begin(), "run.threads=1");
    plan.overrides.push_back(std::move(words));
  }
  for (const int64_t seed : plan.seeds) {
    for (size_t cell = 0; cell < CellCount(plan.axes); ++cell) {
      const std::string place = CellName(plan.axes, CellPlace(plan.axes, cell));
      for (size_t arm = 0; arm < plan.arms.size(); ++arm) {
        plan.runs.push_back({arm, cell, seed, fmt::format("{}/{}/seed-{}", plan.arms[arm], place, seed)});
      }
    }
  }
  plan.rules.resize(plan.arms.size());
  for (const FrontierRun& run : plan.runs) {
    if (run.seed != plan.seeds.front()) break;
    const RlConfig config = plan.ConfigOf(run);
    CheckEvaluates(config);
    plan.rules[run.arm] = FormatRule(config.mask.rule);
  }
  return plan;
}

}  // namespace augur
