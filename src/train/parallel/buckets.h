// Parameters laid out one after the other in flat buffers, which collectives move whole and ranks divide
// evenly.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace augur {

// The parameters [first, first + offsets.size()) of a list, in a buffer of ranks * piece elements, of which
// rank r has [r * piece, (r + 1) * piece).
struct Bucket {
  size_t first = 0;
  std::vector<int64_t> offsets;  // of each parameter in the buffer
  int64_t piece = 0;

  size_t count() const { return offsets.size(); }
};

// Neighbours of the same type share a bucket up to about `most` elements.
std::vector<Bucket> MakeBuckets(std::span<const at::Tensor> parameters, int ranks, int64_t most);
// One bucket each for as many parameters as `counts` say.
std::vector<Bucket> MakeBuckets(std::span<const at::Tensor> parameters, int ranks,
                                std::span<const size_t> counts);

// Where each parameter stands among all, as if one bucket held them: whatever the number of ranks.
std::vector<int64_t> PlacesOf(std::span<const at::Tensor> parameters);

// A flat buffer with the bucket's values, of which its parameters, of all these, become views.
at::Tensor MoveIntoBucket(const Bucket& bucket, int ranks, std::vector<at::Tensor>* parameters);

// What rank `rank` has of a flat buffer. A view.
at::Tensor PieceOf(const Bucket& bucket, const at::Tensor& flat, int rank);

// The part of a flat buffer that holds a parameter, in its shape. A view.
at::Tensor ViewInBucket(const Bucket& bucket, size_t parameter, const at::Tensor& flat,
                        at::IntArrayRef shape);

}  // namespace augur
