# The Rust text library (tokenizers, chat templates) behind its C ABI: target warprow_textkit.
# Owned by rust/textkit.
#
# Cargo's outputs are shared between build directories (WARPROW_CARGO_TARGET_DIR, as cache or environment variable), so
# a second directory links what the first has built. The library is copied into ${CMAKE_BINARY_DIR}/textkit. It is
# always a release build without sanitizers, because sanitizer builds check its C++ callers.
set(WARPROW_CARGO_TARGET_DIR "$ENV{WARPROW_CARGO_TARGET_DIR}" CACHE PATH "Cargo's target directory")
if(NOT WARPROW_CARGO_TARGET_DIR)
  set(WARPROW_CARGO_TARGET_DIR "${CMAKE_SOURCE_DIR}/target/textkit"
      CACHE PATH "Cargo's target directory" FORCE)
endif()
find_program(CARGO cargo HINTS "$ENV{CARGO_HOME}/bin" "$ENV{HOME}/.cargo/bin" REQUIRED)

set(textkit_source ${CMAKE_SOURCE_DIR}/rust/textkit)
set(textkit_library ${CMAKE_BINARY_DIR}/textkit/libwarprow_textkit.a)
set(cargo_target_dir ${WARPROW_CARGO_TARGET_DIR})
set(textkit_built ${cargo_target_dir}/release/libwarprow_textkit.a)
set(cargo_environment "")
set(cargo_options --release --locked --quiet --manifest-path ${textkit_source}/Cargo.toml)
if(WARPROW_RUST_TARGET) # a toolchain file for another machine names a compiler with that machine's standard library
  string(APPEND cargo_target_dir /${WARPROW_RUST_TARGET}) # cargo locks it, and the two compilers share nothing
  set(textkit_built ${cargo_target_dir}/${WARPROW_RUST_TARGET}/release/libwarprow_textkit.a)
  string(TOUPPER CARGO_TARGET_${WARPROW_RUST_TARGET}_LINKER linker)
  string(REPLACE - _ linker ${linker})
  set(cargo_environment RUSTC=${WARPROW_RUSTC} ${linker}=${CMAKE_C_COMPILER}) # llguidance is also a shared library
  list(APPEND cargo_options --target ${WARPROW_RUST_TARGET})
endif()
set(hub_source ${CMAKE_SOURCE_DIR}/rust/hub) # a separate crate that the library contains
file(GLOB textkit_inputs CONFIGURE_DEPENDS ${textkit_source}/src/*.rs ${hub_source}/src/*.rs ${hub_source}/Cargo.toml)
add_custom_command(
  OUTPUT ${textkit_library}
  COMMAND ${CMAKE_COMMAND} -E env CARGO_TARGET_DIR=${cargo_target_dir} ${cargo_environment}
          ${CARGO} build ${cargo_options}
  COMMAND ${CMAKE_COMMAND} -E copy ${textkit_built} ${textkit_library}
  DEPENDS ${textkit_inputs} ${textkit_source}/Cargo.toml ${textkit_source}/Cargo.lock
  COMMENT "Building the text library with cargo"
  VERBATIM)
add_custom_target(warprow_textkit_build DEPENDS ${textkit_library})

add_library(warprow_textkit INTERFACE)
add_dependencies(warprow_textkit warprow_textkit_build)
target_include_directories(warprow_textkit INTERFACE ${textkit_source})
target_link_libraries(warprow_textkit INTERFACE
  ${textkit_library} Threads::Threads ${CMAKE_DL_LIBS} m)
