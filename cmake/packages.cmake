# Before anything else fails: which of the system's packages are missing, and the one line that installs them.
set(AUGUR_PACKAGES
  boost/beast.hpp libboost-dev
  CLI/CLI.hpp libcli11-dev
  fmt/format.h libfmt-dev
  nlohmann/json.hpp nlohmann-json3-dev
  pcre2.h libpcre2-dev
  utf8proc.h libutf8proc-dev
  yaml.h libyaml-dev)
set(missing "")
if(SKBUILD AND NOT "$ENV{CXX}" STREQUAL "") # set by scikit-build-core to what Python was compiled by, be it here or not
  separate_arguments(words UNIX_COMMAND "$ENV{CXX}")
  list(GET words 0 compiler)
  find_program(AUGUR_COMPILER_OF_PYTHON NAMES ${compiler})
  if(NOT AUGUR_COMPILER_OF_PYTHON)
    unset(ENV{CXX})
  endif()
endif()
find_program(AUGUR_COMPILER NAMES c++ g++ clang++)
if(NOT AUGUR_COMPILER AND "$ENV{CXX}" STREQUAL "" AND NOT CMAKE_CXX_COMPILER)
  list(APPEND missing g++)
endif()
list(LENGTH AUGUR_PACKAGES count)
math(EXPR last "${count} - 1")
foreach(i RANGE 0 ${last} 2)
  math(EXPR j "${i} + 1")
  list(GET AUGUR_PACKAGES ${i} header)
  list(GET AUGUR_PACKAGES ${j} package)
  find_path(AUGUR_HEADERS_OF_${package} ${header})
  if(NOT AUGUR_HEADERS_OF_${package})
    list(APPEND missing ${package})
  endif()
endforeach()
find_file(AUGUR_CHART_JS chart.min.js
          PATHS /usr/share/javascript/chart.js /usr/share/nodejs/chart.js/dist
          DOC "Chart.js 3.9 (Debian package libjs-chart.js)" NO_DEFAULT_PATH)
if(SKBUILD AND NOT AUGUR_CHART_JS) # a package's reports have their charts
  list(APPEND missing libjs-chart.js)
endif()
if(missing)
  list(JOIN missing " " names)
  message(FATAL_ERROR "Augur needs packages that this system lacks. Install them:\n\n  sudo apt-get install ${names}\n")
endif()
