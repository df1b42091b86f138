# wheel.cmake: what a Python wheel holds (pyproject.toml), in place of library.cmake and install.cmake. All files are in the folder of the
# package: the library, in which the program is too, so that the GPU code is stored once; the program's file, which only calls it; the header;
# the configurations; licences.
file(GLOB cresnet_api_sources CONFIGURE_DEPENDS src/api/*.c)
add_library(libcresnet SHARED ${cresnet_api_sources} src/cli/main.c)
target_include_directories(libcresnet PRIVATE src ${CMAKE_CURRENT_SOURCE_DIR})
set_property(SOURCE src/cli/main.c APPEND PROPERTY COMPILE_OPTIONS -Dmain=cresnet_main -fvisibility=default -Wno-missing-prototypes)
target_link_libraries(libcresnet PRIVATE cresnet_core)
set(cresnet_symbols ${PROJECT_SOURCE_DIR}/cmake/package/libcresnet.map)
target_link_options(libcresnet PRIVATE -Wl,--exclude-libs,ALL -Wl,--version-script=${cresnet_symbols} -Wl,-z,nodelete -Wl,--no-undefined
                    -Wl,--gc-sections -s)
# The runtime library of C++ is linked statically: the one of another machine may be older.
set_target_properties(libcresnet PROPERTIES LINKER_LANGUAGE C)
if(cresnet_cuda OR "${ONEDNN_LIBRARY}" MATCHES "[.]a$")
  set(CMAKE_C_STANDARD_LIBRARIES -l:libstdc++.a) # after all other libraries
endif()

add_executable(cresnet src/cli/wheel_main.c)
target_link_libraries(cresnet PRIVATE libcresnet)
target_link_options(cresnet PRIVATE -s)

# NVIDIA's wheels are siblings of the package in site-packages.
set(cresnet_run_path "$ORIGIN")
if(cresnet_cuda)
  list(APPEND cresnet_run_path "$ORIGIN/../nvidia/cu13/lib" "$ORIGIN/../nvidia/cudnn/lib" "$ORIGIN/../nvidia/nccl/lib")
endif()
set(cresnet_soversion ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
set_target_properties(libcresnet PROPERTIES OUTPUT_NAME cresnet VERSION ${cresnet_soversion} SOVERSION ${cresnet_soversion}
                      C_VISIBILITY_PRESET hidden LINK_DEPENDS ${cresnet_symbols})
set_target_properties(libcresnet cresnet PROPERTIES BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "${cresnet_run_path}")
# The program finds the configurations in ../cresnet/configs.
set_property(SOURCE src/cli/common/installed.c APPEND PROPERTY COMPILE_DEFINITIONS CR_DATA_FROM_BIN="..")

install(PROGRAMS $<TARGET_FILE:cresnet> $<TARGET_SONAME_FILE:libcresnet> DESTINATION .)
install(PROGRAMS python/console.py DESTINATION ${SKBUILD_SCRIPTS_DIR} RENAME cresnet)
install(FILES include/cresnet.h DESTINATION include)
install(DIRECTORY configs/ DESTINATION configs FILES_MATCHING PATTERN "*.ini")
foreach(prefix ${CMAKE_PREFIX_PATH}) # licences of what scripts/static-deps.sh has built
  install(DIRECTORY ${prefix}/licenses/ DESTINATION licenses OPTIONAL)
endforeach()
