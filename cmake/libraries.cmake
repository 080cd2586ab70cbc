# Libraries without CMake packages of their own on Debian, as targets.
function(augur_library name header library)
  find_path(${name}_INCLUDE ${header} REQUIRED)
  find_library(${name}_LIBRARY ${library} REQUIRED)
  add_library(${name} INTERFACE)
  target_include_directories(${name} SYSTEM INTERFACE ${${name}_INCLUDE})
  target_link_libraries(${name} INTERFACE ${${name}_LIBRARY})
endfunction()

augur_library(pcre2 pcre2.h pcre2-8)
augur_library(utf8proc utf8proc.h utf8proc)
