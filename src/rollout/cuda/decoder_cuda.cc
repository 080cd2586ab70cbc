#include "rollout/cuda/decoder_cuda.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <cstring>
#include <tuple>

#include "kernels/decode/decode_attention.h"
#include "kernels/decode/take_tokens.h"
#include "ops/device.h"
#include "ops/typed_data.h"
#include "rollout/sample_buffer.h"

namespace augur {
namespace {

// Batches are padded up to one of these, each with a graph of its own.
int64_t BucketOf(int64_t rows) {
  for (const int64_t bucket : {1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256}) {
    if (rows <= bucket) return bucket;
  }
  return (rows + 127) / 128 * 128;
}

int64_t DoubleUntil(int64_t start, int64_t least) {
  while (start < least) start *= 2;
  return start;
}

auto Fields(const SampleSettings& s) {
  return std::tie(s.vocab_size, s.stride, s.temperature, s.support, s.top_k, s.top_p, s.min_p);
}

bool SameDraw(const SampleDraw& a, const SampleDraw& b) {
  return a.key == b.key && a.counter_low == b.counter_low && a.counter_high == b.counter_high;
}

int64_t PagesFor(int64_t tokens) { return (tokens + kCudaPageTokens - 1) / kCudaPageTokens; }

}  // namespace

bool CudaDecoder::Key::operator<(const Key& other) const {
  return std::tuple_cat(std::tie(rows, splits), Fields(settings)) <
         std::tuple_cat(std::tie(other.rows, other.splits), Fields(other.settings));
}

CudaDecoder::CudaDecoder(const CudaWeights& weights, const CudaForward& forward, const CudaPages& pages,
                         int64_t routing_width)
    : weights_(weights),
      forward_(forward),
      pages_(pages),
      routing_width_(routing_width),
      capture_stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/true)) {}

void CudaDecoder::DropGraphs() {
  DropAhead();
  if (graphs_.empty()) return;
  c10::cuda::getCurrentCUDAStream().synchronize();
  graphs_.clear();
}

void CudaDecoder::Decode(std::span<const DecodeSequence> sequences, std::span<const SampleDraw> draws,
                         const SampleSettings& settings, const SampleResults& out, uint8_t* routing) {
  const bool was_ahead = ahead_ != nullptr;
  std::vector<int32_t> map;
  if (was_ahead) map = Match(*ahead_, sequences, draws, settings);
  std::unique_ptr<Step> current = std::move(ahead_);
  const bool guessed = !map.empty();
  if (!guessed) {
    std::vector<Row> rows;
    for (size_t i = 0; i < sequences.size(); ++i) {
      rows.push_back({sequences[i].token, -1, sequences[i].position, sequences[i].pages, draws[i]});
      map.push_back(static_cast<int32_t>(i));
    }
    current = Launch(std::move(rows), settings);
  }
  // After a wrong guess the next step waits for the host: where batches change all the time, guessing costs.
  if (guessed || !was_ahead) {
    std::vector<Row> next = NextRows(sequences, draws, map);
    if (!next.empty()) ahead_ = Launch(std::move(next), settings);
  }
  Slot& slot = slots_[current->slot];
  slot.done.synchronize();
  const SampleBuffer buffer{current->bucket, settings.columns()};
  const uint8_t* experts = ConstData<uint8_t>(slot.results) + buffer.bytes();
  for (size_t i = 0; i < map.size(); ++i) {
    buffer.Read(slot.results.data_ptr(), map[i], out, static_cast<int64_t>(i));
    std::copy_n(experts + map[i] * routing_width_, routing_width_,
                routing + static_cast<int64_t>(i) * routing_width_);
    if (ahead_ != nullptr) ahead_->rows[i].token = out.tokens[i];
  }
}

std::vector<int32_t> CudaDecoder::Match(const Step& step, std::span<const DecodeSequence> sequences,
                                        std::span<const SampleDraw> draws, const SampleSettings& settings) {
  if (Fields(step.settings) != Fields(settings)) return {};
  std::vector<int32_t> map;
  size_t r = 0;
  for (size_t i = 0; i < sequences.size(); ++i, ++r) {
    while (r < step.rows.size() && !SameDraw(step.rows[r].draw, draws[i])) ++r;
    if (r == step.rows.size()) return {};
    const Row& row = step.rows[r];
    const auto used = static_cast<size_t>(PagesFor(row.position + 1));
    const bool same =
        row.token == sequences[i].token && row.position == sequences[i].position &&
        sequences[i].pages.size() >= used &&
        std::ranges::equal(sequences[i].pages.first(used), std::span(step.pages[r]).first(used));
    if (!same) return {};
    map.push_back(static_cast<int32_t>(r));
  }
  return map;
}

