// The Python that helps the engine: reward functions, Parquet files and what is fetched from a hub run in
// processes of their own.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace augur {

struct PythonHost {
  std::string interpreter;  // the one Augur runs in, or was set up with
  std::string package;      // the directory python/augur
};

void SetPython(PythonHost python);

// The command that runs a script of the package. Throws Error at `where` where no Python is known.
std::vector<std::string> PythonScript(std::string_view script, std::vector<std::string> arguments,
                                      std::string_view where, const std::string& interpreter = "");

}  // namespace augur
