"""Writes a Parquet file's rows to descriptor 3, a JSON object a line: `python _parquet.py FILE`.

Lists become arrays, structs objects, nulls and numbers that are not finite null; columns of types without a counterpart
in JSON (binary, dates, decimals) are left out; where there are any, the first line is !{"left_out": [names]}. The last
line is !{"end": true}, or says why there are no more: !{"fault", "row"}.
"""

import json
import math
import os
import sys
from typing import TextIO

_ROWS = 4096  # in a batch


def _has_counterpart(kind: object) -> bool:
    import pyarrow.types as types

    if types.is_dictionary(kind):
        return _has_counterpart(kind.value_type)
    if types.is_struct(kind):
        return all(_has_counterpart(kind.field(i).type) for i in range(kind.num_fields))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _has_counterpart(kind.value_type)
    plain = "is_integer is_string is_large_string is_boolean is_null is_float32 is_float64".split()
    return any(getattr(types, name)(kind) for name in plain)


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value


def _line(row: dict) -> str:
    try:
        return json.dumps(row, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(row))


def _undecodable(batch: object) -> dict:
    """The first row, from 0, and column of a batch whose text is not UTF-8."""
    for row in range(batch.num_rows):
        for name in batch.schema.names:
            try:
                batch.column(name)[row].as_py()
            except UnicodeDecodeError:
                return {"fault": f'the column "{name}" is not valid UTF-8', "row": row}
    return {"fault": "holds text that is not valid UTF-8", "row": 0}


def write_rows(path: str, out: TextIO) -> dict:
    import pyarrow.parquet as parquet

    written, batch = 0, None
    try:
        file = parquet.ParquetFile(path)
        columns = [field.name for field in file.schema_arrow if _has_counterpart(field.type)]
        if left_out := [name for name in file.schema_arrow.names if name not in columns]:
            out.write("!" + json.dumps({"left_out": left_out}) + "\n")
        for batch in file.iter_batches(_ROWS, columns=columns):
            batch.validate(full=True)
            out.writelines(_line(row) + "\n" for row in batch.to_pylist())
            written += batch.num_rows
    except UnicodeDecodeError:
        if batch is None:
            return {"fault": "cannot be read as Parquet: its columns' names are not valid UTF-8"}
        undecodable = _undecodable(batch)
        return undecodable | {"row": written + undecodable["row"] + 1}
    except Exception as error:  # what damaged bytes lead to
        return {"fault": f"cannot be read as Parquet: {' '.join(str(error).split())}"}
    return {"end": True}


def main() -> None:
    with open(3, "w", encoding="utf-8", buffering=1 << 20) as out:
        try:
            last = write_rows(sys.argv[1], out)
        except ImportError:
            last = {"fault": f"is Parquet, which needs pyarrow, and {sys.executable} has none", "missing": True}
        out.write("!" + json.dumps(last) + "\n")
    os._exit(0)


if __name__ == "__main__":
    main()