std::vector<CudaDecoder::Row> CudaDecoder::NextRows(std::span<const DecodeSequence> sequences,
                                                    std::span<const SampleDraw> draws,
                                                    const std::vector<int32_t>& map) const {
  std::vector<Row> rows;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const DecodeSequence& sequence = sequences[i];
    const int32_t position = sequence.position + 1;
    if (PagesFor(position + 1) > static_cast<int64_t>(sequence.pages.size()) ||
        position >= weights_.model().config.max_positions) {
      return {};
    }
    SampleDraw draw = draws[i];
    ++draw.counter_high;  // its low half is the position in the response
    rows.push_back({0, map[i], position, sequence.pages, draw});
  }
  return rows;
}

std::unique_ptr<CudaDecoder::Step> CudaDecoder::Launch(std::vector<Row> rows,
                                                       const SampleSettings& settings) {
  auto step = std::make_unique<Step>();
  step->rows = std::move(rows);
  step->settings = settings;
  step->bucket = BucketOf(static_cast<int64_t>(step->rows.size()));
  step->slot = next_slot_;
  int64_t longest = 0, pages = 0;
  for (Row& row : step->rows) {
    longest = std::max<int64_t>(longest, row.position + 1);
    step->pages.emplace_back(row.pages.begin(), row.pages.begin() + PagesFor(row.position + 1));
    pages = std::max(pages, static_cast<int64_t>(step->pages.back().size()));
    row.pages = {};
  }
  Reserve(step->bucket, pages, settings.columns());
  const auto kv_heads = static_cast<int>(weights_.model().config.kv_heads);
  const Key key{step->bucket, DecodeAttentionSplits(step->bucket, kv_heads, longest), settings};
  const Captured& captured = Prepare(key);
  Slot& slot = slots_[step->slot];
  slot.done.synchronize();
  Upload(*step, &slot);
  if (captured.graph != nullptr) {
    captured.graph->replay();
  } else {
    Compute(key, captured);
  }
  const int64_t bytes = ResultBytes(step->bucket, settings.columns());
  slot.results.narrow(0, 0, bytes).copy_(results_.narrow(0, 0, bytes), /*non_blocking=*/true);
  slot.done.record();
  next_slot_ = 1 - next_slot_;
  return step;
}

int64_t CudaDecoder::ResultBytes(int64_t rows, int64_t columns) const {
  return SampleBuffer{rows, columns}.bytes() + rows * routing_width_;
}

void CudaDecoder::Upload(const Step& step, Slot* slot) {
  auto* inputs = Data<int32_t>(slot->inputs);
  auto* draws = reinterpret_cast<SampleDraw*>(inputs + DrawsAt());
  for (int64_t i = 0; i < step.bucket; ++i) {
    const bool used = i < static_cast<int64_t>(step.rows.size());
    const Row row = used ? step.rows[i] : Row{0, -1, -1, {}, {}};
    inputs[i] = row.token;
    inputs[SourceAt() + i] = row.source;
    inputs[PositionsAt() + i] = row.position;
    draws[i] = row.draw;
    draws[i].row = static_cast<int32_t>(i);
    if (used) std::ranges::copy(step.pages[i], inputs + TableAt() + i * table_width_);
  }
  const int64_t size = TableAt() + step.bucket * table_width_;
  inputs_.narrow(0, 0, size).copy_(slot->inputs.narrow(0, 0, size), /*non_blocking=*/true);
}

// Makes the buffers large enough; graphs that hold addresses of smaller ones are dropped.
void CudaDecoder::Reserve(int64_t rows, int64_t pages, int64_t columns) {
  if (rows <= most_rows_ && pages <= table_width_ && columns <= most_columns_) return;
  c10::cuda::getCurrentCUDAStream().synchronize();
  graphs_.clear();
  try {
    Grow(std::max(most_rows_, rows), DoubleUntil(std::max<int64_t>(table_width_, 16), pages),
         std::max(most_columns_, columns));
  } catch (...) {
    most_rows_ = table_width_ = most_columns_ = 0;  // some of the buffers are smaller than they say
    throw;
  }
}

