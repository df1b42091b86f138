# cuda.cmake: configures the GPU device. Finds nvcc, the toolkit, cuDNN, cuBLAS, cuRAND's headers and NCCL, and reports their versions.
# CMakeLists.txt includes this file once. Sets
#   cresnet_cuda            whether cuda/ is built
#   cresnet_cuda_state      text for the summary and --version: versions, or "no (reason)"
#   cresnet_cuda_sources    source files of cuda/
#   cresnet_cuda_includes   CUDA's own header folders
#   cresnet_cuda_libraries  libraries to link: only the static CUDA runtime. When a GPU is used, the runtime opens the driver and
#                           cuda/core/libraries.c opens cuDNN and cuBLAS: the program starts on machines that have none of them.
# Configuring needs no GPU. The toolkit may be installed as pip wheels, which have neither lib64/ nor unversioned library names.
include(${CMAKE_CURRENT_LIST_DIR}/nvidia_hints.cmake)
set(cresnet_cuda OFF)
set(cresnet_cuda_why)
set(cresnet_nccl_state "no")

# Finds nvcc: variables that the user sets come first, then wheels, then the usual places.
macro(cuda_find_nvcc)
  set(cuda_hints)
  nvidia_wheels(cuda_wheels)
  file(GLOB cuda_places /usr/local/cuda-[0-9]*)
  list(SORT cuda_places COMPARE NATURAL ORDER DESCENDING)
  list(PREPEND cuda_places /usr/local/cuda)
  if(CMAKE_CUDA_COMPILER)
    set(CRESNET_NVCC ${CMAKE_CUDA_COMPILER} CACHE FILEPATH "CUDA's compiler")
  elseif(DEFINED ENV{CUDACXX})
    find_program(CRESNET_NVCC NAMES $ENV{CUDACXX} DOC "CUDA's compiler")
  endif()
  if(CUDAToolkit_ROOT OR DEFINED ENV{CUDAToolkit_ROOT})
    find_program(CRESNET_NVCC nvcc PATHS ${CUDAToolkit_ROOT} ENV CUDAToolkit_ROOT PATH_SUFFIXES bin NO_DEFAULT_PATH)
  else()
    foreach(wheel ${cuda_wheels})
      file(GLOB cuda_more ${wheel}/cu[0-9]*)
      list(APPEND cuda_hints ${cuda_more})
    endforeach()
    find_program(CRESNET_NVCC nvcc HINTS ENV CUDA_PATH ENV CUDA_HOME ${cuda_hints} PATHS ${cuda_places} PATH_SUFFIXES bin)
  endif()
endmacro()

# Finds the toolkit that nvcc belongs to, even if nvcc is a wrapper or a link.
macro(cuda_find_toolkit)
  execute_process(COMMAND ${CRESNET_NVCC} -v cresnet_print_top OUTPUT_VARIABLE cuda_said ERROR_VARIABLE cuda_said)
  if(cuda_said MATCHES "#\\$ TOP=([^\r\n]*)")
    get_filename_component(CUDAToolkit_ROOT "${CMAKE_MATCH_1}" ABSOLUTE)
    # FindCUDAToolkit requires libcudart.so. The static library serves as well, and it is the one that is linked.
    find_library(CUDA_CUDART NAMES cudart cudart_static NAMES_PER_DIR PATHS ${CUDAToolkit_ROOT} ${CUDAToolkit_ROOT}/targets/x86_64-linux
                 PATH_SUFFIXES lib64 lib NO_DEFAULT_PATH)
    find_package(CUDAToolkit QUIET)
  endif()
  if(NOT CUDAToolkit_FOUND)
    set(cresnet_cuda_why "the CUDA toolkit of ${CRESNET_NVCC} is not complete: nvcc, cudart, crt and nvvm are needed")
  elseif(CUDAToolkit_VERSION VERSION_LESS 12)
    set(cresnet_cuda_why "CUDA ${CUDAToolkit_VERSION} is too old: 12 is the minimum, 13.0 is recommended")
  endif()
endmacro()

