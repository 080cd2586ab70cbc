#include "cli/commands.h"

namespace augur {

void AddDoctorCommand(CLI::App& app) {
  app.add_subcommand("doctor", "Show what this machine and this build have");
}

}  // namespace augur
