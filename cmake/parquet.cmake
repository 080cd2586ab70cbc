# Arrow and Parquet from the pyarrow wheel, where AUGUR_PYTHON has it: parquet_libs, and AUGUR_WITH_PARQUET.
# The libraries carry their version in their names, so they are found by pattern.
set(AUGUR_WITH_PARQUET OFF)
add_library(parquet_libs INTERFACE)
if(AUGUR_TORCH)
  execute_process(
    COMMAND ${AUGUR_PYTHON} -c "import pyarrow; print(pyarrow.get_include(), pyarrow.get_library_dirs()[0], sep=';')"
    OUTPUT_VARIABLE pyarrow_dirs OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(NOT failed)
    list(GET pyarrow_dirs 0 pyarrow_include)
    list(GET pyarrow_dirs 1 pyarrow_lib)
    file(GLOB arrow_library ${pyarrow_lib}/libarrow.so.*00)
    file(GLOB parquet_library ${pyarrow_lib}/libparquet.so.*00)
    if(arrow_library AND parquet_library AND EXISTS ${pyarrow_include}/parquet/arrow/reader.h)
      set(AUGUR_WITH_PARQUET ON)
      target_compile_options(parquet_libs INTERFACE "SHELL:-idirafter ${pyarrow_include}")
      target_link_libraries(parquet_libs INTERFACE ${parquet_library} ${arrow_library})
      list(APPEND CMAKE_BUILD_RPATH ${pyarrow_lib})
    endif()
  endif()
endif()
message(STATUS "Augur: Parquet ${AUGUR_WITH_PARQUET}")
