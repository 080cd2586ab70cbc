// From Oniguruma's notation to PCRE2's.
#pragma once

#include <string>
#include <string_view>

namespace augur {

// The PCRE2 pattern (for PCRE2_UTF and PCRE2_UCP) equal to the Oniguruma pattern. Throws Error at `where`
// naming the first construct that means something else in PCRE2 or that no known tokenizer uses.
std::string TranslatePattern(std::string_view pattern, std::string_view where);

}  // namespace augur
