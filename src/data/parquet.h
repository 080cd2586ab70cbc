// Parquet files, read by pyarrow in a process of its own (python/augur/_parquet.py).
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>

#include "base/json.h"

namespace augur {

// Calls `visit` with each row as a JSON object and its number, from 1. Lists become arrays, structs objects,
// nulls and numbers that are not finite null; columns of types without a counterpart in JSON (binary, dates,
// decimals) are left out, which is told. Throws Error naming the file for one that is damaged, and the row
// for text that is not UTF-8.
void ForEachParquetRow(const std::filesystem::path& path,
                       const std::function<void(const Json& row, size_t number)>& visit);

}  // namespace augur
