# Libraries as targets, static where Debian's archive can stand in a shared library: one that is installed must find
# nothing but torch.
function(augur_library name header library)
  find_path(${name}_INCLUDE ${header} REQUIRED)
  find_library(${name}_ARCHIVE NAMES lib${library}.a ${library} REQUIRED)
  add_library(${name} INTERFACE)
  target_include_directories(${name} SYSTEM INTERFACE ${${name}_INCLUDE})
  target_link_libraries(${name} INTERFACE ${${name}_ARCHIVE})
endfunction()

augur_library(libyaml yaml.h yaml)
augur_library(pcre2 pcre2.h pcre2-8)
augur_library(utf8proc utf8proc.h utf8proc)

# Debian has fmt as a shared library alone, and a package must hold its own.
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  add_library(augur_fmt STATIC cmake/fmt.cc)
  target_compile_options(augur_fmt PRIVATE -O1 -ffunction-sections)
else()
  add_library(augur_fmt INTERFACE)
  target_link_libraries(augur_fmt INTERFACE fmt::fmt)
endif()
