# cmake -DOUT=F.cc -DHTML=... -DSTYLE=... -DSCRIPTS=a.js;b.js -DCHARTS=... -P embed.cmake
# Writes a C++ file that returns these files' contents.
set(code "#include \"report/assets.h\"\n\nnamespace augur {\n")

function(add_asset name)
  set(text "")
  foreach(path ${ARGN})
    file(READ ${path} part)
    string(APPEND text "${part}\n")
  endforeach()
  string(FIND "${text}" "</script" end_tag)
  if(NOT name STREQUAL PageTemplate AND NOT end_tag EQUAL -1)
    message(FATAL_ERROR "${name} holds </script and cannot stand inside a page")
  endif()
  file(APPEND ${OUT} "std::string_view ${name}() { return R\"augur_asset(${text})augur_asset\"; }\n")
endfunction()

file(WRITE ${OUT} "${code}")
add_asset(PageTemplate ${HTML})
add_asset(PageStyle ${STYLE})
add_asset(PageScript ${SCRIPTS})
add_asset(ChartLibrary ${CHARTS})
file(APPEND ${OUT} "}  // namespace augur\n")
