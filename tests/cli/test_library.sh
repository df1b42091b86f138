#!/usr/bin/env bash
# test_library.sh: the installed shared library as other programs meet it: exported symbols, pkg-config and CMake, the examples in C, C++ and
# Python with trained and pruned networks, what it prints. Parts whose tool is not there are skipped.
. "$(dirname "$0")/../harness/support.sh"
build=$(dirname "$bin")
case ${CRESNET_SANITIZE:-} in ?*) skip "the library of a build with a sanitizer needs its runtime"; sum_up 77 ;; esac
if ! there cmake || ! [ -f "$build/libcresnet.so" ]; then skip "no cmake, or a build without the library"; sum_up 77; fi
holds "install" cmake --install "$build" --prefix "$work/prefix"
lib=$(dirname "$(find "$work/prefix" -name 'libcresnet.so' | head -1)")
version=$(sed -n 's/^Version: //p' "$lib/pkgconfig/cresnet.pc")
export LD_LIBRARY_PATH=$lib PKG_CONFIG_PATH=$lib/pkgconfig

# ---- symbols ----

declared=$(grep -o 'cresnet_[a-z0-9_]*(' "$work/prefix/include/cresnet.h" | tr -d '(' | sort -u)
if there nm; then
    is "exported symbols" "$(nm -D --defined-only "$lib/libcresnet.so" | sed -n 's/.* T \([^@]*\).*/\1/p' | sort)" "$declared"
    is "other symbols" "$(nm -D --defined-only "$lib/libcresnet.so" | grep -cv ' T cresnet_\| A CRESNET_')" 0
else skip "no nm"; fi
if there readelf; then
    has "soname" "$(readelf -d "$lib/libcresnet.so")" "[libcresnet.so.${version%.*}]"
else skip "no readelf"; fi

# ---- a trained and a pruned network ----

{ tiny_model; cat; } >net.ini <<INI
[data]
kind = shapes
root = $work/shapes
train_images = 80
val_images = 20

