# LibTorch from the Python wheel, as plain imported targets. find_package(Torch) demands a CUDA toolkit that a
# CPU build does not need, so the paths are asked of Python instead.
execute_process(
  COMMAND ${AUGUR_PYTHON} -c "import torch, os; print(os.path.dirname(torch.__file__), torch.__version__.split('+')[0], sep=';')"
  OUTPUT_VARIABLE torch_facts OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "'${AUGUR_PYTHON}' cannot import torch: run ./check, which sets up .venv, or set AUGUR_PYTHON")
endif()
list(GET torch_facts 0 TORCH_DIR)
list(GET torch_facts 1 TORCH_VERSION)
if(NOT TORCH_VERSION VERSION_EQUAL 2.11.0)
  message(FATAL_ERROR "Augur is built against torch 2.11.0; '${AUGUR_PYTHON}' has ${TORCH_VERSION}")
endif()

add_library(torch_libs INTERFACE)
# Searched last: the wheel also carries headers of fmt and nlohmann-json, of other versions than the system's.
target_compile_options(torch_libs INTERFACE
  "SHELL:-idirafter ${TORCH_DIR}/include" "SHELL:-idirafter ${TORCH_DIR}/include/torch/csrc/api/include")
target_link_directories(torch_libs INTERFACE ${TORCH_DIR}/lib)
target_link_libraries(torch_libs INTERFACE torch_cpu c10)
# libtorch_cpu itself needs libcudart and libcupti, which stand in sibling wheels that its own rpath finds.
target_link_options(torch_libs INTERFACE -Wl,--allow-shlib-undefined)
list(APPEND CMAKE_BUILD_RPATH ${TORCH_DIR}/lib) # in the build tree alone: in a package Python has loaded torch

# augur_precompile_torch(TARGET [COLD]): reads torch's headers, eight seconds of g++'s time in every source, once for
# all targets; once more for those that compile with -O1, since g++ on x86 refuses what was made with another -O. COLD
# rooms call kernels and wait for them: what -O3 would add to them is compile time, a third of it. Sources still include
# what they use.
set(AUGUR_TORCH_HEADERS
  <algorithm> <filesystem> <functional> <map> <memory> <optional> <span> <string> <vector> <fmt/format.h> <fmt/ranges.h>
  <nlohmann/json.hpp> <ATen/Context.h> <ATen/Parallel.h> <ATen/TensorOperators.h> <ATen/core/Tensor.h>
  <ATen/core/grad_mode.h> <ATen/ops/empty.h> <torch/csrc/autograd/autograd.h>
  <torch/csrc/autograd/custom_function.h> <torch/library.h>)
function(augur_precompile_torch target)
  set(first augur_ops)
  if("COLD" IN_LIST ARGN)
    set(first augur_model)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O1>)
  endif()
  if(target STREQUAL first)
    target_precompile_headers(${target} PRIVATE ${AUGUR_TORCH_HEADERS})
  else()
    target_precompile_headers(${target} REUSE_FROM ${first})
  endif()
endfunction()
