# Fails unless LIBRARY defines exactly one dynamic symbol, fb_get_kernel.
execute_process(COMMAND ${NM} -D --defined-only ${LIBRARY} OUTPUT_VARIABLE symbols
                COMMAND_ERROR_IS_FATAL ANY OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT symbols MATCHES "^[0-9a-f]+ T fb_get_kernel$")
  message(FATAL_ERROR "${LIBRARY}: want one symbol, fb_get_kernel, got:\n${symbols}")
endif()