# Tests that nvcc compiles and links: the host compiler may be missing or unsupported.
macro(cuda_try_nvcc)
  set(cuda_trial ${PROJECT_BINARY_DIR}/CMakeFiles/cuda-trial)
  if(NOT CRESNET_NVCC_WORKS STREQUAL CRESNET_NVCC)
    file(WRITE ${cuda_trial}.cu "#include <cuda_fp16.h>\n#include <curand_philox4x32_x.h>\n#include <nvtx3/nvToolsExt.h>\n"
         "__global__ void k(__half *x) { x[threadIdx.x] = __float2half_rn(1.0f); }\n"
         "int main() { k<<<1, 1>>>(nullptr); return cudaGetLastError() != cudaSuccess; }\n")
    set(cuda_host)
    if(CMAKE_CUDA_HOST_COMPILER)
      set(cuda_host -ccbin ${CMAKE_CUDA_HOST_COMPILER})
    elseif(DEFINED ENV{CUDAHOSTCXX})
      set(cuda_host -ccbin $ENV{CUDAHOSTCXX})
    endif()
    execute_process(COMMAND ${CRESNET_NVCC} ${cuda_host} -std=c++17 -arch=sm_80 -L${CUDAToolkit_LIBRARY_DIR} ${cuda_trial}.cu -o ${cuda_trial}
                    RESULT_VARIABLE cuda_code OUTPUT_VARIABLE cuda_said ERROR_VARIABLE cuda_said)
    if(cuda_code EQUAL 0)
      set(CRESNET_NVCC_WORKS ${CRESNET_NVCC} CACHE INTERNAL "the nvcc that was tested and works")
    else()
      string(REGEX MATCH "[^\n]*(error|[Ff]ail|not found|No such)[^\n]*" cuda_line "${cuda_said}")
      set(cresnet_cuda_why "${CRESNET_NVCC} cannot compile (is g++ there?): ${cuda_line}")
    endif()
  endif()
endmacro()

macro(cuda_find_libraries)
  list(APPEND CMAKE_MODULE_PATH ${CMAKE_CURRENT_LIST_DIR})
  find_package(cuDNN 9.8 QUIET)
  find_path(CUBLAS_INCLUDE_DIR cublas_v2.h PATHS ${CUDAToolkit_INCLUDE_DIRS} NO_DEFAULT_PATH)
  find_path(CURAND_INCLUDE_DIR curand_philox4x32_x.h PATHS ${CUDAToolkit_INCLUDE_DIRS} NO_DEFAULT_PATH)
  find_library(CUDART_STATIC_LIBRARY cudart_static PATHS ${CUDAToolkit_LIBRARY_DIR} NO_DEFAULT_PATH)
  mark_as_advanced(CUBLAS_INCLUDE_DIR CURAND_INCLUDE_DIR CUDART_STATIC_LIBRARY)
  if(NOT cuDNN_FOUND)
    if(cuDNN_VERSION AND cuDNN_VERSION VERSION_LESS 9.8)
      set(cresnet_cuda_why "cuDNN ${cuDNN_VERSION} is too old: 9.8 is the minimum")
    else()
      set(cresnet_cuda_why "nvcc was found, but cuDNN was not found: install cudnn9-cuda-13 or the wheel nvidia-cudnn-cu13, or set cuDNN_ROOT")
    endif()
  elseif(NOT CUBLAS_INCLUDE_DIR)
    set(cresnet_cuda_why "nvcc was found, but cuBLAS was not found: install libcublas-dev-13-0 or the wheel nvidia-cublas")
  elseif(NOT CURAND_INCLUDE_DIR)
    set(cresnet_cuda_why "nvcc was found, but cuRAND's headers were not found: install libcurand-dev-13-0 or the wheel nvidia-curand")
  elseif(NOT CUDART_STATIC_LIBRARY)
    set(cresnet_cuda_why "nvcc was found, but libcudart_static.a was not found in ${CUDAToolkit_LIBRARY_DIR}")
  endif()
endmacro()

if(CRESNET_WITH_CUDA STREQUAL "OFF")
  set(cresnet_cuda_why "CRESNET_WITH_CUDA=OFF")
elseif(NOT CRESNET_WITH_CUDA STREQUAL "ON" AND (CRESNET_SANITIZE OR CRESNET_FUZZ))
  set(cresnet_cuda_why "not in builds with a sanitizer")
else()
  cuda_find_nvcc()
  if(NOT CRESNET_NVCC)
    set(cresnet_cuda_why "nvcc was not found: put it on the PATH or set CUDAToolkit_ROOT, see README.md")
  endif()
  if(NOT cresnet_cuda_why)
    cuda_find_toolkit()
  endif()
  if(NOT cresnet_cuda_why)
    cuda_find_libraries()
  endif()
  if(NOT cresnet_cuda_why)
    cuda_try_nvcc()
  endif()
endif()

if(cresnet_cuda_why)
  if(CRESNET_WITH_CUDA STREQUAL "ON")
    message(FATAL_ERROR "CRESNET_WITH_CUDA=ON, but ${cresnet_cuda_why}")
  endif()
  set(cresnet_cuda_state "no (${cresnet_cuda_why})")
  return()
endif()

# ---- the language ----

# Machine code for A100 and H100/H200, and PTX, which the driver compiles for later GPUs. `native` is not used: the build machine may
# have no GPU.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 90-virtual CACHE STRING "architectures of the GPU code")
endif()
if(NOT CMAKE_CUDA_COMPILER)
  set(CMAKE_CUDA_COMPILER ${CRESNET_NVCC})
