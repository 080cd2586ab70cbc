// Models and data sets of the Hugging Face hub, found in its local cache or fetched, by python/augur/_hub.py.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace augur {

// Forgets what was found: within a command a name stands for one commit, and the next command looks again.
void ForgetHub();

// The directory of a model: `path` itself, or the snapshot of a model of the hub, hf://Org/Name, or Org/Name
// where there is no directory Org, each with @REVISION or without. Throws Error that names the files expected
// and where, if it can neither be found nor fetched.
std::string ModelDirectory(const std::string& path);

// The data files that an entry of data.train or eval.files stands for: itself, or the Parquet and JSONL files
// of the data set hf://Org/Name[@REVISION][/PATH], PATH being a configuration's name, a split's, both
// (main/test), a folder or a file. Throws Error that names the choices where several are meant, and what is
// missing.
std::vector<std::string> DataFiles(const std::string& path);

// "Org/Name" of such an address.
std::string HubDataName(const std::string& path);

// The same name with the commit that it now stands for, "Org/Name@COMMIT", or, unless it has another commit
// itself, with the one that it has in `before`. A path stays.
std::string PinModel(const std::string& path, std::span<const std::string> before = {});
std::string PinData(const std::string& path, std::span<const std::string> before = {});

// A model of the hub, as others name it. Nothing for a path.
struct HubModel {
  std::string name, revision;  // "Org/Name"; empty where none is given
};
std::optional<HubModel> AsHubModel(const std::string& path);

}  // namespace augur
