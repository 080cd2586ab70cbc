// What augur compare and augur frontier are to train.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/frontier.h"
#include "config/config.h"

namespace augur {

// One way of training, before seeds are dealt out.
struct CompareArm {
  std::string name;
  std::string config;                  // a file of augur train's
  std::vector<std::string> overrides;  // "key=value"
  std::vector<std::string> own;        // those of them that make it this arm
};

struct CompareFile {
  std::string dir;  // empty: runs/ and the file's name
  std::vector<CompareArm> arms;
  std::vector<FrontierAxis> grid;  // of a frontier alone
  int64_t seeds = 0;               // 0: not said
};

// Reads a comparison,
//
//   base: quickstart.yaml                   # next to this file
//   dir: runs/compare-tiny                  # optional
//   set: [train.steps=100, eval.every=10]   # for every arm
//   arms:
//     clip: [mask=clip]
//     predictive: [mask=predictive-kl-exact, mask.delta=0.05]
//   seeds: 4                                # optional
//   grid:                                   # of a frontier
//     lr_factor: [1, 4, 16]
//
// or, where a file has no arms, takes it as the configuration of one arm named after the file. Throws Error
// naming file and line.
CompareFile ReadCompareFile(const std::string& path);

// Throws Error for a change to all arms that would undo what makes this one what it is.
void RefuseKeysOfArm(const CompareArm& arm, std::span<const std::string> changes);

// Throws Error where key=value pairs set what a study gives each of its runs.
void RefuseKeysOfStudy(std::span<const std::string> overrides);

// Whether one of the key=value pairs sets the key.
bool Sets(std::span<const std::string> overrides, std::string_view key);

}  // namespace augur
