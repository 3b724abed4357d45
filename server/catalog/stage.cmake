# Makes ${TO} hold exactly the *.textpb of ${FROM}. Run at build time, so that a file that was added
# or removed since the last configuration is seen.
file(GLOB sources "${FROM}/*.textpb")
file(GLOB staged "${TO}/*.textpb")
foreach(old IN LISTS staged)
  cmake_path(GET old FILENAME name)
  if(NOT EXISTS "${FROM}/${name}")
    file(REMOVE "${old}")
  endif()
endforeach()
foreach(source IN LISTS sources)
  file(COPY "${source}" DESTINATION "${TO}")
endforeach()
