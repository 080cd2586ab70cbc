#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/layer/attention.h"
#include "kernels/layer/attention_rows.h"
#include "kernels/layer/small_gemm.h"
#include "kernels/simd/float_lanes.h"
#include "kernels/simd/simd.h"

namespace augur {
namespace {

constexpr int kKeyBlock = 64;
constexpr int kRowTarget = 64;  // query rows of a block, all heads of a group together
constexpr int kLongestRow = 256;

// The queries of one block: `tokens` of one sequence from `begin`, for every head of one key/value group. Row
// h * tokens + i is head h of the group at token begin + i.
struct QueryBlock {
  int64_t begin;
  int tokens;
};

struct Group {
  int64_t start;   // first token of the sequence in the packed array
  int64_t length;  // of the sequence
  int kv_head;
  int first_head;
  int heads;
};

int QueriesPerBlock(const AttentionShape& shape) {
  return std::max(16, kRowTarget / (shape.heads / shape.kv_heads));
}

Group MakeGroup(const AttentionShape& shape, int64_t sequence, int kv_head) {
  const int heads = shape.heads / shape.kv_heads;
  const int64_t start = shape.cu_seqlens[sequence];
  return {start, shape.cu_seqlens[sequence + 1] - start, kv_head, kv_head * heads, heads};
}

template <typename T>
void LoadQueries(const AttentionShape& shape, const Group& group, const QueryBlock& block,
                 TokenRows<const T> rows, float scale, float* to) {
  const int width = RoundUpToPanel(shape.head_dim);
  const auto load = AttentionRowsOf<T>().load;
  for (int h = 0; h < group.heads; ++h) {
    for (int i = 0; i < block.tokens; ++i) {
      const T* from = rows.data + (group.start + block.begin + i) * rows.stride +
                      static_cast<int64_t>(group.first_head + h) * shape.head_dim;
      load(from, shape.head_dim, scale, width, to + static_cast<int64_t>(h * block.tokens + i) * width);
    }
  }
}

template <typename T>
const T* KeyRow(const AttentionShape& shape, const Group& group, TokenRows<const T> rows, int64_t token) {
  return rows.data + (group.start + token) * rows.stride +
         static_cast<int64_t>(group.kv_head) * shape.head_dim;
}

// Keys (or values) begin .. begin + count as [count, head_dim].
template <typename T>
void LoadKeys(const AttentionShape& shape, const Group& group, TokenRows<const T> rows, int64_t begin,
              int count, float* to) {
  const int width = RoundUpToPanel(shape.head_dim);
  const auto load = AttentionRowsOf<T>().load;
  for (int j = 0; j < count; ++j) {
    load(KeyRow(shape, group, rows, begin + j), shape.head_dim, 1.0f, width,
         to + static_cast<int64_t>(j) * width);
  }
}

// The same as [head_dim, kKeyBlock], zero beyond count up to a whole panel.
template <typename T>
void LoadKeysTransposed(const AttentionShape& shape, const Group& group, TokenRows<const T> rows,
                        int64_t begin, int count, float* to) {
  const auto load = AttentionRowsOf<T>().load;
  float row[kLongestRow];
  for (int j = 0; j < count; ++j) {
    const T* from = KeyRow(shape, group, rows, begin + j);
    for (int first = 0; first < shape.head_dim; first += kLongestRow) {
      const int width = std::min(kLongestRow, shape.head_dim - first);
      load(from + first, width, 1.0f, width, row);
      for (int d = 0; d < width; ++d) to[(first + d) * kKeyBlock + j] = row[d];
    }
  }
  for (int j = count; j < RoundUpToPanel(count); ++j) {
    for (int d = 0; d < shape.head_dim; ++d) to[d * kKeyBlock + j] = 0;
  }
}

// How many of the keys key_begin .. key_begin + count the query at `token` may see.
int Visible(int64_t token, int64_t key_begin, int count) {
  return static_cast<int>(std::clamp<int64_t>(token + 1 - key_begin, 0, count));
}

AUGUR_CPU_CLONES
float RowMax(const float* row, int n, float start) {
  float most = start;
#pragma omp simd reduction(max : most)
  for (int j = 0; j < n; ++j) most = row[j] > most ? row[j] : most;
  return most;
}

// row[j] = exp(row[j] - shift), zero from `visible` to `width`, a whole number of panels; returns the sum.
AUGUR_CPU_CLONES
float ExpRow(float* row, int visible, int width, float shift) {
  Floats sum{};
  for (int j = 0; j < visible; j += kFloats) {
    Floats e = VectorExp(LoadLanes(row + j, kFloats) - shift);
    for (int lane = visible - j; lane < kFloats; ++lane) e[lane] = 0;
    StoreLanes(e, row + j, kFloats);
    sum += e;
  }
  for (int j = visible; j < width; ++j) row[j] = 0;
  return SumOf(sum);
}

// change[j] = weight[j] * (change[j] - delta): the softmax's backward for one row.
AUGUR_CPU_CLONES
void SoftmaxGradRow(const float* weight, float* change, int width, float delta) {
#pragma omp simd
  for (int j = 0; j < width; ++j) change[j] = weight[j] * (change[j] - delta);
}

struct Task {
  int64_t sequence;
  int kv_head;
  int64_t query_begin;
};

std::vector<Task> ForwardTasks(const AttentionShape& shape) {
  std::vector<Task> tasks;
  const int step = QueriesPerBlock(shape);
  for (int64_t s = 0; s < shape.sequences; ++s) {
    const int64_t length = shape.cu_seqlens[s + 1] - shape.cu_seqlens[s];
    for (int g = 0; g < shape.kv_heads; ++g) {
      for (int64_t begin = 0; begin < length; begin += step) tasks.push_back({s, g, begin});
    }
  }
  return tasks;
}

// One thread's blocks of the forward.
struct ForwardScratch {
  explicit ForwardScratch(const AttentionShape& shape) {
    const int64_t width = RoundUpToPanel(shape.head_dim);
    const int64_t rows = static_cast<int64_t>(QueriesPerBlock(shape)) * (shape.heads / shape.kv_heads);
    query.resize(rows * width);
    out.resize(rows * width);
    scores.resize(rows * kKeyBlock);
    keys.resize(shape.head_dim * kKeyBlock);
    values.resize(kKeyBlock * width);
    most.resize(rows);
    sum.resize(rows);
  }
  std::vector<float> query, out, scores, keys, values, most, sum;
};

// Folds one block of keys into the running softmax of every row.
void AbsorbKeys(const Group& group, const QueryBlock& block, int64_t key_begin, int count, int width,
                ForwardScratch* x) {
  const int padded = RoundUpToPanel(count);
  for (int r = 0; r < group.heads * block.tokens; ++r) {
    float* row = x->scores.data() + static_cast<int64_t>(r) * kKeyBlock;
    const int visible = Visible(block.begin + r % block.tokens, key_begin, count);
    const float most = RowMax(row, visible, x->most[r]);
    const float keep = x->most[r] == most ? 1.0f : std::exp(x->most[r] - most);
    x->sum[r] = x->sum[r] * keep + ExpRow(row, visible, padded, most);
    x->most[r] = most;
    if (keep != 1.0f) {
      float* out = x->out.data() + static_cast<int64_t>(r) * width;
      for (int d = 0; d < width; ++d) out[d] *= keep;
    }
  }
  SmallGemm(group.heads * block.tokens, width, count, x->scores.data(), kKeyBlock, 1, x->values.data(), width,
            x->out.data(), width, true);
}

template <typename T>
void StoreOutputs(const AttentionShape& shape, const Group& group, const QueryBlock& block,
                  const ForwardScratch& x, TokenRows<T> out, float* lse) {
  const int width = RoundUpToPanel(shape.head_dim);
  const auto store = AttentionRowsOf<T>().store;
  for (int r = 0; r < group.heads * block.tokens; ++r) {
    const int64_t token = group.start + block.begin + r % block.tokens;
    const int head = group.first_head + r / block.tokens;
    T* to = out.data + token * out.stride + static_cast<int64_t>(head) * shape.head_dim;
    store(x.out.data() + static_cast<int64_t>(r) * width, shape.head_dim, 1.0f / x.sum[r], to);
    lse[token * shape.heads + head] = x.most[r] + std::log(x.sum[r]);
  }
}

template <typename T>
void ForwardTask(const AttentionShape& shape, const Task& task, TokenRows<const T> q, TokenRows<const T> k,
                 TokenRows<const T> v, TokenRows<T> out, float* lse, ForwardScratch* x) {
  const Group group = MakeGroup(shape, task.sequence, task.kv_head);
  const int64_t left = group.length - task.query_begin;
  const QueryBlock block{task.query_begin, static_cast<int>(std::min<int64_t>(left, QueriesPerBlock(shape)))};
  const int width = RoundUpToPanel(shape.head_dim);
  const int rows = group.heads * block.tokens;
  LoadQueries(shape, group, block, q, 1.0f / std::sqrt(static_cast<float>(shape.head_dim)), x->query.data());
  std::fill_n(x->out.begin(), static_cast<int64_t>(rows) * width, 0.0f);
  std::fill_n(x->most.begin(), rows, -std::numeric_limits<float>::infinity());
  std::fill_n(x->sum.begin(), rows, 0.0f);
  const int64_t end = block.begin + block.tokens;
  for (int64_t begin = 0; begin < end; begin += kKeyBlock) {
    const int count = static_cast<int>(std::min<int64_t>(kKeyBlock, end - begin));
    LoadKeysTransposed(shape, group, k, begin, count, x->keys.data());
    LoadKeys(shape, group, v, begin, count, x->values.data());
    SmallGemm(rows, RoundUpToPanel(count), shape.head_dim, x->query.data(), width, 1, x->keys.data(),
              kKeyBlock, x->scores.data(), kKeyBlock, false);
    AbsorbKeys(group, block, begin, count, width, x);
  }
  StoreOutputs(shape, group, block, *x, out, lse);
}

// One thread's blocks of the backward. grad_query spans the whole sequence, for all heads of a group, laid
// out block after block as the query blocks are.
struct BackwardScratch {
  explicit BackwardScratch(const AttentionShape& shape) {
    const int64_t width = RoundUpToPanel(shape.head_dim);
    const int64_t rows = static_cast<int64_t>(QueriesPerBlock(shape)) * (shape.heads / shape.kv_heads);
    query.resize(rows * width);
    grad_out.resize(rows * width);
    weight.resize(rows * kKeyBlock);
    change.resize(rows * kKeyBlock);
    keys_transposed.resize(shape.head_dim * kKeyBlock);
    values_transposed.resize(shape.head_dim * kKeyBlock);
    keys.resize(kKeyBlock * width);
    grad_keys.resize(kKeyBlock * width);
    grad_values.resize(kKeyBlock * width);
  }
  std::vector<float> query, grad_out, weight, change, keys_transposed, values_transposed, keys, grad_keys,
      grad_values, grad_query, delta;
};

// delta[token, head of group] = sum over d of grad_out * out.
template <typename T>
void ComputeDelta(const AttentionShape& shape, const Group& group, TokenRows<const T> out,
                  TokenRows<const T> grad_out, std::vector<float>* delta) {
  delta->resize(group.length * group.heads);
  const auto dot = AttentionRowsOf<T>().dot;
  for (int64_t i = 0; i < group.length; ++i) {
    for (int h = 0; h < group.heads; ++h) {
      const int64_t head = static_cast<int64_t>(group.first_head + h) * shape.head_dim;
      const T* a = out.data + (group.start + i) * out.stride + head;
      const T* b = grad_out.data + (group.start + i) * grad_out.stride + head;
      (*delta)[i * group.heads + h] = dot(a, b, shape.head_dim);
    }
  }
}

// Adds what one block of queries gives to the gradients of one block of keys, and the reverse. The block's
// rows are loaded already.
void BackwardBlock(const AttentionShape& shape, const Group& group, const QueryBlock& block,
                   int64_t key_begin, int count, const float* lse, BackwardScratch* x) {
  const int width = RoundUpToPanel(shape.head_dim);
  const int padded = RoundUpToPanel(count);
  const int rows = group.heads * block.tokens;
  SmallGemm(rows, padded, shape.head_dim, x->query.data(), width, 1, x->keys_transposed.data(), kKeyBlock,
            x->weight.data(), kKeyBlock, false);
  SmallGemm(rows, padded, shape.head_dim, x->grad_out.data(), width, 1, x->values_transposed.data(),
            kKeyBlock, x->change.data(), kKeyBlock, false);
  for (int r = 0; r < rows; ++r) {
    const int64_t token = block.begin + r % block.tokens;
    const int h = r / block.tokens;
    float* weight = x->weight.data() + static_cast<int64_t>(r) * kKeyBlock;
    ExpRow(weight, Visible(token, key_begin, count), padded,
           lse[(group.start + token) * shape.heads + group.first_head + h]);
    SoftmaxGradRow(weight, x->change.data() + static_cast<int64_t>(r) * kKeyBlock, padded,
                   x->delta[token * group.heads + h]);
  }
  SmallGemm(count, width, rows, x->weight.data(), 1, kKeyBlock, x->grad_out.data(), width,
            x->grad_values.data(), width, true);
  SmallGemm(count, width, rows, x->change.data(), 1, kKeyBlock, x->query.data(), width, x->grad_keys.data(),
            width, true);
  SmallGemm(rows, width, count, x->change.data(), kKeyBlock, 1, x->keys.data(), width,
            x->grad_query.data() + block.begin * group.heads * width, width, true);
}

template <typename T>
void StoreKeyGrads(const AttentionShape& shape, const Group& group, int64_t begin, int count,
                   const float* from, TokenRows<T> to) {
  const int width = RoundUpToPanel(shape.head_dim);
  const auto store = AttentionRowsOf<T>().store;
  for (int j = 0; j < count; ++j) {
    T* row = to.data + (group.start + begin + j) * to.stride +
             static_cast<int64_t>(group.kv_head) * shape.head_dim;
    store(from + static_cast<int64_t>(j) * width, shape.head_dim, 1.0f, row);
  }
}

template <typename T>
void StoreQueryGrads(const AttentionShape& shape, const Group& group, const QueryBlock& block, float scale,
                     const float* from, TokenRows<T> to) {
  const int width = RoundUpToPanel(shape.head_dim);
  const auto store = AttentionRowsOf<T>().store;
  for (int r = 0; r < group.heads * block.tokens; ++r) {
    T* row = to.data + (group.start + block.begin + r % block.tokens) * to.stride +
             static_cast<int64_t>(group.first_head + r / block.tokens) * shape.head_dim;
    store(from + static_cast<int64_t>(r) * width, shape.head_dim, scale, row);
  }
}

template <typename T>
struct BackwardArrays {
  TokenRows<const T> q, k, v, out, grad_out;
  const float* lse;
  TokenRows<T> grad_q, grad_k, grad_v;
};

template <typename T>
void BackwardGroup(const AttentionShape& shape, const Group& group, const BackwardArrays<T>& a,
                   BackwardScratch* x) {
  const int width = RoundUpToPanel(shape.head_dim);
  const int step = QueriesPerBlock(shape);
  const float scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  auto block_at = [&](int64_t begin) {
    return QueryBlock{begin, static_cast<int>(std::min<int64_t>(step, group.length - begin))};
  };
  ComputeDelta(shape, group, a.out, a.grad_out, &x->delta);
  x->grad_query.assign(group.length * group.heads * width, 0.0f);
  for (int64_t begin = 0; begin < group.length; begin += kKeyBlock) {
    const int count = static_cast<int>(std::min<int64_t>(kKeyBlock, group.length - begin));
    LoadKeysTransposed(shape, group, a.k, begin, count, x->keys_transposed.data());
    LoadKeysTransposed(shape, group, a.v, begin, count, x->values_transposed.data());
    LoadKeys(shape, group, a.k, begin, count, x->keys.data());
    std::fill_n(x->grad_keys.begin(), static_cast<int64_t>(count) * width, 0.0f);
    std::fill_n(x->grad_values.begin(), static_cast<int64_t>(count) * width, 0.0f);
    for (int64_t first = begin / step * step; first < group.length; first += step) {
      const QueryBlock block = block_at(first);
      LoadQueries(shape, group, block, a.q, scale, x->query.data());
      LoadQueries(shape, group, block, a.grad_out, 1.0f, x->grad_out.data());
      BackwardBlock(shape, group, block, begin, count, a.lse, x);
    }
    StoreKeyGrads(shape, group, begin, count, x->grad_keys.data(), a.grad_k);
    StoreKeyGrads(shape, group, begin, count, x->grad_values.data(), a.grad_v);
  }
  for (int64_t first = 0; first < group.length; first += step) {
    StoreQueryGrads(shape, group, block_at(first), scale, x->grad_query.data() + first * group.heads * width,
                    a.grad_q);
  }
}

}  // namespace

template <typename T>
void AttentionForwardCpu(const AttentionShape& shape, TokenRows<const T> q, TokenRows<const T> k,
                         TokenRows<const T> v, TokenRows<T> out, float* lse) {
  const std::vector<Task> tasks = ForwardTasks(shape);
#pragma omp parallel
  {
    ForwardScratch scratch(shape);
#pragma omp for schedule(dynamic)
    for (size_t t = 0; t < tasks.size(); ++t) ForwardTask(shape, tasks[t], q, k, v, out, lse, &scratch);
  }
}

template <typename T>
void AttentionBackwardCpu(const AttentionShape& shape, TokenRows<const T> q, TokenRows<const T> k,
                          TokenRows<const T> v, TokenRows<const T> out, const float* lse,
                          TokenRows<const T> grad_out, TokenRows<T> grad_q, TokenRows<T> grad_k,
                          TokenRows<T> grad_v) {
  const BackwardArrays<T> arrays{q, k, v, out, grad_out, lse, grad_q, grad_k, grad_v};
  const int64_t groups = shape.sequences * shape.kv_heads;
#pragma omp parallel
  {
    BackwardScratch scratch(shape);
#pragma omp for schedule(dynamic)
    for (int64_t g = 0; g < groups; ++g) {
      BackwardGroup(shape, MakeGroup(shape, g / shape.kv_heads, static_cast<int>(g % shape.kv_heads)), arrays,
                    &scratch);
    }
  }
}

#define AUGUR_INSTANTIATE(T)                                                                           \
  template void AttentionForwardCpu<T>(const AttentionShape&, TokenRows<const T>, TokenRows<const T>,  \
                                       TokenRows<const T>, TokenRows<T>, float*);                      \
  template void AttentionBackwardCpu<T>(const AttentionShape&, TokenRows<const T>, TokenRows<const T>, \
                                        TokenRows<const T>, TokenRows<const T>, const float*,          \
                                        TokenRows<const T>, TokenRows<T>, TokenRows<T>, TokenRows<T>);
AUGUR_INSTANTIATE(float)
AUGUR_INSTANTIATE(BFloat16)

}  // namespace augur
