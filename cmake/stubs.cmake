# SPDX-License-Identifier: Apache-2.0
# Sources that CMake generates. A kernel that is compiled more than once is one file of the tree. For each compilation a
# stub sets macros and includes it. Defines
#   warprow_stub          one stub
#   warprow_isa_stubs     stubs for the instruction sets of CPUs
#   warprow_isa_flags     their compiler options
#   warprow_generated_ROOM  the CUDA stubs of a room

set(warprow_stub_dir ${CMAKE_BINARY_DIR}/stubs)

# warprow_stub(STUB INCLUDED [MACRO=VALUE...]): writes STUB, relative to the folder of stubs. A file with equal content
# is not rewritten, so that nothing is compiled again.
function(warprow_stub stub included)
  set(text "")
  foreach(macro ${ARGN})
    string(REPLACE "=" " " macro "${macro}")
    string(APPEND text "#define ${macro}\n")
  endforeach()
  string(APPEND text "#include \"${included}\"\n")
  file(CONFIGURE OUTPUT ${warprow_stub_dir}/${stub} CONTENT "${text}" @ONLY)
endfunction()

# ---- instruction sets of CPUs
# Sanitizers check every operation of an unrolled kernel. At -O3 such a file takes minutes to compile, and so does one of
# intrinsics with UndefinedBehaviorSanitizer, which sees the portable loops alone.
set(isa_flags -O3)
if(WARPROW_SANITIZE)
  set(isa_flags -O1)
endif()
set(isa_flags_generic ${isa_flags})
if(WARPROW_SANITIZE MATCHES "undefined")
  list(APPEND isa_flags -fno-sanitize=undefined)
endif()
set(isa_flags_avx2 ${isa_flags} -mavx2 -mfma -mf16c)
set(isa_flags_avxvnni ${isa_flags_avx2} -mavxvnni)
set(isa_flags_avx512 ${isa_flags} -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni
  -mprefer-vector-width=512)
set(isa_flags_avx512bf16 ${isa_flags} -mavx2 -mfma -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512bf16
  -mprefer-vector-width=512)
set(isa_flags_amx ${isa_flags_avx512} -mavx512bf16 -mamx-tile -mamx-int8 -mamx-bf16)
set(isa_flags_neon ${isa_flags} -march=armv8.2-a+dotprod)

# Every *_loops.inl is compiled for the common instruction sets, and some for more.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  set(isa_common generic)
  set(isa_more_panel_loops neon)
else()
  set(isa_common generic avx2 avx512)
  set(isa_more_panel_loops avxvnni avx512bf16 amx)
  set(isa_more_paged_attention_loops avx512bf16 amx)
endif()

