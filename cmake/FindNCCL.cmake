# FindNCCL.cmake: NVIDIA's NCCL from a system package, an unpacked archive or a pip wheel. Searches the places
# that FindcuDNN.cmake searches, with NCCL_ROOT and NCCL_PATH.
#
# Sets NCCL_FOUND, NCCL_VERSION, NCCL_INCLUDE_DIR, NCCL_LIBRARY; target NCCL::NCCL. It needs CUDA's headers.
include(${CMAKE_CURRENT_LIST_DIR}/nvidia_hints.cmake)
nvidia_hints(nccl_hints nccl NCCL_ROOT NCCL_PATH)

find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${nccl_hints} PATH_SUFFIXES include)
set(NCCL_VERSION)
if(NCCL_INCLUDE_DIR)
  nvidia_version(NCCL_VERSION ${NCCL_INCLUDE_DIR}/nccl.h NCCL_MAJOR NCCL_MINOR NCCL_PATCH)
  string(REGEX MATCH "^[0-9]+" nccl_major "${NCCL_VERSION}")
  nvidia_library(NCCL_LIBRARY ${NCCL_INCLUDE_DIR} nccl libnccl.so.${nccl_major})
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NCCL REQUIRED_VARS NCCL_LIBRARY NCCL_INCLUDE_DIR VERSION_VAR NCCL_VERSION)
mark_as_advanced(NCCL_INCLUDE_DIR NCCL_LIBRARY)
if(NCCL_FOUND AND NOT TARGET NCCL::NCCL)
  add_library(NCCL::NCCL UNKNOWN IMPORTED)
  set_target_properties(NCCL::NCCL PROPERTIES IMPORTED_LOCATION ${NCCL_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${NCCL_INCLUDE_DIR})
endif()
