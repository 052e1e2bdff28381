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

# cmake --install DIR --component c_interface: the library, its header, and packages for CMake and pkg-config. The worker
# binary belongs to it.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/warprow)
target_include_directories(warprow_shared INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
set_target_properties(warprow_shared PROPERTIES EXPORT_NAME warprow)
install(TARGETS warprow_shared EXPORT warprow COMPONENT c_interface LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS warprow COMPONENT c_interface RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(FILES ${CMAKE_SOURCE_DIR}/include/warprow.h COMPONENT c_interface DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT warprow NAMESPACE warprow:: FILE warprowConfig.cmake COMPONENT c_interface DESTINATION ${package_dir})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/warprowConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/warprowConfigVersion.cmake COMPONENT c_interface DESTINATION ${package_dir})
# Configured at the installation, because the prefix may be named only then.
install(CODE "set(PROJECT_VERSION ${PROJECT_VERSION})\nset(CMAKE_INSTALL_LIBDIR ${CMAKE_INSTALL_LIBDIR})
configure_file(${CMAKE_SOURCE_DIR}/cmake/warprow.pc.in
  \$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_LIBDIR}/pkgconfig/warprow.pc @ONLY)" COMPONENT c_interface)
