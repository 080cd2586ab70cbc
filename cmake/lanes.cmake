# augur_lanes(): on x86 the files *_lanes.cc of the kernels are compiled again for AVX2 and for AVX-512, and those of a
# single instruction set with its flags; which of them runs is decided when the program starts (src/kernels/simd/isa.h).
function(augur_lanes)
  if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    return()
  endif()
  set(avx2 -mavx2 -mfma)
  # g++ 12 takes what its own headers leave undefined for a fault of ours.
  set(avx512 ${avx2} -Wno-uninitialized -Wno-maybe-uninitialized -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512)
  set(decode ${CMAKE_SOURCE_DIR}/src/kernels/decode)
  set_source_files_properties(${decode}/packed_gemm_avx512bf16.cc PROPERTIES
    COMPILE_OPTIONS "${avx512};-mavx512bf16;-fno-schedule-insns")
  set_source_files_properties(${decode}/packed_gemm_amx.cc PROPERTIES
    COMPILE_OPTIONS "${avx512};-mavx512bf16;-mamx-tile;-mamx-bf16")
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/kernels/*_lanes.cc)
  get_target_property(options augur_kernels COMPILE_OPTIONS)
  foreach(lanes avx2 avx512)
    add_library(augur_kernels_${lanes} OBJECT ${sources})
    target_include_directories(augur_kernels_${lanes} PRIVATE ${CMAKE_SOURCE_DIR}/src)
    target_link_libraries(augur_kernels_${lanes} PRIVATE openmp)
    target_compile_options(augur_kernels_${lanes} PRIVATE ${options} ${${lanes}} -fno-schedule-insns)
    target_sources(augur_kernels PRIVATE $<TARGET_OBJECTS:augur_kernels_${lanes}>)
  endforeach()
endfunction()
