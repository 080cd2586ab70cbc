# augur_page_assets(TARGET): puts the report's page and the chart library into TARGET as strings (src/report/assets.h).
function(augur_page_assets target)
  if(NOT AUGUR_CHART_JS)
    message(STATUS "Chart.js not found (Debian package libjs-chart.js): reports will have no charts")
  endif()
  set(page ${CMAKE_SOURCE_DIR}/src/report/page)
  file(GLOB scripts CONFIGURE_DEPENDS ${page}/*.js)
  set(out ${CMAKE_BINARY_DIR}/report_assets.cc)
  set(chart ${AUGUR_CHART_JS})
  if(NOT chart)
    set(chart "")
  endif()
  add_custom_command(
    OUTPUT ${out}
    COMMAND ${CMAKE_COMMAND} -DOUT=${out} -DHTML=${page}/page.html -DSTYLE=${page}/page.css "-DSCRIPTS=${scripts}"
            -DCHARTS=${chart} -P ${CMAKE_SOURCE_DIR}/cmake/embed.cmake
    DEPENDS ${page}/page.html ${page}/page.css ${scripts} ${chart} ${CMAKE_SOURCE_DIR}/cmake/embed.cmake VERBATIM)
  target_sources(${target} PRIVATE ${out})
endfunction()
