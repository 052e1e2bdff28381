# SPDX-License-Identifier: Apache-2.0
# FlashInfer's sources are compiled from the fetched wheel. flashinfer_*_cuda.cu (cmake/stubs.cmake) include its
# headers, and patched copies of two of its files in the build folder. Defines
#   flashinfer_sources(FILE...)   sets the compile options of the files that include its headers

warprow_fetched(flashinfer_folder flashinfer)
set(flashinfer ${flashinfer_folder}/flashinfer/data)
set(flashinfer_edited ${CMAKE_BINARY_DIR}/flashinfer)
set(flashinfer_includes ${flashinfer_edited} ${flashinfer}/include ${flashinfer}/cutlass/include ${flashinfer}/csrc/xqa)
# FlashInfer's copy of CCCL must precede the toolkit's older one, which -isystem would not achieve.
set(flashinfer_cccl ${flashinfer}/cccl/libcudacxx/include ${flashinfer}/cccl/cub ${flashinfer}/cccl/thrust)

function(flashinfer_sources)
  set(sources ${ARGN})
  list(FILTER sources INCLUDE REGEX "/flashinfer_[^/]*_cuda\\.cu$")
  # Not -isystem=PATH, so that ccache sees no path that differs between checkouts.
  set(options "")
  foreach(folder ${flashinfer_includes})
    list(APPEND options -isystem ${folder})
  endforeach()
  set_property(SOURCE ${sources} APPEND PROPERTY INCLUDE_DIRECTORIES ${flashinfer_cccl})
  set_property(SOURCE ${sources} APPEND PROPERTY COMPILE_OPTIONS ${options} -use_fast_math -w -Xcompiler=-w)
  set_property(SOURCE ${sources} APPEND PROPERTY COMPILE_DEFINITIONS # as in FlashInfer's own builds
    FLASHINFER_ENABLE_BF16 FLASHINFER_ENABLE_F16 FLASHINFER_ENABLE_FP8_E4M3)
endfunction()

# flashinfer_patched(FILE NAME PATCH...): a copy of FILE in the build folder, as NAME, with patches of
# cmake/patches/flashinfer. Each patch says at its top why it exists. A patch that does not apply exactly stops the
# configuration. A file with equal content is not rewritten, so that nothing is compiled again. git apply runs outside
# of any repository, in which it would look for other paths.
find_program(GIT git REQUIRED)
function(flashinfer_patched file name)
  set(folder ${flashinfer_edited}/patching)
  file(REMOVE_RECURSE ${folder})
  file(MAKE_DIRECTORY ${folder})
  file(COPY_FILE ${flashinfer}/${file} ${folder}/${name})
  file(SHA256 ${folder}/${name} before)
  foreach(patch ${ARGN})
    set(patch ${CMAKE_SOURCE_DIR}/cmake/patches/flashinfer/${patch}.patch)
    set_property(DIRECTORY ${CMAKE_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${patch})
    execute_process(COMMAND ${CMAKE_COMMAND} -E env GIT_CEILING_DIRECTORIES=${flashinfer_edited} ${GIT} apply ${patch}
      WORKING_DIRECTORY ${folder} RESULT_VARIABLE failed)
    file(SHA256 ${folder}/${name} after)
    if(failed OR after STREQUAL before)
      message(FATAL_ERROR "${patch} does not apply to ${flashinfer}/${file}")
    endif()
    set(before ${after})
  endforeach()
  file(COPY_FILE ${folder}/${name} ${flashinfer_edited}/${name} ONLY_IF_DIFFERENT)
endfunction()

flashinfer_patched(include/flashinfer/attention/hopper/epilogue.cuh epilogue.cuh epilogue_includes epilogue_race)
# The decode kernels. XQA is one source file configured by macros (src/kernels/attention/flashinfer/xqa.cuh).
flashinfer_patched(csrc/xqa/mha_sm90.cu mha_sm90.cuh xqa_1_launcher xqa_2_queries xqa_3_pages xqa_4_splits)
