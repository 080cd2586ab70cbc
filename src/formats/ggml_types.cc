#include "formats/ggml_types.h"

namespace augur {
namespace {

constexpr GgmlTypeInfo kTypes[] = {
    {GgmlType::kF32, "F32", 1, 4},       {GgmlType::kF16, "F16", 1, 2},
    {GgmlType::kBF16, "BF16", 1, 2},     {GgmlType::kQ4_0, "Q4_0", 32, 18},
    {GgmlType::kQ4_1, "Q4_1", 32, 20},   {GgmlType::kQ5_0, "Q5_0", 32, 22},
    {GgmlType::kQ5_1, "Q5_1", 32, 24},   {GgmlType::kQ8_0, "Q8_0", 32, 34},
    {GgmlType::kQ4_K, "Q4_K", 256, 144}, {GgmlType::kQ5_K, "Q5_K", 256, 176},
    {GgmlType::kQ6_K, "Q6_K", 256, 210},
};

struct NumberedName {
  uint32_t number;
  std::string_view name;
};

constexpr NumberedName kUnread[] = {
    {9, "Q8_1"},     {10, "Q2_K"},  {11, "Q3_K"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"},
    {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"}, {22, "IQ2_S"},   {23, "IQ4_XS"},
    {24, "I8"},      {25, "I16"},   {26, "I32"},    {27, "I64"},   {28, "F64"},     {29, "IQ1_M"},
    {34, "TQ1_0"},   {35, "TQ2_0"}, {39, "MXFP4"},
};

}  // namespace

const GgmlTypeInfo* FindGgmlType(uint32_t number) {
  for (const GgmlTypeInfo& info : kTypes) {
    if (static_cast<uint32_t>(info.type) == number) return &info;
  }
  return nullptr;
}

const GgmlTypeInfo& InfoOf(GgmlType type) { return *FindGgmlType(static_cast<uint32_t>(type)); }

std::string GgmlTypeName(uint32_t number) {
  if (const GgmlTypeInfo* info = FindGgmlType(number)) return std::string(info->name);
  for (const NumberedName& unread : kUnread) {
    if (unread.number == number) return std::string(unread.name);
  }
  return std::to_string(number);
}

std::string GgmlTypeNames() {
  std::string names;
  for (const GgmlTypeInfo& info : kTypes) names += (names.empty() ? "" : ", ") + std::string(info.name);
  return names;
}

}  // namespace augur
