// Unicode normalisation form C, as the `tokenizers` package computes it.
#pragma once

#include <string>
#include <string_view>

namespace augur {

// True when `text` (valid UTF-8) is surely in form C already; false sends it through ToNfc. Fast.
bool IsSurelyNfc(std::string_view text);

// `text` (valid UTF-8) in form C by the data of Unicode 9, which `tokenizers` carries: characters that came
// later stay as they are. Takes time linear in the text but for the sorting of combining marks.
std::string ToNfc(std::string_view text);

}  // namespace augur
