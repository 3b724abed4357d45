# Makes ${TO} hold exactly the *.textpb of ${FROM}. Run at build time, so that a file that was added
# or removed since the last configuration is seen.
file(REMOVE_RECURSE "${TO}")
file(COPY "${FROM}/" DESTINATION "${TO}" FILES_MATCHING PATTERN "*.textpb")
