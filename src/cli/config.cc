// augur config: what a configuration file means, and every key there is.
#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/commands.h"
#include "config/read.h"
#include "config/write.h"

namespace augur {
namespace {

struct ConfigFlags {
  std::string file;
  std::vector<std::string> overrides;
  bool sft = false;
  bool markdown = false;
};

constexpr const char* kDocument = R"(# Configuration

A configuration is a YAML file of sections; each key stands beneath its section. On the command line `section.key=value`
changes one: `build/augur train recipes/quickstart.yaml train.steps=20 mask=clip`. Unknown keys, wrong types and values out of
range are errors that name the file and line. Paths may begin with `~/`; others are relative to the directory in which the
command runs, but for `extends` (and `base` of `augur compare`), which is relative to its file. `build/augur config FILE [key=value...]` prints a
configuration with every default filled in, as `build/augur train FILE --print-config` does; a run keeps it as `config.yaml`.

This page is made from the program's own field list: `build/augur config --markdown`.

## `augur train`
)";

constexpr const char* kSftHeading = R"(
## `augur sft`
The sections `run`, `model` (without `reference`), `lora`, `data`, `parallel`, `checkpoint` and `log` (without `wandb` and `tokens`) as above, and:
)";

std::string Markdown() {
  RlConfig rl;
  SftConfig sft;
  FieldList sft_list;
  sft.sft.Fields(sft_list);
  return kDocument + ToMarkdown(FieldsOf(rl)) + kSftHeading + ToMarkdown(sft_list);
}

void RunConfig(const ConfigFlags& options) {
  if (options.markdown) {
    fmt::print("{}", Markdown());
  } else if (options.file.empty()) {
    throw Error("augur config", "no FILE given", "name a YAML file, or ask for --help or --markdown");
  } else if (options.sft) {
    SftConfig config = ReadSftConfig(options.file, options.overrides);
    fmt::print("{}", ToYaml(FieldsOf(config)));
  } else {
    RlConfig config = ReadRlConfig(options.file, options.overrides);
    fmt::print("{}", ToYaml(FieldsOf(config)));
  }
}

}  // namespace

void AddConfigCommand(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("config", "Check a configuration and print it with every default filled in");
  const auto options = std::make_shared<ConfigFlags>();
  command->add_option("FILE", options->file, "A YAML file for `augur train` (or, with --sft, `augur sft`)");
  command->add_option("CHANGES", options->overrides,
                      "key=value pairs that change it, e.g. train.steps=20 mask=clip");
  command->add_flag("--sft", options->sft, "The file is for `augur sft`");
  command->add_flag("--markdown", options->markdown, "Print docs/configuration.md, made from the field list");
  RlConfig config;
  command->footer(HelpText(FieldsOf(config)));
  command->callback([options] { RunConfig(*options); });
}

}  // namespace augur
