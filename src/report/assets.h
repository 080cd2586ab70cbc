// The files of src/report/page/ and the chart library, put into the program by cmake/assets.cmake.
#pragma once

#include <string_view>

namespace augur {

// HTML with the marks {{connect}}, {{style_hash}}, {{script_hashes}}, {{style}}, {{data}}, {{charts}} and
// {{script}}, in this order.
std::string_view PageTemplate();
std::string_view PageStyle();
std::string_view PageScript();
// Chart.js with its licence notice; empty in a build that did not find it (Debian: libjs-chart.js).
std::string_view ChartLibrary();

// 'sha256-...' of each, as the page's content security policy names them.
std::string_view PageStyleHash();
std::string_view PageScriptHash();
std::string_view ChartLibraryHash();

}  // namespace augur
