#include "data/parquet.h"

#include <arrow/api.h>
#include <arrow/io/file.h>
#include <parquet/arrow/reader.h>
#include <parquet/exception.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/utf8.h"

namespace augur {
namespace {

void Check(const arrow::Status& status, const std::filesystem::path& path) {
  if (status.ok()) return;
  std::string message = status.message();
  std::ranges::replace(message, '\n', ' ');
  throw Error(path.string(), fmt::format("cannot be read as Parquet: {}", message),
              "fetch or write the file again");
}

template <typename T>
T Get(arrow::Result<T> result, const std::filesystem::path& path) {
  Check(result.status(), path);
  return std::move(result).ValueUnsafe();
}

bool HasCounterpart(const arrow::DataType& type) {
  if (arrow::is_integer(type.id()) || type.id() == arrow::Type::FLOAT || type.id() == arrow::Type::DOUBLE ||
      type.id() == arrow::Type::STRING || type.id() == arrow::Type::LARGE_STRING ||
      type.id() == arrow::Type::BOOL || type.id() == arrow::Type::NA) {
    return true;
  }
  if (type.id() == arrow::Type::DICTIONARY) {
    return HasCounterpart(*static_cast<const arrow::DictionaryType&>(type).value_type());
  }
  const bool nested = type.id() == arrow::Type::LIST || type.id() == arrow::Type::LARGE_LIST ||
                      type.id() == arrow::Type::FIXED_SIZE_LIST || type.id() == arrow::Type::STRUCT;
  return nested &&
         std::ranges::all_of(type.fields(), [](const auto& f) { return HasCounterpart(*f->type()); });
}

// One value as JSON; recursion follows the schema, whose depth HasCounterpart has walked already.
class ValueReader {
 public:
  Json Read(const arrow::Array& array, int64_t i) {
    if (array.IsNull(i)) return nullptr;
    switch (array.type_id()) {
      case arrow::Type::BOOL:
        return static_cast<const arrow::BooleanArray&>(array).Value(i);
      case arrow::Type::FLOAT:
        return static_cast<const arrow::FloatArray&>(array).Value(i);
      case arrow::Type::DOUBLE:
        return static_cast<const arrow::DoubleArray&>(array).Value(i);
      case arrow::Type::STRING:
        return Text(static_cast<const arrow::StringArray&>(array).GetView(i));
      case arrow::Type::LARGE_STRING:
        return Text(static_cast<const arrow::LargeStringArray&>(array).GetView(i));
      case arrow::Type::LIST:
        return List(static_cast<const arrow::ListArray&>(array), i);
      case arrow::Type::LARGE_LIST:
        return List(static_cast<const arrow::LargeListArray&>(array), i);
      case arrow::Type::FIXED_SIZE_LIST:
        return List(static_cast<const arrow::FixedSizeListArray&>(array), i);
      case arrow::Type::STRUCT:
        return Struct(static_cast<const arrow::StructArray&>(array), i);
      case arrow::Type::DICTIONARY: {
        const auto& encoded = static_cast<const arrow::DictionaryArray&>(array);
        return Read(*encoded.dictionary(), encoded.GetValueIndex(i));
      }
      default:
        return Integer(array, i);
    }
  }

  bool saw_invalid_text() const { return saw_invalid_text_; }

 private:
  Json Text(std::string_view text) {
    if (FirstInvalidUtf8(text) != std::string_view::npos) saw_invalid_text_ = true;
    return text;
  }

  template <typename ListArray>
  Json List(const ListArray& list, int64_t i) {
    Json out = Json::array();
    const int64_t begin = list.value_offset(i), end = begin + list.value_length(i);
    for (int64_t j = begin; j < end; ++j) out.push_back(Read(*list.values(), j));
    return out;
  }

  Json Struct(const arrow::StructArray& array, int64_t i) {
    Json out = Json::object();
    for (int k = 0; k < array.num_fields(); ++k) {
      out[array.struct_type()->field(k)->name()] = Read(*array.field(k), i);
    }
    return out;
  }

  static Json Integer(const arrow::Array& array, int64_t i) {
    switch (array.type_id()) {
      case arrow::Type::INT8:
        return static_cast<const arrow::Int8Array&>(array).Value(i);
      case arrow::Type::INT16:
        return static_cast<const arrow::Int16Array&>(array).Value(i);
      case arrow::Type::INT32:
        return static_cast<const arrow::Int32Array&>(array).Value(i);
      case arrow::Type::INT64:
        return static_cast<const arrow::Int64Array&>(array).Value(i);
      case arrow::Type::UINT8:
        return static_cast<const arrow::UInt8Array&>(array).Value(i);
      case arrow::Type::UINT16:
        return static_cast<const arrow::UInt16Array&>(array).Value(i);
      case arrow::Type::UINT32:
        return static_cast<const arrow::UInt32Array&>(array).Value(i);
      case arrow::Type::UINT64:
        return static_cast<const arrow::UInt64Array&>(array).Value(i);
      default:
        return nullptr;
    }
  }

  bool saw_invalid_text_ = false;
};

Json Row(const arrow::RecordBatch& batch, const std::vector<int>& columns, int64_t i,
         const std::string& where) {
  Json row = Json::object();
  ValueReader reader;
  for (const int column : columns) {
    row[batch.column_name(column)] = reader.Read(*batch.column(column), i);
    if (reader.saw_invalid_text()) {
      throw Error(where, fmt::format("the column \"{}\" is not valid UTF-8", batch.column_name(column)),
                  "write it again as UTF-8");
    }
  }
  return row;
}

}  // namespace

void ForEachParquetRow(const std::filesystem::path& path,
                       const std::function<void(const Json& row, size_t number)>& visit) {
  try {
    const auto file = Get(arrow::io::ReadableFile::Open(path.string()), path);
    const auto reader = Get(parquet::arrow::OpenFile(file, arrow::default_memory_pool()), path);
    const auto batches = Get(reader->GetRecordBatchReader(), path);
    std::vector<int> columns;
    for (int k = 0; k < batches->schema()->num_fields(); ++k) {
      if (HasCounterpart(*batches->schema()->field(k)->type())) columns.push_back(k);
    }
    size_t number = 0;
    while (const auto batch = Get(batches->Next(), path)) {
      Check(batch->ValidateFull(), path);
      for (int64_t i = 0; i < batch->num_rows(); ++i) {
        ++number;
        visit(Row(*batch, columns, i, fmt::format("{}:{}", path.string(), number)), number);
      }
    }
  } catch (const parquet::ParquetException& error) {
    Check(arrow::Status::IOError(error.what()), path);
  }
}

}  // namespace augur
