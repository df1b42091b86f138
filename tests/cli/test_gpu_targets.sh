#!/usr/bin/env bash
# test_gpu_targets.sh: the GPUs that the GPU code is compiled for (cmake/cuda_targets.cmake), with the lists of architectures
# of several toolkits, and the presets. The list of CUDA 12.4, the oldest toolkit, is what its assembler accepts.
. "$(dirname "$0")/../harness/support.sh"
there cmake || { skip "no cmake"; sum_up 77; }

old="compute_50 compute_52 compute_53 compute_60 compute_61 compute_62 compute_70 compute_72 compute_75 compute_80 compute_86 compute_87
compute_89 compute_90" # 12.4
middle="$old compute_100 compute_101 compute_120" # 12.8
new="compute_75 compute_80 compute_86 compute_87 compute_88 compute_89 compute_90 compute_100 compute_110 compute_103 compute_120 compute_121"

cat >targets.cmake <<EOF
include($source_dir/cmake/cuda_targets.cmake)
cuda_targets("\${what}" "\${known}" "\${gpus}" archs error)
message("\${archs}|\${error}")
EOF
# targets NAME WHAT KNOWN GPUS EXPECTED
targets() {
    got=$(cmake "-Dwhat=$2" "-Dknown=$3" "-Dgpus=$4" -P targets.cmake 2>&1)
    case $got in
    "$5"*) pass ;;
    *) fail "$1: \"$got\" does not begin with \"$5\"" ;;
    esac
}

targets "default" DEFAULT "$old" "" "80-real;90-real;90-virtual|"
targets "release, CUDA 12.4" RELEASE "$old" "" "80-real;86-real;89-real;90-real;90-virtual|"
targets "release, CUDA 12.8" RELEASE "$middle" "" "80-real;86-real;89-real;90-real;100-real;120-real;90-virtual|"
targets "release, CUDA 13.0" RELEASE "$new" "" "80-real;86-real;89-real;90-real;100-real;120-real;90-virtual|"
targets "native" NATIVE "$new" "8.9;8.9" "89-real|"
targets "native, two kinds" NATIVE "$new" "9.0;12.0" "90-real;120-real|"
targets "native, newer than the toolkit" NATIVE "$old" "12.0" "90-virtual|"
targets "native, too old" NATIVE "$new" "7.5" "|CRESNET_CUDA_TARGETS=NATIVE: this machine's GPU has compute capability 7.5; 8.0 is the minimum"
targets "native, no GPU" NATIVE "$new" "" "|CRESNET_CUDA_TARGETS=NATIVE, but nvidia-smi shows no GPU"
targets "emulate" EMULATE "$new" "" "80-virtual|"
targets "unknown" all "$new" "" "|CRESNET_CUDA_TARGETS = all: must be DEFAULT, RELEASE, NATIVE or EMULATE"

# CMake itself accepts the presets.
(cd "$source_dir" && cmake --list-presets) >presets.txt 2>&1
for preset in cpu release native emulate; do
    has "preset $preset" "$(cat presets.txt)" "\"$preset\""
done
sum_up
