#include "formats/gguf_convert.h"

#include <unistd.h>

#include "formats/gguf_tensors.h"
#include "formats/gguf_tokenizer.h"
#include "formats/sizes.h"

namespace augur {
namespace {

namespace fs = std::filesystem;

// A directory that vanishes unless it is renamed to its place.
class BuildDirectory {
 public:
  explicit BuildDirectory(const fs::path& out)
      : out_(out), path_(fmt::format("{}.tmp.{}", out.string(), ::getpid())) {
    fs::create_directories(path_);
  }
  ~BuildDirectory() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  BuildDirectory(const BuildDirectory&) = delete;
  BuildDirectory& operator=(const BuildDirectory&) = delete;

  const fs::path& path() const { return path_; }

  void Publish() const {
    const fs::path old = fmt::format("{}.old.{}", out_.string(), ::getpid());
    const bool replaces = fs::exists(out_);
    if (replaces) fs::rename(out_, old);
    fs::rename(path_, out_);
    if (replaces) fs::remove_all(old);
  }

 private:
  const fs::path out_;
  const fs::path path_;
};

void CheckOutput(const fs::path& out, bool force) {
  if (!fs::exists(out)) return;
  if (!fs::is_directory(out)) throw Error(out.string(), "is a file", "name a directory for the model");
  if (fs::is_empty(out)) return;
  if (!force)
    throw Error(out.string(), "the directory is not empty", "name another, or replace it with --force");
  // --force must not be able to erase a home directory by a slip of the pen.
  if (!fs::exists(out / "config.json")) {
    throw Error(out.string(), "holds other files than a model", "--force replaces model directories only");
  }
}

void CheckSpace(const fs::path& directory, uint64_t needed) {
  const uint64_t available = fs::space(directory).available;
  if (available >= needed) return;
  throw Error(directory.string(),
              fmt::format("the model needs {} MB but the disk has {} MB left", needed >> 20, available >> 20),
              "free some disk space, or halve the size with --dtype bf16");
}

uint64_t CountValues(const std::vector<TensorSource>& sources) {
  uint64_t count = 0;
  for (const TensorSource& source : sources) count += *ElementCount(source.shape);
  return count;
}

ConvertResult Convert(const GgufFile& file, const fs::path& out, const ConvertOptions& options) {
  const GgufMetadata metadata(file.content(), file.where());
  const GgufModel model = ReadGgufModel(file.content(), metadata);
  const auto tokenizer =
      options.no_tokenizer ? std::nullopt : ReadGgufTokenizer(metadata, model, options.pre);
  uint64_t done = 0, total = 0;
  auto sources = GgufSources(file.content(), model, options.dtype, file.where(), [&](uint64_t values) {
    done += values;
    options.progress(done, total);
  });
  total = CountValues(sources);
  const ConvertResult result{sources.size(), total, tokenizer.has_value()};

  const BuildDirectory build(out);
  CheckSpace(build.path(),
             total * DTypeSize(options.dtype) + (tokenizer ? tokenizer->tokenizer_json.size() : 0));
  WriteFileAtomically(build.path() / "config.json", ConfigJson(model, options.dtype));
  WriteFileAtomically(build.path() / "generation_config.json", GenerationConfigJson(model));
  if (tokenizer) {
    WriteFileAtomically(build.path() / "tokenizer.json", tokenizer->tokenizer_json);
    WriteFileAtomically(build.path() / "tokenizer_config.json", tokenizer->tokenizer_config_json);
  }
  WriteSafetensors(build.path() / "model.safetensors", std::move(sources), {{"format", "pt"}});
  build.Publish();
  return result;
}

}  // namespace

ConvertResult ConvertGguf(const fs::path& gguf, const fs::path& out, const ConvertOptions& options) {
  const GgufFile file(gguf);
  try {
    // Without a trailing slash, so that the temporary directory stands next to `out` and not inside it.
    fs::path place = fs::absolute(out).lexically_normal();
    if (!place.has_filename()) place = place.parent_path();
    CheckOutput(place, options.force);
    return Convert(file, place, options);
  } catch (const fs::filesystem_error& error) {
    throw Error(out.string(), error.code().message(), "check the path and its permissions");
  }
}

}  // namespace augur
