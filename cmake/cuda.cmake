# SPDX-License-Identifier: Apache-2.0
# The CUDA language and settings of CUDA sources; included only with WARPROW_CUDA. Defines
#   WARPROW_CUDA_ARCHS      the architectures of every kernel, with PTX unless it says -real; *_sm90_cuda.cu always and only for
#                           sm_90a
#   WARPROW_CUDA_CODE       the same, as named in src/device/built_code.h
#   warprow_cudart          the static runtime
#   warprow_cuda_toolkit    the same with headers
#   warprow_cuda_sources    sets the compile options of C++ files that call the runtime
#   WARPROW_BACKENDS        the back ends that --version prints
#
# The compiler is CMAKE_CUDA_COMPILER or CUDACXX if one is set, else the nvcc of pinned wheels, which are fetched if
# absent. No driver library is linked (cudaGetDriverEntryPointByVersion finds its functions), nor cuBLASLt and NCCL
# (opened at run time). The binary therefore runs on machines without them, on the CPU.

set(WARPROW_CUDA_ARCHS "80;90a-real" CACHE STRING "Architectures of the CUDA kernels, 80 with PTX; 90a-real alone builds in half the time")

find_package(Python3 3.11 REQUIRED COMPONENTS Interpreter)

# warprow_fetched(VARIABLE BUNDLE): the folder of a bundle of tools/fetch_cuda.py.
function(warprow_fetched variable bundle)
  execute_process(COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tools/fetch_cuda.py ${bundle}
    OUTPUT_VARIABLE folder OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "tools/fetch_cuda.py ${bundle} failed")
  endif()
  set(${variable} ${folder} PARENT_SCOPE)
endfunction()

if(NOT CMAKE_CUDA_COMPILER)
  if(DEFINED ENV{CUDACXX})
    set(CMAKE_CUDA_COMPILER "$ENV{CUDACXX}" CACHE FILEPATH "The CUDA compiler")
  else()
    warprow_fetched(toolkit_folder toolkit)
    set(CMAKE_CUDA_COMPILER ${toolkit_folder}/nvidia/cu13/bin/nvcc CACHE FILEPATH "The CUDA compiler")
  endif()
endif()
get_filename_component(nvcc "${CMAKE_CUDA_COMPILER}" REALPATH)
get_filename_component(WARPROW_CUDA_ROOT "${nvcc}/../.." ABSOLUTE)

# The wheels have lib/ but nvcc searches lib64/.
string(APPEND CMAKE_CUDA_FLAGS " -L${WARPROW_CUDA_ROOT}/lib")
set(CMAKE_CUDA_ARCHITECTURES ${WARPROW_CUDA_ARCHS})
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
if(CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER) # compare a fetched nvcc by content, because its file time is new
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_COMPILERCHECK=content ${CCACHE})
endif()
enable_language(CUDA)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 13.0)
  message(FATAL_ERROR "CUDA 13 is needed; ${CMAKE_CUDA_COMPILER} is ${CMAKE_CUDA_COMPILER_VERSION}")
endif()
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION) # CMake 3.25 does not know nvcc's C++20
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
set(CMAKE_CUDA_FLAGS_RELEASE "-O3 -DNDEBUG")
add_link_options(-L${WARPROW_CUDA_ROOT}/lib)

find_library(WARPROW_CUDART cudart_static HINTS ${WARPROW_CUDA_ROOT} PATH_SUFFIXES lib lib64 NO_DEFAULT_PATH REQUIRED)
find_path(WARPROW_NCCL_INCLUDE nccl.h HINTS ${WARPROW_CUDA_ROOT}/../nccl/include ${WARPROW_CUDA_ROOT}/include)
set(cuda_includes ${WARPROW_CUDA_ROOT}/include)
if(WARPROW_NCCL_INCLUDE)
  list(APPEND cuda_includes ${WARPROW_NCCL_INCLUDE})
endif()
add_library(warprow_cudart INTERFACE)
target_link_libraries(warprow_cudart INTERFACE ${WARPROW_CUDART} Threads::Threads ${CMAKE_DL_LIBS} rt)
add_library(warprow_cuda_toolkit INTERFACE)
target_include_directories(warprow_cuda_toolkit SYSTEM INTERFACE ${cuda_includes})
target_link_libraries(warprow_cuda_toolkit INTERFACE warprow_cudart)

include(cmake/flashinfer.cmake)

# Host code in .cu files follows the rules of all host code. Remarks of ptxas are not warnings.
target_compile_options(warprow_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-fno-math-errno,-ffp-contract=off>
  $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>)
if(WARPROW_WERROR)
  target_compile_options(warprow_flags INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Werror>
    "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:--Werror all-warnings>")
endif()

# Binaries first, then PTX.
set(arch_names ${WARPROW_CUDA_ARCHS})
list(FILTER arch_names EXCLUDE REGEX "-virtual$")
list(TRANSFORM arch_names REPLACE "^([0-9]+a?).*" "sm_\\1")
set(ptx_names ${WARPROW_CUDA_ARCHS})
list(FILTER ptx_names EXCLUDE REGEX "-real$")
list(TRANSFORM ptx_names REPLACE "^([0-9]+a?).*" "compute_\\1")
string(JOIN " " WARPROW_CUDA_CODE ${arch_names} ${ptx_names})

# warprow_cuda_sources(FILE...): C++ files that call the runtime get its headers. Other files do not, so they compile
# (and hit ccache) as in a CPU build.
function(warprow_cuda_sources)
  set(sources ${ARGN})
  list(FILTER sources INCLUDE REGEX "/device/cuda/[^/]*\\.cpp$|_cuda\\.cpp$")
  list(TRANSFORM cuda_includes PREPEND "-isystem" OUTPUT_VARIABLE options)
  set_property(SOURCE ${sources} APPEND PROPERTY COMPILE_OPTIONS ${options})
  list(FILTER sources INCLUDE REGEX "/device/cuda/cuda_device\\.cpp$")
  set_property(SOURCE ${sources} APPEND PROPERTY COMPILE_DEFINITIONS WARPROW_CUDA_CODE="${WARPROW_CUDA_CODE}")
  flashinfer_sources(${ARGN})
endfunction()

string(REGEX MATCH "^[0-9]+\\.[0-9]+" cuda_version "${CMAKE_CUDA_COMPILER_VERSION}")
set(WARPROW_BACKENDS "cpu, cuda ${cuda_version}: ${WARPROW_CUDA_CODE}")