void CudaDecoder::Grow(int64_t rows, int64_t table_width, int64_t columns) {
  const at::Tensor before = results_;
  const bool more_rows = rows > most_rows_;
  most_rows_ = rows;
  table_width_ = table_width;
  most_columns_ = columns;
  const auto bytes = weights_.model().embedding.options().dtype(at::kByte);
  const auto pinned = at::TensorOptions().pinned_memory(true);
  const int64_t size = TableAt() + most_rows_ * table_width_;
  inputs_ = at::zeros({size}, bytes.dtype(at::kInt));
  results_ = at::zeros({ResultBytes(most_rows_, most_columns_)}, bytes);
  if (before.defined()) {  // a step may take its tokens from there
    const int64_t kept = std::min(before.numel(), results_.numel());
    results_.narrow(0, 0, kept).copy_(before.narrow(0, 0, kept));
  }
  for (Slot& slot : slots_) {
    slot.inputs = at::empty({size}, pinned.dtype(at::kInt));
    const at::Tensor old = slot.results;
    slot.results = at::empty({results_.numel()}, pinned.dtype(at::kByte));
    if (old.defined()) slot.results.narrow(0, 0, old.numel()).copy_(old);  // of a step not yet read
  }
  if (!more_rows) return;
  memory_ = std::make_unique<CudaRows>(weights_, most_rows_);
  logits_ = at::empty({most_rows_, weights_.model().config.vocab_size}, bytes.dtype(at::kFloat));
}

CudaDecoder::Captured& CudaDecoder::Prepare(const Key& key) {
  const auto found = graphs_.find(key);
  if (found != graphs_.end()) return found->second;
  Captured captured;  // among the others once it is whole: memory may run out on the way
  const ModelConfig& config = weights_.model().config;
  const auto bytes = inputs_.options().dtype(at::kByte);
  captured.attention_workspace =
      at::zeros({DecodeAttentionWorkspaceBytes(key.rows, static_cast<int>(config.heads),
                                               static_cast<int>(config.head_dim), key.splits)},
                bytes);
  captured.sample_workspace = at::empty({SampleSupportWorkspaceBytes(key.rows, key.settings)}, bytes);
  if (forward_.waits()) return graphs_[key] = std::move(captured);

  // Once outside the graph, on rows without tokens, so that libraries have what they need; then the capture,
  // for which work must be on another stream than the default one.
  const at::Tensor results = results_.clone();
  inputs_.zero_();
  inputs_.narrow(0, PositionsAt(), most_rows_).fill_(-1);
  c10::cuda::getCurrentCUDAStream().synchronize();
  {
    const c10::cuda::CUDAStreamGuard guard(capture_stream_);
    Compute(key, captured);
    capture_stream_.synchronize();
    captured.graph = std::make_unique<at::cuda::CUDAGraph>();
    captured.graph->capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    try {
      Compute(key, captured);
    } catch (...) {
      captured.graph->capture_end();  // or the stream would record what comes next
      throw;
    }
    captured.graph->capture_end();
  }
  results_.copy_(results);
  return graphs_[key] = std::move(captured);
}

void CudaDecoder::Compute(const Key& key, const Captured& captured) {
  const auto ints = [&](int64_t begin) { return inputs_.narrow(0, begin, key.rows); };
  CudaBatch batch;
  batch.tokens = ints(0);
  batch.positions = ints(PositionsAt());
  batch.page_table = inputs_.narrow(0, TableAt(), key.rows * table_width_).view({key.rows, table_width_});
  batch.splits = key.splits;
  batch.attention_workspace = captured.attention_workspace;
  const SampleBuffer buffer{key.rows, key.settings.columns()};
  const SampleResults results = buffer.At(results_.data_ptr());
  if (routing_width_ > 0) {
    batch.routing = results_.narrow(0, buffer.bytes(), key.rows * routing_width_).view({key.rows, -1});
  }
  void* stream = CurrentStream(inputs_);
  PartTimer* const parts = forward_.parts();
  if (parts != nullptr) parts->BeginStep(key.rows);
  TakeTokensCuda(key.rows, ConstData<int32_t>(ints(SourceAt())), results.tokens, Data<int32_t>(batch.tokens),
                 stream);
  const at::Tensor hidden = forward_.Run(batch, pages_, *memory_);
  at::Tensor logits = logits_.narrow(0, 0, key.rows);
  forward_.Head(hidden, logits);
  MarkPart(parts, "head product");
  SampleSupportCuda(ElementType::kFloat, logits.data_ptr(),
                    reinterpret_cast<const SampleDraw*>(ConstData<int32_t>(inputs_) + DrawsAt()), key.rows,
                    key.settings, results, captured.sample_workspace.data_ptr(), stream);
  MarkPart(parts, "sampling");
  if (parts != nullptr) parts->EndStep();
}

}  // namespace augur
