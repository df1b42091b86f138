# library.cmake: the shared library libcresnet with its files for pkg-config and CMake. include/cresnet.h is its interface.
set(CRESNET_LIBRARY AUTO CACHE STRING "The shared library libcresnet: AUTO, ON, OFF")
if(CRESNET_LIBRARY STREQUAL "OFF")
  return()
endif()

# Debian's static libraries can be linked into programs only: they are not position-independent.
include(CheckCSourceCompiles)
set(CMAKE_REQUIRED_FLAGS -fPIC)
set(CMAKE_REQUIRED_LINK_OPTIONS -shared -Wl,--exclude-libs,ALL)
set(CMAKE_REQUIRED_LIBRARIES PNG::PNG JPEG::JPEG ${INIPARSER_LIBRARY} m)
check_c_source_compiles("
  void *png_create_read_struct(void), *jpeg_std_error(void), *iniparser_load(void);
  int main(void) { return !png_create_read_struct() + !jpeg_std_error() + !iniparser_load(); }" cresnet_links_shared)
unset(CMAKE_REQUIRED_FLAGS)
unset(CMAKE_REQUIRED_LINK_OPTIONS)
unset(CMAKE_REQUIRED_LIBRARIES)
if(NOT cresnet_links_shared)
  set(cresnet_libraries ${PNG_LIBRARIES} ${JPEG_LIBRARIES} ${INIPARSER_LIBRARY})
  list(FILTER cresnet_libraries INCLUDE REGEX "[.]a$")
  list(JOIN cresnet_libraries ", " cresnet_libraries)
  set(cresnet_advice "static libraries that are not position-independent cannot be linked into a shared library: ${cresnet_libraries}.\n"
                     "Give libraries of scripts/static-deps.sh or shared ones, or -DCRESNET_LIBRARY=OFF")
  if(NOT CRESNET_LIBRARY STREQUAL "AUTO")
    message(FATAL_ERROR "CRESNET_LIBRARY=${CRESNET_LIBRARY}, but " ${cresnet_advice})
  endif()
  message(WARNING "libcresnet is not built: " ${cresnet_advice})
  return()
endif()

file(GLOB cresnet_api_sources CONFIGURE_DEPENDS src/api/*.c)
add_library(libcresnet SHARED ${cresnet_api_sources})
target_include_directories(libcresnet PRIVATE src ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(libcresnet PRIVATE cresnet_core)
set(cresnet_symbols ${PROJECT_SOURCE_DIR}/cmake/package/libcresnet.map)
# nodelete: after a programming error, threads of the model wait in the code of the library until the process ends.
target_link_options(libcresnet PRIVATE -Wl,--exclude-libs,ALL -Wl,--version-script=${cresnet_symbols} -Wl,-z,nodelete
                    ${cresnet_installed_links})
if(NOT CRESNET_SANITIZE) # the runtime of a sanitizer comes with the program
  target_link_options(libcresnet PRIVATE -Wl,--no-undefined)
endif()
# Before 1.0.0 a new minor version may change the interface, so the soname contains it.
set_target_properties(libcresnet PROPERTIES OUTPUT_NAME cresnet VERSION ${PROJECT_VERSION}
                      SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR} C_VISIBILITY_PRESET hidden
                      LINK_DEPENDS ${cresnet_symbols})

include(CMakePackageConfigHelpers)
file(RELATIVE_PATH cresnet_include_from_pc ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_FULL_INCLUDEDIR})
configure_file(cmake/package/cresnet.pc.in cresnet.pc @ONLY)
configure_file(cmake/package/cresnet-config.cmake.in cresnet-config.cmake @ONLY)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/cresnet-config-version.cmake COMPATIBILITY SameMinorVersion)
install(TARGETS libcresnet LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES include/cresnet.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY examples DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "*.c" PATTERN "*.cpp" PATTERN "*.py")
install(FILES python/README.md DESTINATION ${CMAKE_INSTALL_DATADIR}/cresnet/python)
install(DIRECTORY python/cresnet DESTINATION ${CMAKE_INSTALL_DATADIR}/cresnet/python FILES_MATCHING PATTERN "*.py" PATTERN "py.typed"
        PATTERN "page.*" PATTERN "curves.js" PATTERN "__pycache__" EXCLUDE)
install(FILES ${PROJECT_BINARY_DIR}/cresnet.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES ${PROJECT_BINARY_DIR}/cresnet-config.cmake ${PROJECT_BINARY_DIR}/cresnet-config-version.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/cresnet)

find_program(GZIP_PROGRAM gzip)
if(GZIP_PROGRAM)
  add_custom_command(OUTPUT ${PROJECT_BINARY_DIR}/cresnet.3.gz DEPENDS packaging/cresnet.3 VERBATIM COMMENT "Man page cresnet(3)"
                     COMMAND ${GZIP_PROGRAM} -9nc ${PROJECT_SOURCE_DIR}/packaging/cresnet.3 > ${PROJECT_BINARY_DIR}/cresnet.3.gz)
  add_custom_target(library_page ALL DEPENDS ${PROJECT_BINARY_DIR}/cresnet.3.gz)
  install(FILES ${PROJECT_BINARY_DIR}/cresnet.3.gz DESTINATION ${CMAKE_INSTALL_MANDIR}/man3)
else()
  install(FILES packaging/cresnet.3 DESTINATION ${CMAKE_INSTALL_MANDIR}/man3)
endif()
