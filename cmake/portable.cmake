# SPDX-License-Identifier: Apache-2.0
# Everything but glibc linked into the warprow binary, which then runs on other distributions too; included only with
# WARPROW_PORTABLE, after the packages were found. Compiles our sources as any build does: only what is linked differs.
#   WARPROW_GLIBC           the newest version of glibc that the binary may ask for
#   warprow_portable        what the binary links in addition
#   warprow_portable_shared what the shared library links in addition
#
# Debian's static libraries are used where it has them. fmt and spdlog come from their headers (cmake/portable).

set(WARPROW_GLIBC 2.28 CACHE STRING "Newest glibc version that a portable binary asks for")
set(CMAKE_SKIP_RPATH ON)

# warprow_static(TARGET FILE): an imported shared library becomes a static one, by its file.
function(warprow_static target file)
  foreach(config NONE RELEASE RELWITHDEBINFO)
    set_target_properties(${target} PROPERTIES IMPORTED_LOCATION_${config} ${file})
  endforeach()
endfunction()

# find_static(VARIABLE NAME): the file of a static library.
function(find_static variable name)
  find_library(${variable} lib${name}.a REQUIRED)
endfunction()

add_library(warprow_format STATIC ${CMAKE_SOURCE_DIR}/cmake/portable/format_libraries.cpp)
target_compile_definitions(warprow_format PRIVATE
  $<TARGET_PROPERTY:spdlog::spdlog,INTERFACE_COMPILE_DEFINITIONS> FMT_SHARED FMT_LIB_EXPORT spdlog_EXPORTS)
set(format_file ${CMAKE_BINARY_DIR}/libwarprow_format.a)
set_target_properties(warprow_format PROPERTIES ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
add_dependencies(fmt::fmt warprow_format)
warprow_static(fmt::fmt ${format_file})
warprow_static(spdlog::spdlog ${format_file})

find_static(YAML_LIBRARY yaml-cpp)
warprow_static(yaml-cpp ${YAML_LIBRARY})
foreach(name edit tinfo bsd md)
  find_static(STATIC_${name} ${name})
  list(APPEND edit_libraries ${STATIC_${name}})
endforeach()
set(EDIT_LIBRARY ${edit_libraries} CACHE STRING "libedit and what it needs")

if(OPENSSL_VERSION VERSION_GREATER_EQUAL 3.2) # Debian's compresses certificates
  find_static(STATIC_z z)
  find_static(STATIC_zstd zstd)
  set_property(TARGET OpenSSL::Crypto APPEND PROPERTY INTERFACE_LINK_LIBRARIES ${STATIC_z} ${STATIC_zstd})
endif()

# The stubs that are linked in place of the machine's glibc.
find_package(Python3 3.11 REQUIRED COMPONENTS Interpreter)
set(stubs ${CMAKE_BINARY_DIR}/glibc-${WARPROW_GLIBC})
set(stub_script ${CMAKE_SOURCE_DIR}/cmake/portable/glibc_stubs.py)
set_property(DIRECTORY ${CMAKE_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${stub_script})
execute_process(COMMAND ${Python3_EXECUTABLE} ${stub_script} --compiler ${CMAKE_CXX_COMPILER} --newest ${WARPROW_GLIBC} ${stubs}
  COMMAND_ERROR_IS_FATAL ANY)

# warprow_portable_objects(TARGET): the shims, and a link against the stubs.
function(warprow_portable_objects target)
  add_library(${target} OBJECT ${CMAKE_SOURCE_DIR}/cmake/portable/glibc_shims.c)
  target_compile_options(${target} PRIVATE -fvisibility=hidden)
  target_link_options(${target} INTERFACE -L${stubs} -static-libstdc++ -static-libgcc
    -Wl,--push-state,--no-as-needed,-l:libpthread.so.0,-l:libdl.so.2,--pop-state)
endfunction()
warprow_portable_objects(warprow_portable)
target_link_options(warprow_portable INTERFACE -Wl,--wrap=__libc_start_main)
warprow_portable_objects(warprow_portable_shared)
target_compile_definitions(warprow_portable_shared PRIVATE WR_SHARED)
