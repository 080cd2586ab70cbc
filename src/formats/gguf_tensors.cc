#include "formats/gguf_tensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/utf8.h"
#include "family/layer_table.h"
#include "formats/dequantize.h"
#include "formats/float16.h"

namespace augur {
namespace {

// A tensor the model needs: both names, its shape, and, where its rows are interleaved, those of a head.
struct Wanted {
  std::string gguf, hf;
  std::vector<int64_t> shape;
  int64_t interleaved = 0;
};

void AddModule(const ModuleSpec& spec, const GgufModel& model, int64_t layer, std::vector<Wanted>* wanted) {
  for (const StoredModule& part : spec.parts) {
    const bool rotated = spec.slot == kQkv && &part != &spec.parts.back();
    const int64_t interleaved = rotated && model.family->gguf_interleaved ? model.config.head_dim : 0;
    const std::string gguf = fmt::format("blk.{}.{}", layer, part.gguf);
    const std::string hf = fmt::format("model.layers.{}.{}", layer, part.name);
    std::vector<int64_t> shape = {part.rows};
    if (spec.bias) wanted->push_back({gguf + ".bias", hf + ".bias", shape, interleaved});
    if (spec.role != Role::kNorm) shape.push_back(spec.in);
    wanted->push_back({gguf + ".weight", hf + ".weight", std::move(shape), interleaved});
  }
}

std::vector<Wanted> AllTensors(const GgufModel& model) {
  const ModelConfig& config = model.config;
  std::vector<Wanted> wanted;
  const auto add = [&](const OuterModule& module, std::vector<int64_t> shape) {
    wanted.push_back(
        {fmt::format("{}.weight", module.gguf), fmt::format("{}.weight", module.name), std::move(shape)});
  };
  add(kEmbeddingModule, {config.vocab_size, config.hidden_size});
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    for (const ModuleSpec& spec : LayerTable(config, layer)) AddModule(spec, model, layer, &wanted);
  }
  add(kFinalNormModule, {config.hidden_size});
  if (!config.tied_head) add(kHeadModule, {config.vocab_size, config.hidden_size});
  return wanted;
}

// Interleaved are the two rotary halves of each head of `head_dim` rows; Hugging Face has one half after the
// other. The row of the file that holds row `row` of the model; with 0 the same.
int64_t SourceRow(int64_t row, int64_t head_dim) {
  if (head_dim == 0) return row;
  const int64_t within = row % head_dim, half = head_dim / 2;
  return row - within + (within % half) * 2 + within / half;
}

void Narrow(std::span<const float> values, DType dtype, std::vector<uint16_t>* out) {
  out->resize(values.size());
  std::ranges::transform(values, out->begin(), dtype == DType::kF16 ? FloatToHalf : FloatToBfloat16);
}

class RowWriter {
 public:
  RowWriter(const GgufTensor& tensor, Wanted wanted, DType dtype, std::string where, ConvertProgress progress)
      : tensor_(tensor),
        wanted_(std::move(wanted)),
        dtype_(dtype),
        where_(std::move(where)),
        progress_(std::move(progress)) {}

  void operator()(const ByteSink& sink) const {
    const bool vector = wanted_.shape.size() == 1 && wanted_.interleaved == 0;
    const int64_t rows = vector ? 1 : wanted_.shape[0];
    const int64_t columns = vector ? wanted_.shape[0] : wanted_.shape.size() == 1 ? 1 : wanted_.shape[1];
    const GgmlTypeInfo& info = InfoOf(tensor_.type);
    const size_t row_bytes = static_cast<size_t>(columns) / info.block_values * info.block_bytes;
    const int64_t batch = std::clamp<int64_t>(kBatchValues / columns, 1, rows);
    std::vector<float> values;
    for (int64_t begin = 0; begin < rows; begin += batch) {
      const int64_t end = std::min(rows, begin + batch);
      values.resize(static_cast<size_t>((end - begin) * columns));
      for (int64_t row = begin; row < end; ++row) {
        const auto source = static_cast<size_t>(SourceRow(row, wanted_.interleaved));
        Dequantize(tensor_.type, tensor_.bytes.subspan(source * row_bytes, row_bytes),
                   std::span(values).subspan(static_cast<size_t>((row - begin) * columns),
                                             static_cast<size_t>(columns)));
      }
      Emit(values, sink);
      progress_(values.size());
    }
  }

 private:
  static constexpr int64_t kBatchValues = 1 << 18;  // 1 MiB of float32

  void Emit(std::span<const float> values, const ByteSink& sink) const {
    if (dtype_ == DType::kF32) return sink(std::as_bytes(values));
    if (dtype_ == DType::kF16) CheckRange(values);
    std::vector<uint16_t> narrow;
    Narrow(values, dtype_, &narrow);
    sink(std::as_bytes(std::span(narrow)));
  }

  void CheckRange(std::span<const float> values) const {
    const auto too_large = std::ranges::find_if(
        values, [](float v) { return std::isfinite(v) && (FloatToHalf(v) & 0x7FFF) == 0x7C00; });
    if (too_large == values.end()) return;
    throw Error(where_, fmt::format("{} in tensor {} is too large for fp16", *too_large, wanted_.gguf),
                "use --dtype bf16 or fp32");
  }

  const GgufTensor& tensor_;
  const Wanted wanted_;
  const DType dtype_;
  const std::string where_;
  const ConvertProgress progress_;
};

// A tensor in the file that the model has no place for.
void RefuseExtra(const GgufContent& content, const std::vector<Wanted>& wanted, const std::string& where) {
  std::set<std::string_view> known = {"rope_freqs.weight"};
  for (const Wanted& w : wanted) known.insert(w.gguf);
  for (const auto& [name, tensor] : content.tensors) {
    if (known.contains(name)) continue;
    throw Error(where, fmt::format("tensor {} has no place in this architecture", Quoted(name)),
                "augur convert would lose it; the file holds a model of another kind");
  }
}

}  // namespace

std::vector<TensorSource> GgufSources(const GgufContent& content, const GgufModel& model, DType dtype,
                                      const std::string& where, ConvertProgress progress) {
  const std::vector<Wanted> wanted = AllTensors(model);
  std::vector<TensorSource> sources;
  for (const Wanted& w : wanted) {
    const auto found = content.tensors.find(w.gguf);
    if (found == content.tensors.end()) {
      throw Error(where, fmt::format("tensor {} is missing", w.gguf),
                  "the file is incomplete; fetch it again");
    }
    if (found->second.shape != w.shape) {
      throw Error(where,
                  fmt::format("tensor {} has shape {}, not {} as the metadata says", w.gguf,
                              found->second.shape, w.shape),
                  "the file is damaged; fetch it again");
    }
    if (w.shape.size() == 1 && w.interleaved > 0 && InfoOf(found->second.type).block_values > 1) {
      throw Error(where, fmt::format("the bias {} is quantised", w.gguf), "convert the original model again");
    }
    sources.push_back({w.hf, dtype, w.shape, RowWriter(found->second, w, dtype, where, progress)});
  }
  RefuseExtra(content, wanted, where);
  return sources;
}

}  // namespace augur
