// Configurations as text: saved files, help, documentation, and how two of them differ.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"

namespace augur {

// Every key with its value; reading it back gives the same configuration.
std::string ToYaml(const FieldList& fields);

// "train.lr  AdamW's learning rate after warm-up. (1e-06)" a line, for --help: of every key, or of some.
std::string HelpText(const FieldList& fields);
std::string HelpText(const FieldList& fields, std::span<const std::string_view> keys);

// The body of docs/configuration.md: one table per section.
std::string ToMarkdown(const FieldList& fields);

// "train.lr: 1e-06 -> 2e-06" for every key that decides what is computed and whose value differs, in order;
// those that MayChange are passed over.
std::vector<std::string> ChangedKeys(RlConfig before, RlConfig now);
std::vector<std::string> ChangedKeys(SftConfig before, SftConfig now);

// "train.steps: 40 -> 60" where a schedule ends with the steps, so that the learning rate takes another
// course; otherwise empty.
std::string ScheduleChange(const RlConfig& before, const RlConfig& now);
std::string ScheduleChange(const SftConfig& before, const SftConfig& now);

}  // namespace augur
