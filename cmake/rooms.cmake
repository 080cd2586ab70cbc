# augur_room(NAME [HOT | TORCH] LIBS ...): the static library augur_NAME from src/NAME, with warnings as errors; in a
# package they are none, which may be built by a compiler that warns of more.
#
# HOT rooms compute. The others call kernels and wait for them, or for files: they compile with -O1, in two thirds of the
# time of -O3, over a precompiled header: that of `base`, or with TORCH that of torch_headers.
#
# Kernels come in ladders x_cpu.cc and x_cuda.cu (or .cc): where nvcc is missing a *cuda_stub.cc takes the place of the
# CUDA files and says so when called. attention_cudnn.cc and its stub stand to each other likewise.
function(augur_room name)
  cmake_parse_arguments(ROOM "HOT;TORCH" "" "LIBS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/*.cc)
  list(REMOVE_ITEM sources ${CMAKE_SOURCE_DIR}/src/cli/main.cc)
  if(AUGUR_WITH_CUDA)
    list(FILTER sources EXCLUDE REGEX "cuda_stub\\.cc$")
    file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/*.cu)
    list(APPEND sources ${cuda_sources})
  else()
    list(FILTER sources EXCLUDE REGEX "_cuda\\.cc$")
  endif()
  if(AUGUR_WITH_CUDNN)
    list(FILTER sources EXCLUDE REGEX "_cudnn_stub\\.cc$")
  else()
    list(FILTER sources EXCLUDE REGEX "_cudnn\\.cc$")
  endif()
  if(NOT sources)
    add_library(augur_${name} INTERFACE)
    target_link_libraries(augur_${name} INTERFACE ${ROOM_LIBS})
    return()
  endif()
  add_library(augur_${name} STATIC ${sources})
  target_include_directories(augur_${name} PUBLIC ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(augur_${name} PUBLIC ${ROOM_LIBS})
  augur_compile_flags(augur_${name})
  augur_unity(augur_${name} ${name})
  set_target_properties(augur_${name} PROPERTIES AUGUR_ROOM_TORCH ${ROOM_TORCH})
  if(ROOM_TORCH)
    augur_precompile(augur_${name} torch_headers)
  elseif(NOT ROOM_HOT)
    augur_precompile(augur_${name} augur_base)
  endif()
endfunction()

# Several sources in one compilation: what they include is read once, and what they instantiate compiled once.
# Kernels stay apart: each has its own flags.
function(augur_unity target room)
  if(AUGUR_UNITY AND NOT room STREQUAL kernels)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 20)
  endif()
endfunction()

# Read once for all targets. Sources still include what they use.
set(AUGUR_HEADERS
  <algorithm> <filesystem> <fstream> <functional> <map> <memory> <optional> <span> <sstream> <string> <string_view>
  <variant> <vector> <fmt/format.h> <fmt/ranges.h> <nlohmann/json.hpp>)
set(AUGUR_TORCH_HEADERS
  <ATen/Context.h> <ATen/Parallel.h> <ATen/TensorOperators.h> <ATen/core/Tensor.h> <ATen/core/grad_mode.h>
  <ATen/ops/cat.h> <ATen/ops/empty.h> <ATen/ops/zeros.h>
  <torch/csrc/autograd/autograd.h> <torch/csrc/autograd/custom_function.h> <torch/library.h>)

# augur_precompile(TARGET OWNER): with -O1 and the precompiled header of OWNER, augur_base or torch_headers; g++ refuses
# one that was made with other options, -fPIE among them, which programs have.
function(augur_precompile target owner)
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-O1;-fPIC>")
  if(NOT target STREQUAL owner)
    target_precompile_headers(${target} REUSE_FROM ${owner})
  elseif(owner STREQUAL torch_headers)
    target_precompile_headers(${target} PRIVATE ${AUGUR_HEADERS} ${AUGUR_TORCH_HEADERS})
  else()
    target_precompile_headers(${target} PRIVATE ${AUGUR_HEADERS})
  endif()
endfunction()

# g++ 12 and 13 raise these falsely inside the standard library and torch headers when they inline deeply; psabi is
# about vectors passed between object files, and ours never leave one.
set(AUGUR_FALSE_ALARMS -Wno-psabi -Wno-restrict -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread)

function(augur_compile_flags target)
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;$<$<NOT:$<BOOL:${SKBUILD}>>:-Werror>>"
                                           "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:${AUGUR_FALSE_ALARMS}>"
                                           # g++ looks for memory to free from here on, not from 128 MB: 15% of its time
                                           $<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=524288>)
  if(AUGUR_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${AUGUR_SANITIZE} -fno-omit-frame-pointer
                                             -fno-sanitize-recover=all)
    target_link_options(${target} PUBLIC -fsanitize=${AUGUR_SANITIZE})
  endif()
endfunction()

# Before all rooms: ninja begins with what comes first, and every room with torch waits for this.
if(AUGUR_TORCH)
  add_library(torch_headers OBJECT cmake/empty.cc)
  target_link_libraries(torch_headers PRIVATE openmp torch_libs)
  augur_compile_flags(torch_headers)
  augur_precompile(torch_headers torch_headers)
endif()
