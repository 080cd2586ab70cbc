#include "formats/gguf_tensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/utf8.h"
#include "formats/dequantize.h"
#include "formats/float16.h"

namespace augur {
namespace {

// A tensor the model needs: both names, its shape, and, for llama's queries and keys, over how many heads its
// rows are interleaved.
struct Wanted {
  std::string gguf, hf;
  std::vector<int64_t> shape;
  int64_t interleaved_heads = 0;
};

std::vector<Wanted> LayerTensors(const GgufModel& m, int64_t layer) {
  const std::string gguf = fmt::format("blk.{}.", layer), hf = fmt::format("model.layers.{}.", layer);
  std::vector<Wanted> wanted;
  const auto add = [&](std::string_view from, std::string_view to, std::vector<int64_t> shape,
                       int64_t heads = 0) {
    wanted.push_back({gguf + std::string(from), hf + std::string(to), std::move(shape), heads});
  };
  const int64_t queries = m.heads * m.head_dim, keys = m.kv_heads * m.head_dim;
  const bool llama = m.architecture == GgufArchitecture::kLlama;
  add("attn_norm.weight", "input_layernorm.weight", {m.hidden});
  add("attn_q.weight", "self_attn.q_proj.weight", {queries, m.hidden}, llama ? m.heads : 0);
  add("attn_k.weight", "self_attn.k_proj.weight", {keys, m.hidden}, llama ? m.kv_heads : 0);
  add("attn_v.weight", "self_attn.v_proj.weight", {keys, m.hidden});
  add("attn_output.weight", "self_attn.o_proj.weight", {m.hidden, queries});
  if (m.attention_bias || m.architecture == GgufArchitecture::kQwen2) {
    add("attn_q.bias", "self_attn.q_proj.bias", {queries}, llama ? m.heads : 0);
    add("attn_k.bias", "self_attn.k_proj.bias", {keys}, llama ? m.kv_heads : 0);
    add("attn_v.bias", "self_attn.v_proj.bias", {keys});
  }
  if (m.attention_bias) add("attn_output.bias", "self_attn.o_proj.bias", {m.hidden});
  if (m.architecture == GgufArchitecture::kQwen3) {
    add("attn_q_norm.weight", "self_attn.q_norm.weight", {m.head_dim});
    add("attn_k_norm.weight", "self_attn.k_norm.weight", {m.head_dim});
  }
  add("ffn_norm.weight", "post_attention_layernorm.weight", {m.hidden});
  add("ffn_gate.weight", "mlp.gate_proj.weight", {m.intermediate, m.hidden});
  add("ffn_up.weight", "mlp.up_proj.weight", {m.intermediate, m.hidden});
  add("ffn_down.weight", "mlp.down_proj.weight", {m.hidden, m.intermediate});
  return wanted;
}

std::vector<Wanted> AllTensors(const GgufModel& m) {
  std::vector<Wanted> wanted = {{"token_embd.weight", "model.embed_tokens.weight", {m.vocab_size, m.hidden}},
                                {"output_norm.weight", "model.norm.weight", {m.hidden}}};
  if (!m.tied) wanted.push_back({"output.weight", "lm_head.weight", {m.vocab_size, m.hidden}});
  for (int64_t layer = 0; layer < m.layers; ++layer)
    std::ranges::move(LayerTensors(m, layer), std::back_inserter(wanted));
  return wanted;
}

// GGUF stores the two rotary halves of each llama head as alternating rows; Hugging Face one half after the
// other. The row of the file that holds row `row` of the model.
int64_t SourceRow(int64_t row, int64_t rows, int64_t heads) {
  if (heads == 0) return row;
  const int64_t head_dim = rows / heads, within = row % head_dim, half = head_dim / 2;
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
    const bool vector = wanted_.shape.size() == 1 && wanted_.interleaved_heads == 0;
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
        const auto source = static_cast<size_t>(SourceRow(row, rows, wanted_.interleaved_heads));
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
  if (static_cast<uint64_t>(model.layers) > content.tensors.size()) {
    throw Error(where, fmt::format("{} layers but only {} tensors", model.layers, content.tensors.size()),
                "the file is damaged; fetch it again");
  }
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
    if (w.shape.size() == 1 && w.interleaved_heads > 0 && InfoOf(found->second.type).block_values > 1) {
      throw Error(where, fmt::format("the bias {} is quantised", w.gguf), "convert the original model again");
    }
    sources.push_back({w.hf, dtype, w.shape, RowWriter(found->second, w, dtype, where, progress)});
  }
  RefuseExtra(content, wanted, where);
  return sources;
}

}  // namespace augur