# warprow_isa_stubs(VARIABLE ROOM): a stub for each *_loops.inl of the room and each of its instruction sets. The stub's
# name ends in the set's.
function(warprow_isa_stubs variable room)
  set(stubs "")
  file(GLOB_RECURSE loops CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/src/${room}/*_loops.inl)
  foreach(file ${loops})
    get_filename_component(name ${file} NAME_WE)
    string(REGEX REPLACE "\\.inl$" "" stem ${file})
    foreach(isa ${isa_common} ${isa_more_${name}})
      warprow_stub(${stem}_${isa}.cpp ${file} WR_ISA=${isa})
      list(APPEND stubs ${warprow_stub_dir}/${stem}_${isa}.cpp)
    endforeach()
  endforeach()
  set(${variable} ${stubs} PARENT_SCOPE)
endfunction()

# warprow_isa_flags(STUB...): must be called in the target's folder, because source properties belong to a folder.
function(warprow_isa_flags)
  foreach(stub ${ARGN})
    string(REGEX REPLACE ".*_([^_]*)\\.cpp$" "\\1" isa ${stub})
    set_source_files_properties(${stub} PROPERTIES COMPILE_OPTIONS "${isa_flags_${isa}}")
  endforeach()
endfunction()

# ---- instances of CUDA kernels that take long to compile
# kernel_stub(NAME INCLUDED [MACRO=VALUE...]): INCLUDED is relative to src/kernels. A NAME that ends in _sm90 is
# compiled for Hopper only.
macro(kernel_stub name included)
  warprow_stub(kernels/${name}_cuda.cu kernels/${included} ${ARGN})
  list(APPEND warprow_generated_kernels ${warprow_stub_dir}/kernels/${name}_cuda.cu)
endmacro()

if(WARPROW_CUDA)
  foreach(format kBF16 kE4M3 kE5M2)
    foreach(dim 64 128 256)
      kernel_stub(native_part_decode_${format}_${dim}_sm90 attention/native/part_decode.cuh
        WR_HEAD_DIM=${dim} WR_KV_FORMAT=${format})
    endforeach()
    foreach(dim 64 128)
      kernel_stub(native_warp_decode_${format}_${dim}_sm90 attention/native/warp_decode.cuh
        WR_HEAD_DIM=${dim} WR_KV_FORMAT=${format})
    endforeach()
    foreach(size 64 128 256_sm90)
      string(REPLACE "_sm90" "" dim ${size})
      kernel_stub(native_prefill_${format}_${size} attention/native/prefill.cuh
        WR_HEAD_DIM=${dim} WR_KV_FORMAT=${format})
    endforeach()
  endforeach()
  foreach(dim 64 128)
    kernel_stub(native_decode_${dim} attention/native/decode.cuh WR_HEAD_DIM=${dim} WR_TMA=false)
    kernel_stub(native_decode_${dim}_sm90 attention/native/decode.cuh WR_HEAD_DIM=${dim} WR_TMA=true)
    kernel_stub(native_hopper_prefill_${dim}_sm90 attention/native/hopper_prefill.cuh WR_HEAD_DIM=${dim})
    kernel_stub(flashinfer_extend_${dim}_sm90 attention/flashinfer/extend.cuh WR_HEAD_DIM=${dim})
    kernel_stub(flashinfer_fa2_${dim} attention/flashinfer/fa2.cuh WR_HEAD_DIM=${dim})
    foreach(group RANGE 1 8)
      foreach(page 16 64)
        set(name xqa_${dim}_${group}_${page})
        kernel_stub(flashinfer_${name}_sm90 attention/flashinfer/xqa.cuh
          HEAD_ELEMS=${dim} HEAD_GRP_SIZE=${group} TOKENS_PER_PAGE=${page} WR_XQA_NAME=${name})
      endforeach()
    endforeach()
  endforeach()
  foreach(rows 16 32)
    kernel_stub(sm80_gemm_${rows} linear/small_m/sm80_gemm.cuh WR_TILE_ROWS=${rows})
  endforeach()
  foreach(cols 32 64 128)
    kernel_stub(sm90_gemm_${cols}_sm90 linear/small_m/sm90_gemm.cuh WR_COLS=${cols})
    kernel_stub(sm90_maxima_${cols}_sm90 linear/small_m/sm90_maxima.cuh WR_COLS=${cols})
  endforeach()
  foreach(kind kF8 kQ4 kQ6 kQ8 kTable)
    foreach(cols 8 32 64 128)
      kernel_stub(sm90_quant_gemm_${kind}_${cols}_sm90 linear/quant/sm90_quant_gemm.cuh
        WR_KIND=PackedKind::${kind} WR_COLS=${cols})
    endforeach()
  endforeach()
  foreach(form kBF16:kF16 kMxfp4:kF16 kF8:kF16 kF8:kBF16 kQ4:kF16 kQ4:kBF16 kQ6:kBF16 kQ8:kF16 kQ8:kBF16 kTable:kF16)
    string(REPLACE ":" ";" parts ${form})
    list(GET parts 0 kind)
    list(GET parts 1 scales)
    set(widths 32 128)
    if(kind STREQUAL kBF16)
      list(APPEND widths 8)
    elseif(kind STREQUAL kMxfp4)
      list(APPEND widths 48 64 96)
    else()
      list(APPEND widths 64)
    endif()
    foreach(cols ${widths})
      kernel_stub(sm90_expert_gemm_${kind}_${scales}_${cols}_sm90 experts/sm90_expert_gemm.cuh
        WR_KIND=PackedKind::${kind} WR_SCALES=ScaleForm::${scales} WR_COLS=${cols})
    endforeach()
  endforeach()
  foreach(kind kF8 kQ4 kQ6 kQ8 kTable)
    kernel_stub(sm90_unit_expert_gemm_${kind}_sm90 experts/sm90_unit_expert_gemm.cuh WR_KIND=PackedKind::${kind})
  endforeach()
  foreach(cols 8 16 32 64 128)
    kernel_stub(sm90_fp8_gemm_${cols}_sm90 linear/fp8/sm90_fp8_gemm.cuh WR_COLS=${cols})
  endforeach()
  foreach(kind kBF16 kMxfp4)
    kernel_stub(sm90_wide_expert_gemm_${kind}_sm90 experts/sm90_wide_expert_gemm.cuh WR_KIND=PackedKind::${kind})
  endforeach()
  foreach(output kStore:false kStore:true kAdd:true kSwiGlu:false)
    string(REPLACE ":" ";" parts ${output})
    list(GET parts 0 epilogue)
    list(GET parts 1 is_f32)
    kernel_stub(sm90_large_gemm_${epilogue}_${is_f32}_sm90 linear/large_m/sm90_large_gemm.cuh
      WR_EPILOGUE=LinearEpilogue::${epilogue} WR_F32=${is_f32})
    kernel_stub(sm90_fp8_large_${epilogue}_${is_f32}_sm90 linear/fp8/sm90_fp8_large.cuh
      WR_EPILOGUE=LinearEpilogue::${epilogue} WR_F32=${is_f32})
  endforeach()
  kernel_stub(sm90_large_gemm_kMax_true_sm90 linear/large_m/sm90_large_gemm.cuh WR_EPILOGUE=LinearEpilogue::kMax WR_F32=true)
endif()