endif()
set(CMAKE_CUDA_FLAGS_INIT "-L${CUDAToolkit_LIBRARY_DIR}") # nvcc searches lib64, which wheels do not have
enable_language(CUDA)
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
set(CMAKE_CUDA_FLAGS_RELEASE "-O3")
# Without -Wpedantic, which warns about code that nvcc generates.
add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:-lineinfo;-Xcompiler=-Wall,-Wextra>")
if(CRESNET_WERROR)
  add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Werror all-warnings>")
endif()
if(CRESNET_CUDA_UNOPTIMISED)
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 13.0)
    message(WARNING "CRESNET_CUDA_UNOPTIMISED needs CUDA 13.0 or later: the GPU code is optimised as usual")
  else()
    add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:--Ofast-compile=max>")
  endif()
endif()

# cuda_sources_for(90a FILE...): compiles these files for one more architecture.
function(cuda_sources_for arch)
  foreach(source ${ARGN})
    set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS "--generate-code=arch=compute_${arch},code=[sm_${arch}]")
  endforeach()
endfunction()

file(GLOB_RECURSE cresnet_cuda_sources CONFIGURE_DEPENDS cuda/*.c cuda/*.cu)
# *_sm90a.cu use instructions that only compute capability 9.0 has; their kernels accept no other GPU.
set(cuda_sm90a ${cresnet_cuda_sources})
list(FILTER cuda_sm90a INCLUDE REGEX "_sm90a\\.cu$")
cuda_sources_for(90a ${cuda_sm90a})

set(cresnet_cuda ON)
set(cresnet_cuda_includes ${CUDAToolkit_INCLUDE_DIRS} ${cuDNN_INCLUDE_DIR} ${CUBLAS_INCLUDE_DIR})
list(REMOVE_DUPLICATES cresnet_cuda_includes)
set(cresnet_cuda_libraries ${CUDART_STATIC_LIBRARY} ${CMAKE_DL_LIBS} rt)

# ---- RPATH: where the program searches for cuDNN and cuBLAS in addition to the system's folders ----

get_filename_component(cuda_dirs ${cuDNN_LIBRARY} DIRECTORY)
list(APPEND cuda_dirs ${CUDAToolkit_LIBRARY_DIR})
list(REMOVE_DUPLICATES cuda_dirs)
foreach(dir ${cuda_dirs})
  if(NOT dir MATCHES "^/(usr/)?lib(64)?(/x86_64-linux-gnu)?$")
    list(APPEND CMAKE_BUILD_RPATH ${dir})
    list(APPEND CMAKE_INSTALL_RPATH ${dir})
  endif()
endforeach()

# ---- versions ----

nvidia_version(cublas_version ${CUBLAS_INCLUDE_DIR}/cublas_api.h CUBLAS_VER_MAJOR CUBLAS_VER_MINOR CUBLAS_VER_PATCH)
nvidia_version(curand_version ${CURAND_INCLUDE_DIR}/curand.h CURAND_VER_MAJOR CURAND_VER_MINOR CURAND_VER_PATCH)
if(NOT CRESNET_WITH_NCCL STREQUAL "OFF")
  find_package(NCCL QUIET)
  if(NCCL_FOUND)
    set(cresnet_nccl_state "${NCCL_VERSION}")
    list(APPEND cresnet_cuda_includes ${NCCL_INCLUDE_DIR})
    list(REMOVE_DUPLICATES cresnet_cuda_includes)
    set_property(SOURCE cuda/collectives/nccl.c APPEND PROPERTY COMPILE_DEFINITIONS CR_WITH_NCCL=1)
    get_filename_component(nccl_dir ${NCCL_LIBRARY} DIRECTORY)
    if(NOT nccl_dir MATCHES "^/(usr/)?lib(64)?(/x86_64-linux-gnu)?$")
      list(APPEND CMAKE_BUILD_RPATH ${nccl_dir})
      list(APPEND CMAKE_INSTALL_RPATH ${nccl_dir})
    endif()
  elseif(CRESNET_WITH_NCCL STREQUAL "ON")
    message(FATAL_ERROR "CRESNET_WITH_NCCL=ON, but NCCL was not found: install libnccl-dev or the wheel nvidia-nccl-cu13, or set NCCL_ROOT")
  endif()
endif()
list(JOIN CMAKE_CUDA_ARCHITECTURES " " cuda_archs)
set(cresnet_cuda_state "${CUDAToolkit_VERSION}, cuDNN ${cuDNN_VERSION}, cuBLAS ${cublas_version}, cuRAND ${curand_version}, for ${cuda_archs}")
