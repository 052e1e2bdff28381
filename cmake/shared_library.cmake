# SPDX-License-Identifier: Apache-2.0
# libwarprow.so, the C interface of include/warprow.h, and what another project finds it with.
#
# Only warprow_* is exported (cmake/exports.map): what is linked into the library cannot meet another copy of itself in
# the process that loads it.
set(WARPROW_ABI_VERSION 1) # as in include/warprow.h
set(exports ${CMAKE_SOURCE_DIR}/cmake/exports.map)
add_library(warprow_shared SHARED $<TARGET_OBJECTS:warprow_capi>)
target_link_libraries(warprow_shared PRIVATE warprow_capi $<TARGET_NAME_IF_EXISTS:warprow_portable_shared>)
target_link_options(warprow_shared PRIVATE -Wl,--version-script=${exports} -Wl,--exclude-libs,ALL -Wl,--no-undefined
  -Wl,--gc-sections -Wl,--as-needed)
if(WARPROW_STRIP)
  target_link_options(warprow_shared PRIVATE -s)
endif()
set_target_properties(warprow_shared PROPERTIES OUTPUT_NAME warprow SOVERSION ${WARPROW_ABI_VERSION}
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR} LINK_DEPENDS ${exports})
