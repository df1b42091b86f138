# Toolchain file: compiles for 64-bit ARM with Debian's cross compiler, and runs tests with qemu-user. scripts/cross-arm.sh uses it.
#   CRESNET_ARM_ROOT  folder with unpacked Debian packages for arm64 (libpng, libjpeg, iniparser, oneDNN); its folder emulated/ is the
#                     root of the emulated system (scripts/cross-arm.sh)
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES CRESNET_ARM_ROOT)

set(arm_libraries ${CRESNET_ARM_ROOT}/usr/lib/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH ${CRESNET_ARM_ROOT} /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_C_FLAGS_INIT "-isystem ${CRESNET_ARM_ROOT}/usr/include/aarch64-linux-gnu")
set(CMAKE_EXE_LINKER_FLAGS_INIT "-Wl,-rpath-link,${arm_libraries}")
set(CMAKE_SHARED_LINKER_FLAGS_INIT "-Wl,-rpath-link,${arm_libraries}")

set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L ${CRESNET_ARM_ROOT}/emulated)
