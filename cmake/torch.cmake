# LibTorch from the Python wheel, as plain imported targets. find_package(Torch) demands a CUDA toolkit that a
# CPU build does not need, so the paths are asked of Python instead.
execute_process(
  COMMAND ${AUGUR_PYTHON} -c "import importlib.metadata as m, importlib.util as u, os
print(os.path.dirname(u.find_spec('torch').origin), m.version('torch').split('+')[0], sep=';')"
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
# Each source includes the operators it calls: all of them are half of what the compiler would read.
target_compile_definitions(torch_libs INTERFACE AT_PER_OPERATOR_HEADERS)
# Searched last: the wheel also carries headers of fmt and nlohmann-json, of other versions than the system's.
target_compile_options(torch_libs INTERFACE
  "SHELL:-idirafter \"${TORCH_DIR}/include\"" "SHELL:-idirafter \"${TORCH_DIR}/include/torch/csrc/api/include\"")
target_link_directories(torch_libs INTERFACE ${TORCH_DIR}/lib)
target_link_libraries(torch_libs INTERFACE torch_cpu c10)
# libtorch_cpu itself needs libcudart and libcupti, which stand in sibling wheels that its own rpath finds.
target_link_options(torch_libs INTERFACE -Wl,--allow-shlib-undefined)
list(APPEND CMAKE_BUILD_RPATH ${TORCH_DIR}/lib) # in the build tree alone: in a package Python has loaded torch
