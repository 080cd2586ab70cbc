// Recognising a Jinja chat template without running it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace augur {

// A number equal for templates that differ in layout only (white space, quotes, a['b'] or a.b, comments) or
// in the default system line of ChatML, and different for others.
struct TemplateIdentity {
  uint64_t fingerprint = 0;
  std::string default_system;  // the line that was left out of the fingerprint; empty if there is none
};

TemplateIdentity IdentifyTemplate(std::string_view jinja);

}  // namespace augur
