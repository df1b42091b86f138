# program.cmake: the program cresnet, and a link to it for each command.
# What is installed has its debug information compressed: 8 instead of 15 MB of a program for the CPU.
include(CheckLinkerFlag)
check_linker_flag(C LINKER:--compress-debug-sections=zlib cresnet_compresses_debug)
set(cresnet_installed_links)
if(cresnet_compresses_debug AND NOT CRESNET_SANITIZE)
  set(cresnet_installed_links LINKER:--compress-debug-sections=zlib)
endif()

add_executable(cresnet src/cli/main.c)
target_link_libraries(cresnet PRIVATE cresnet_core)
target_link_options(cresnet PRIVATE ${cresnet_installed_links})
include(GNUInstallDirs)
# The program finds installed configurations relative to its own path (src/cli/common/installed.c).
file(RELATIVE_PATH cresnet_data_from_bin ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_DATADIR})
set_property(SOURCE src/cli/common/installed.c APPEND PROPERTY COMPILE_DEFINITIONS CR_DATA_FROM_BIN="${cresnet_data_from_bin}")
# `cresnet train` and `cresnet-train` are the same program; the links are in the same folder.
set(cresnet_commands train finetune sweep lr-find eval predict features explain report plan check bench profile prune compress quantize export data config help) # test_install.sh compares this list with the program
foreach(command ${cresnet_commands})
  add_custom_command(TARGET cresnet POST_BUILD COMMAND ${CMAKE_COMMAND} -E create_symlink cresnet cresnet-${command}
                     WORKING_DIRECTORY $<TARGET_FILE_DIR:cresnet>)
endforeach()
