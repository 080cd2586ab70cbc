// Appending to the line files of a run directory.
#pragma once

#include <filesystem>
#include <string_view>

namespace augur {

// Appends whole lines; where the file ends in the middle of a line, as a killed process may leave it, a line
// break goes first, so that only that line is lost. Throws Error naming the path.
void AppendLines(const std::filesystem::path& path, std::string_view lines);

}  // namespace augur
