#include "base/python.h"

#include <filesystem>
#include <utility>

#include "base/error.h"

namespace augur {
namespace {

PythonHost this_python;

}  // namespace

void SetPython(PythonHost python) { this_python = std::move(python); }

std::vector<std::string> PythonScript(std::string_view script, std::vector<std::string> arguments,
                                      std::string_view where, const std::string& interpreter) {
  const std::string& python = interpreter.empty() ? this_python.interpreter : interpreter;
  if (python.empty())
    throw Error(where, "needs Python, and Augur was started without one", "run python -m augur");
  std::vector<std::string> command = {python};
  // Its imports do not look into the package, which has a trl, a verl and a vllm of its own. Pythons before
  // 3.11, which a user may name, lack the flag.
  if (interpreter.empty()) command.emplace_back("-P");
  command.push_back((std::filesystem::path(this_python.package) / script).string());
  command.insert(command.end(), std::make_move_iterator(arguments.begin()),
                 std::make_move_iterator(arguments.end()));
  return command;
}

}  // namespace augur
