#include <fmt/format.h>

#include <iostream>
#include <memory>
#include <string>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/json_lines.h"
#include "reward/verifier.h"

namespace augur {
namespace {

const Json& FindAnswer(const Json& line) {
  if (const auto found = line.find("answer"); found != line.end()) return *found;
  if (const auto found = line.find("ground_truth"); found != line.end()) return *found;
  throw Error("", "the key \"answer\" is missing", "add it (\"ground_truth\" is read as well)");
}

void Verify(const std::string& kind) {
  const Verifier& verifier = FindVerifier(kind, "augur verify");
  std::ios::sync_with_stdio(false);
  ConvertJsonLines(std::cin, std::cout, [&](const Json& line) {
    return Json{{"score", verifier.score(RequireString(line, "response", ""), FindAnswer(line))}};
  });
}

std::string Footer() {
  std::string text =
      "Reads {\"response\": ..., \"answer\": ...} a line from standard input and writes {\"score\": ...} a "
      "line.\nThe answer is text or a number; \"ground_truth\" is read where \"answer\" is absent.\n\n"
      "KIND is one of\n";
  for (const Verifier& v : Verifiers()) {
    text += fmt::format("  {:<16} {} ({} or {})\n", v.name, v.summary, v.right, v.wrong);
  }
  return text;
}

}  // namespace

void AddVerifyCommand(CLI::App& app) {
  CLI::App* command = app.add_subcommand("verify", "Score responses against their answers");
  const auto kind = std::make_shared<std::string>();
  command->add_option("KIND", *kind, "how to score; see below")->required();
  command->footer(Footer());
  command->callback([kind] { Verify(*kind); });
}

}  // namespace augur
