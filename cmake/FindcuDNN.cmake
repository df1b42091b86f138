# FindcuDNN.cmake: NVIDIA's cuDNN from a system package, an unpacked archive or a pip wheel.
#
# Searches these places in order: cuDNN_ROOT, CUDNN_ROOT, CUDNN_PATH (CMake variable, then environment); the CUDA toolkit
# (CUDAToolkit_TARGET_DIR); cudnn/ next to the toolkit, where wheels have it; the wheels of $VIRTUAL_ENV; $CONDA_PREFIX; the
# system. The header is found first and defines the version. The library must belong to the same installation as the header,
# otherwise programs fail at run time. Wheels have libcudnn.so.9 only, no libcudnn.so.
#
# Sets cuDNN_FOUND, cuDNN_VERSION, cuDNN_INCLUDE_DIR, cuDNN_LIBRARY; target cuDNN::cuDNN. It needs CUDA's headers.
include(${CMAKE_CURRENT_LIST_DIR}/nvidia_hints.cmake)
nvidia_hints(cudnn_hints cudnn cuDNN_ROOT CUDNN_ROOT CUDNN_PATH)

find_path(cuDNN_INCLUDE_DIR cudnn_version.h HINTS ${cudnn_hints} PATH_SUFFIXES include)
set(cuDNN_VERSION)
if(cuDNN_INCLUDE_DIR)
  nvidia_version(cuDNN_VERSION ${cuDNN_INCLUDE_DIR}/cudnn_version.h CUDNN_MAJOR CUDNN_MINOR CUDNN_PATCHLEVEL)
  string(REGEX MATCH "^[0-9]+" cudnn_major "${cuDNN_VERSION}")
  nvidia_library(cuDNN_LIBRARY ${cuDNN_INCLUDE_DIR} cudnn libcudnn.so.${cudnn_major})
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(cuDNN REQUIRED_VARS cuDNN_LIBRARY cuDNN_INCLUDE_DIR VERSION_VAR cuDNN_VERSION)
mark_as_advanced(cuDNN_INCLUDE_DIR cuDNN_LIBRARY)
if(cuDNN_FOUND AND NOT TARGET cuDNN::cuDNN)
  add_library(cuDNN::cuDNN UNKNOWN IMPORTED)
  set_target_properties(cuDNN::cuDNN PROPERTIES IMPORTED_LOCATION ${cuDNN_LIBRARY}
                        INTERFACE_INCLUDE_DIRECTORIES ${cuDNN_INCLUDE_DIR})
endif()
