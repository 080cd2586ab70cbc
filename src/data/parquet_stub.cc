#include "base/error.h"
#include "data/parquet.h"

namespace augur {

void ForEachParquetRow(const std::filesystem::path& path, const std::function<void(const Json&, size_t)>&) {
  throw Error(path.string(), "this build of Augur reads no Parquet",
              "install pyarrow in the Python named by AUGUR_PYTHON and build again, or convert the file to "
              "JSONL (pandas.read_parquet(F).to_json(G, orient=\"records\", lines=True))");
}

}  // namespace augur
