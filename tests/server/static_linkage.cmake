# cmake -DBINARY=<program> -P static_linkage.cmake: fails if the program needs any shared library but
# the C library's own.
execute_process(COMMAND readelf -d ${BINARY} OUTPUT_VARIABLE dynamic COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "Shared library: \\[[^]]+\\]" needed "${dynamic}")
if(NOT needed)
  message(FATAL_ERROR "readelf names no library of ${BINARY}")
endif()
foreach(line IN LISTS needed)
  string(REGEX REPLACE ".*\\[(.+)\\]" "\\1" library ${line})
  if(NOT library MATCHES "^(libc|libm|libpthread|libdl|librt|libresolv|ld-linux-[-a-z0-9]+)[.]so")
    message(FATAL_ERROR "${BINARY} needs ${library}")
  endif()
endforeach()
