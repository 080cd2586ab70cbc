#include "reward/score_bytes.h"

namespace augur {

void PutScore(const Score& score, ByteWriter* out) {
  out->Put(score.value);
  out->Put(score.right);
  out->Put(score.answered);
  out->Put(score.failed);
  out->Put(score.answer);
  out->Put(score.error);
  out->Put(score.told);
  out->Put(score.figures.size());
  for (const auto& [name, value] : score.figures) {
    out->Put(name);
    out->Put(value);
  }
}

Score GetScore(ByteReader* in) {
  Score score;
  in->Get(&score.value);
  in->Get(&score.right);
  in->Get(&score.answered);
  in->Get(&score.failed);
  in->Get(&score.answer);
  in->Get(&score.error);
  in->Get(&score.told);
  for (auto left = in->Next<size_t>(); left > 0; --left) {
    const auto name = in->Next<std::string>();
    in->Get(&score.figures[name]);
  }
  return score;
}

}  // namespace augur
