# SPDX-License-Identifier: Apache-2.0
# FlashInfer's sources, compiled where the fetched wheel lies: flashinfer_*_cuda.cu see its headers. Two of its files are edited
# on the way into the build folder; a passage that is not found stops the configuration. Gives
#   flashinfer_sources(FILE...)   sets those among the files apart that see its headers
#   warprow_generated_kernels     a source file for each decode kernel

warprow_fetched(flashinfer_folder flashinfer)
set(flashinfer ${flashinfer_folder}/flashinfer/data)
set(flashinfer_edited ${CMAKE_BINARY_DIR}/flashinfer)
set(flashinfer_includes ${flashinfer_edited} ${flashinfer}/include ${flashinfer}/cutlass/include ${flashinfer}/csrc/xqa)
# Its copy of CCCL must come before the toolkit's older one, which -isystem would not do.
set(flashinfer_cccl ${flashinfer}/cccl/libcudacxx/include ${flashinfer}/cccl/cub ${flashinfer}/cccl/thrust)

function(flashinfer_sources)
  set(sources ${ARGN})
  list(FILTER sources INCLUDE REGEX "/flashinfer_[^/]*_cuda\\.cu$")
  # Not -isystem=PATH, in which ccache sees no path that differs between checkouts.
  list(TRANSFORM flashinfer_includes PREPEND "SHELL:-isystem " OUTPUT_VARIABLE options)
  set_property(SOURCE ${sources} APPEND PROPERTY INCLUDE_DIRECTORIES ${flashinfer_cccl})
  set_property(SOURCE ${sources} APPEND PROPERTY COMPILE_OPTIONS ${options} -use_fast_math -w -Xcompiler=-w)
  set_property(SOURCE ${sources} APPEND PROPERTY COMPILE_DEFINITIONS # as its own builds have them
    FLASHINFER_ENABLE_BF16 FLASHINFER_ENABLE_F16 FLASHINFER_ENABLE_FP8_E4M3)
endfunction()

# flashinfer_read(FILE), flashinfer_edit(FROM TO)..., flashinfer_write(NAME): an edited copy.
macro(flashinfer_read file)
  set(flashinfer_file ${flashinfer}/${file})
  file(READ ${flashinfer_file} text)
endmacro()
macro(flashinfer_edit from to)
  string(FIND "${text}" "${from}" found)
  if(found EQUAL -1)
    message(FATAL_ERROR "${flashinfer_file} is not the file that cmake/flashinfer.cmake knows")
  endif()
  string(REPLACE "${from}" "${to}" text "${text}")
endmacro()
# A file with that content already is left alone, so that nothing is compiled again.
function(flashinfer_write name)
  set(file ${flashinfer_edited}/${name})
  if(EXISTS ${file})
    file(READ ${file} present)
  endif()
  if(NOT "${present}" STREQUAL "${text}")
    file(WRITE ${file} "${text}")
  endif()
endfunction()

# The end of a prefill tile. All warps arrive at the barrier before the tile's last copy and then wait at it, so each counts
# twice: one warpgroup gets through before another has written its part of the tile. Without the arrival the wait is right.
flashinfer_read(include/flashinfer/attention/hopper/epilogue.cuh)
flashinfer_edit("\"../../math.cuh\"" "<flashinfer/math.cuh>")
flashinfer_edit("\"named_barrier.cuh\"" "<flashinfer/attention/hopper/named_barrier.cuh>")
flashinfer_edit("\"utils.cuh\"" "<flashinfer/attention/hopper/utils.cuh>")
flashinfer_edit("    cutlass::arch::NamedBarrier::arrive(NUM_MMA_THREADS,
                                        cutlass::arch::ReservedNamedBarriers::EpilogueBarrier);
" "")
flashinfer_write(epilogue.cuh)

# The decode kernels. XQA is a source file that macros configure, so each instance is a file of a few lines that includes it
# (src/kernels/attention/flashinfer_xqa.cuh). Its launcher is left out, since it calls CUDA before main(); its queries are read
# where the QKV projection left them instead of from a matrix of their own; a row's pages begin where the front of their list
# says instead of at equal distances; and how few tiles of keys make a split worth while is an argument, in the place of the
# cache's scale, which bf16 has not.
flashinfer_read(csrc/xqa/mha_sm90.cu)
flashinfer_edit("#ifndef GENERATE_CUBIN\nvoid launchHopperF8MHA(" "@LAUNCHER@")
string(REGEX REPLACE "@LAUNCHER@.*" "#endif\n" text "${text}")
flashinfer_edit("q, headGrpSize * (nbKHeads * (beamWidth * ctaInputTokBeg) + idxHeadGrp)}"
  "q, headGrpSize * idxHeadGrp + (headGrpSize + 2) * nbKHeads * ctaInputTokBeg}")
flashinfer_edit("baseOffset{idxReq * cacheList.maxNbPagesPerSeq}"
  "baseOffset{static_cast<uint32_t>(cacheList.kvCachePageList[idxReq])}")
flashinfer_edit("nbTilesInUse >= multiBlockMinNbTiles)" "nbTilesInUse >= 2 * static_cast<uint32_t>(kvCacheScale))")
flashinfer_edit("nbTilesInUse / multiBlockMinNbTilesPerCta" "nbTilesInUse / static_cast<uint32_t>(kvCacheScale)")
flashinfer_write(xqa.cuh)

foreach(head_dim 64 128)
  foreach(group RANGE 1 8)
    foreach(page 16 64)
      set(name xqa_${head_dim}_${group}_${page})
      set(text "#define HEAD_ELEMS ${head_dim}
#define HEAD_GRP_SIZE ${group}
#define TOKENS_PER_PAGE ${page}
#define WR_XQA_NAME ${name}
#define WR_XQA_SOURCE \"xqa.cuh\"
#include \"kernels/attention/flashinfer_xqa.cuh\"
")
      flashinfer_write(flashinfer_${name}_sm90_cuda.cu)
      list(APPEND warprow_generated_kernels ${flashinfer_edited}/flashinfer_${name}_sm90_cuda.cu)
    endforeach()
  endforeach()
endforeach()
