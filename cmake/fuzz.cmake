# libFuzzer harnesses from tests/fuzz/ROOM_subject_fuzz.cc, linked with that room: each takes bytes and must
# neither crash, hang nor leak. Seeds stand in tests/fuzz/seeds/ROOM_subject/.
file(GLOB harnesses CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/fuzz/*_fuzz.cc)
foreach(source ${harnesses})
  get_filename_component(name ${source} NAME_WE)
  string(REGEX REPLACE "_.*" "" room ${name})
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE augur_${room})
  target_compile_options(${name} PRIVATE -fsanitize=fuzzer,address,undefined)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer,address,undefined)
endforeach()
