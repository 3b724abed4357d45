# How the server's programs are linked.
#
# With FB_STATIC_SERVER every imported library is taken from its archive, so that a program built on
# Debian 12 (glibc 2.36) needs nothing but a newer glibc: it runs on Ubuntu 24.04 (2.39) as it is.

# fb_archive_of(<library> <variable>): the archive that stands beside a shared library, given as a path or,
# as pkg-config does, as -l<name>; what has none, and the C library, stays as it is.
function(fb_archive_of library variable)
  set(archive ${library})
  if(library MATCHES "[.]so[.0-9]*$")
    string(REGEX REPLACE "[.]so[.0-9]*$" ".a" archive ${library})
    if(NOT EXISTS ${archive})
      set(archive ${library})
    endif()
  elseif(library MATCHES "^-l([a-z0-9_]+)$" AND NOT CMAKE_MATCH_1 MATCHES "^(c|m|dl|rt|pthread)$")
    string(SUBSTRING ${library} 2 -1 name)
    find_library(FB_ARCHIVE_${name} NAMES lib${name}.a)
    if(FB_ARCHIVE_${name})
      set(archive ${FB_ARCHIVE_${name}})
    endif()
  endif()
  set(${variable} ${archive} PARENT_SCOPE)
endfunction()

# fb_use_archives(): re-points the imported targets of the calling folder from lib*.so to lib*.a. To be
# called in each folder that finds packages, since a library is linked as the folder of its user found it.
function(fb_use_archives)
  get_property(targets DIRECTORY PROPERTY IMPORTED_TARGETS)
  foreach(target IN LISTS targets)
    get_target_property(type ${target} TYPE)
    if(type STREQUAL INTERFACE_LIBRARY OR type STREQUAL EXECUTABLE)
      set(properties)
    else()
      set(properties IMPORTED_LOCATION)
      get_target_property(configs ${target} IMPORTED_CONFIGURATIONS)
      foreach(config IN LISTS configs)
        if(config)
          list(APPEND properties IMPORTED_LOCATION_${config})
        endif()
      endforeach()
    endif()
    foreach(property IN LISTS properties)
      get_target_property(location ${target} ${property})
      fb_archive_of("${location}" archive)
      if(NOT archive STREQUAL location)
        set_target_properties(${target} PROPERTIES ${property} ${archive})
      endif()
    endforeach()
    get_target_property(libraries ${target} INTERFACE_LINK_LIBRARIES)
    set(archives)
    foreach(library IN LISTS libraries)
      fb_archive_of("${library}" archive)
      list(APPEND archives ${archive})
    endforeach()
    if(libraries)
      set_target_properties(${target} PROPERTIES INTERFACE_LINK_LIBRARIES "${archives}")
    endif()
  endforeach()
endfunction()

# fb_server_binary(<target>): a program of the server, in the stage's bin.
function(fb_server_binary target)
  add_dependencies(stage ${target})
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${FB_STAGE_BIN})
  if(FB_STATIC_SERVER)
    target_link_options(${target} PRIVATE -static-libstdc++ -static-libgcc
      $<$<CONFIG:Release>:-s> -Wl,--gc-sections)
  endif()
endfunction()
