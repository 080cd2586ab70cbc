// What one seed of an analysis found, kept in a file, so that a study goes on where it was stopped and
// several processes share one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "analysis/study.h"

namespace augur {

struct SeedRecord {
  int64_t sequences = 0;              // responses of the batch
  bool full_vocabulary = false;       // whether predictions from the whole vocabulary are among the criteria
  std::vector<SeedOutcome> outcomes;  // one per divergence
};

std::filesystem::path SeedFile(const std::filesystem::path& folder, int64_t seed);
void WriteSeedRecord(const std::filesystem::path& folder, int64_t seed, const SeedRecord& record);
SeedRecord ReadSeedRecord(const std::filesystem::path& folder, int64_t seed);

}  // namespace augur
