// The byte-level alphabet of GPT-2: each of the 256 bytes written as one printable character, so that a
// vocabulary of arbitrary bytes can stand in a JSON file as text.
#pragma once

#include <string>
#include <string_view>

namespace augur {

// The bytes that `token` (valid UTF-8) writes. Returns false, and leaves `bytes` unspecified, when a
// character is outside the alphabet.
bool BytesFromByteLevel(std::string_view token, std::string* bytes);

}  // namespace augur