[train]
batch = 16
epochs = 1
device = cpu
INI
holds "train" "$bin" train net.ini -o run -q
holds "prune" "$bin" prune run --sparsity 0.5 -o pruned -q
images=$(ls shapes/val/*/00000.png | head -4)
first=$(echo "$images" | head -1)
echo none >none.png
mkdir pair && cp -r shapes/train/star shapes/train/circle pair/

# ---- C and C++ with pkg-config, C++ with CMake ----

cc=${CC:-cc} cxx=${CXX:-c++}
flags="$(pkg-config --cflags --libs cresnet 2>/dev/null)"
if there "$cc" && [ -n "$flags" ]; then
    for standard in c99 c17; do
        # shellcheck disable=SC2086
        holds "classify.c as $standard" "$cc" -std=$standard -pedantic -Wall -Wextra -Werror "$source_dir/examples/classify.c" $flags -o classify
    done
    for model in run run/last pruned; do
        # shellcheck disable=SC2086
        ./classify $model $images >c.txt 2>c.err
        is "classify $model: exit code" $? 0
        is "classify $model prints nothing else" "$(cat c.err)" ""
        is "classify $model: images" "$(grep -c '^shapes' c.txt)" 4
        "$bin" predict $model $first -k 3 2>/dev/null | sed -n 's/^ *\([0-9.]* %\).*/\1/p' >want.txt
        is "classify $model: probabilities as cresnet predict" "$(sed -n '2,4s/^ *\([0-9.]* %\).*/\1/p' c.txt)" "$(cat want.txt)"
    done
    "$bin" finetune pair --weights run -o two --epochs 1 --device cpu --threads 1 -q >/dev/null 2>&1
    is "a network with two classes" "$(./classify two "$first" 2>&1 | grep -c '%  class')" 2
    ./classify run none.png "$first" >c.txt 2>&1
    is "an image that cannot be read: exit code" $? 1
    is "an image that cannot be read: the other one is classified" "$(grep -c "^$first" c.txt)" 1
    ./classify nowhere "$first" >c.txt 2>&1
    is "no run: exit code" $? 1
    is "no run: message" "$(cat c.txt)" "input/output: nowhere: No such file or directory"
else skip "no C compiler or no pkg-config"; fi
if there "$cxx" && [ -n "$flags" ]; then
    # shellcheck disable=SC2086
    holds "features.cpp" "$cxx" -std=c++17 -Wall -Wextra -Werror "$source_dir/examples/features.cpp" $flags -o features
    # shellcheck disable=SC2086
    is "an image is most similar to itself" "$(./features run "$first" "$first" | cut -c1)" 1
    mkdir -p project
    cat >project/CMakeLists.txt <<CMAKE
cmake_minimum_required(VERSION 3.22)
project(outside CXX)
find_package(cresnet ${version%.*} REQUIRED)
add_executable(features $source_dir/examples/features.cpp)
target_link_libraries(features cresnet::cresnet)
CMAKE
    holds "find_package(cresnet)" cmake -S project -B project/build -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_CXX_STANDARD=17
    holds "a CMake project" cmake --build project/build
    # shellcheck disable=SC2086
    holds "its program" project/build/features run $images
else skip "no C++ compiler or no pkg-config"; fi

# ---- static libraries that no shared library can be linked with ----

static=$(realpath "$("$cc" -print-file-name=libpng.a)")
if [ -f "$static" ]; then
    linked=refused
    "$cc" -shared -o png.so -Wl,--whole-archive "$static" -Wl,--no-whole-archive -lz -lm 2>/dev/null && linked=accepted
    configure() { # configure WORD: with CRESNET_LIBRARY=WORD
        cmake -S "$source_dir" -B "static-$1" -DCRESNET_LIBRARY="$1" -DPNG_LIBRARY_RELEASE="$static" -DCRESNET_WITH_CUDA=OFF -DCRESNET_WITH_ONEDNN=OFF \
            -DCRESNET_WITH_CURL=OFF -DCRESNET_WITH_WEBP=OFF -DCRESNET_WITH_TIFF=OFF -DBUILD_TESTING=OFF >static.txt 2>&1
    }
    if [ $linked = refused ]; then
        configure AUTO; is "a static libpng: the program is built alone" $? 0
        has "a static libpng: why" "$(tr -s ' \n' ' ' <static.txt)" "libcresnet is not built: static libraries that are not position-independent cannot be linked into a shared library: $static"
        configure ON && fail "a static libpng: CRESNET_LIBRARY=ON is accepted" || pass
        has "a static libpng: ON" "$(tr -s ' \n' ' ' <static.txt)" "CRESNET_LIBRARY=ON, but static libraries that are not position-independent"
    else skip "the static libpng of this machine is position-independent"; fi
else skip "no static libpng"; fi

# ---- Python ----

if numpy_python=$(python_with numpy); then
    export PYTHONPATH=$source_dir/python PYTHONDONTWRITEBYTECODE=1
    # shellcheck disable=SC2086
    "$numpy_python" "$source_dir/examples/classify.py" run $images >py.txt 2>&1
    is "classify.py: exit code" $? 0
    is "classify.py: images" "$(grep -c '^shapes' py.txt)" 4
    "$numpy_python" "$source_dir/examples/classify.py" run none.png >py.txt 2>&1 && fail "classify.py: exit code of an unreadable image is 0" || pass
    "$numpy_python" "$source_dir/examples/classify.py" nowhere "$first" >py.txt 2>&1
    is "classify.py, no run" "$? $(cat py.txt)" "1 input/output: nowhere: No such file or directory"
    for other in libm.so.6 nowhere.so; do
        CRESNET_LIBRARY=$other "$numpy_python" -c 'import cresnet; cresnet.version()' >py.txt 2>&1
        has "CRESNET_LIBRARY=$other" "$(tail -1 py.txt)" "ImportError: $other "
    done
    holds "arrays and errors" "$numpy_python" "$source_dir/tests/cli/library_arrays.py" run "$first"
else skip "no NumPy"; fi
sum_up
