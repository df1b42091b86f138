#!/usr/bin/env bash
# test_install.sh: what `cmake --install` and the Debian package put into place, as somebody meets it who has nothing else: programs
# from PATH that find their configurations, man pages that open without a warning, completion in bash and zsh, docs/reference/config.md
# as the program would write it. Parts whose tool (man, zsh, dpkg) is not there are skipped.
. "$(dirname "$0")/../harness/support.sh"
build=$(dirname "$bin")

# ---- cmake --install, then moved: nothing may depend on where it was put first ----
if ! there cmake || ! [ -f "$build/cmake_install.cmake" ]; then echo "no cmake here"; exit 77; fi
holds "install" cmake --install "$build" --prefix "$work/first"
mv "$work/first" "$work/prefix"
prefix=$work/prefix
mkdir "$work/empty" && cd "$work/empty" || exit 1
PATH=$prefix/bin:$PATH
is "the program on PATH" "$(command -v cresnet)" "$prefix/bin/cresnet"
commands=$(cresnet help | sed -n 's/^  \([a-z-]*\)  .*/\1/p' | grep -v '^cresnet$' | sort | tr '\n' ' ')
links=$(cd "$prefix/bin" && ls -d cresnet-* | sed 's/cresnet-//' | sort | tr '\n' ' ')
is "a link for each command" "$links" "$commands"
few="data.train_images=64 data.val_images=16 train.batch=16 --steps 2 --device cpu"
said=$(cresnet-train demo.ini $few 2>&1); is "cresnet-train demo.ini" $? 0
has "the installed configuration is named" "$said" "using the installed $prefix/share/cresnet/configs/demo.ini"
holds "its run folder" test -f checkpoints/demo/last/model.safetensors
said=$(cresnet train configs/demo.ini -o second $few 2>&1); is "configs/demo.ini" $? 0
said=$(cresnet plan resnet50.ini --json 2>/dev/null); has "an installed configuration for plan" "$said" '"peak_bytes"'
said=$(cresnet plan cifar10-resnet56.ini --json 2>/dev/null); has "... that includes another" "$said" '"peak_bytes"'
said=$(cresnet train demmo.ini 2>&1); is "neither here nor installed" $? 2
has "neither here nor installed" "$said" "demmo.ini: no such file"
mkdir here && printf '[train]\nbatch = oops\n' >here/demo.ini
said=$(cd here && cresnet train demo.ini 2>&1); is "a file here comes first" $? 2
has "a file here comes first" "$said" "demo.ini:2"
is "cresnet config" "$(cresnet config | wc -l)" "$(ls "$source_dir"/configs/*.ini | wc -l)"
case $(cresnet --version | sed -n 's/^CUDA .*, for //p') in
*unoptimised* | *" "*) skip "the size of a program for one capability" ;;
*) holds "at most 25 MB" [ "$(stat -c %s "$prefix/bin/cresnet")" -le 25000000 ] ;;
esac
doc=$prefix/share/doc/cresnet
for file in README.md docs/reference/config.md copyright examples/classify.c examples/features.cpp examples/classify.py; do holds "documentation" test -s "$doc/$file"; done

for file in cresnet/__init__.py cresnet/py.typed README.md; do holds "the Python package" test -f "$prefix/share/cresnet/python/$file"; done
if with_numpy=$(python_with numpy); then
    is "the installed module" "$(PYTHONPATH=$prefix/share/cresnet/python PYTHONDONTWRITEBYTECODE=1 LD_LIBRARY_PATH=$(dirname "$(find "$prefix" -name libcresnet.so | head -1)") \
        "$with_numpy" -c 'import cresnet; print(cresnet.version())' 2>&1)" "$(cresnet --version | awk '/^cresnet / { print $2 }')"
else skip "no NumPy"; fi

# ---- libraries that are missing ----
said=$(cmake -S "$source_dir" -B "$work/none" -DCRESNET_WITH_CUDA=OFF -DBUILD_TESTING=OFF -DCMAKE_DISABLE_FIND_PACKAGE_PNG=ON -DCMAKE_DISABLE_FIND_PACKAGE_JPEG=ON 2>&1)
is "cmake without libraries" $? 1
has "the packages are named, all at once" "$(tr -s ' \n' ' ' <<<"$said")" "apt-get install libpng-dev libjpeg62-turbo-dev (README.md"

# ---- scripts/demo.sh builds all that is installed ----
if there ninja && [ -f "$build/build.ninja" ]; then
    targets=$(sed -n 's/^build_target="\([^"]*\)" build .*/\1/p' "$source_dir/scripts/demo.sh")
    # shellcheck disable=SC2086
    ninja -C "$build" -t commands $targets >built 2>&1
    for file in $(grep -o "\"$build/[^\"\$]*\"" "$build/cmake_install.cmake" | tr -d '"' | sort -u); do
        case $file in *.pc | *.cmake) continue ;; esac # written by cmake -B
        [ -L "$file" ] || holds "scripts/demo.sh builds ${file##*/}" grep -qF -e "${file%.gz}" -e "-o ${file##*/}" built
    done
else skip "no ninja here"; fi

# ---- man pages ----
if there man && there groff; then
    for page in cresnet.1 cresnet.ini.5 $(for c in $commands; do echo "cresnet-$c.1"; done); do
        file=$(ls "$prefix/share/man/man${page##*.}/$page"* 2>/dev/null)
        if [ -z "$file" ]; then fail "no man page $page"; continue; fi
        text=$(MANWIDTH=200 man --warnings -l "$file" 2>"$work/warned" | cat); code=$?
        [ -s "$work/warned" ] && fail "$page: $(head -3 "$work/warned")"
        [ $code -eq 0 ] && has "$page" "$text" "${page%.*} - "
    done
    text=$(MANWIDTH=200 man -l "$prefix"/share/man/man1/cresnet-train.1* | cat)
    for option in $(cresnet train --help | grep -o -- '^  .\{4\}--[a-z-]*' | grep -o -- '--.*'); do has "cresnet-train(1)" "$text" "$option"; done
    keys=$(cresnet help keys | grep -c '^  [a-z_0-9]* = ')
    is "keys in cresnet.ini(5)" "$(MANWIDTH=80 man -l "$prefix"/share/man/man5/cresnet.ini.5* | grep -c '^ \{7\}[a-z_0-9]* =')" "$keys"
else skip "man pages: no man here"; fi

# ---- completion ----
. "$prefix/share/bash-completion/completions/cresnet-train"
replies() { COMP_LINE=$1 COMP_POINT=${#1} COMPREPLY=(); _cresnet; echo "${COMPREPLY[*]}"; }
is "bash: a command" "$(replies 'cresnet tr')" "train"
is "bash: an option" "$(replies 'cresnet train --res')" "--resume"
is "bash: an option's words" "$(replies 'cresnet train --device ')" "auto cpu cuda"
is "bash: ... behind =" "$(replies 'cresnet train --device=cu')" "cuda"
is "bash: its words" "$(replies 'cresnet train x.ini optim.nesterov=')" "yes no"
is "bash: a part of a command" "$(replies 'cresnet bench st')" "step"
is "bash: ... or a file" "$(cd "$work" && mkdir -p verified && replies 'cresnet data ver')" "verify verified"
is "bash: options of the program" "$(replies 'cresnet --v')" "--version"
is "bash: patterns" "$(replies 'cresnet prune --pattern ')" "auto channels 2:4 block unstructured channel"
is "bash: the shell keeps the text before a colon" "$(replies 'cresnet prune --pattern 2:')" "4"
is "bash: a GPU" "$(replies 'cresnet plan --target a1')" "a100"
# Every option whose words the program checks has the same words in the completion: the message about a wrong word lists them.
cp "$source_dir/configs/demo.ini" words.ini
for typed in "plan words.ini --which" "plan words.ini --after" "profile words.ini --which" "profile words.ini --order" "eval words.ini --split" \
    "check words.ini --devices" "prune words.ini --target-ms 1 -o P --pattern" "prune words.ini --sparsity 0.5 -o P --pattern" \
    "prune words.ini --scope" "prune words.ini --importance" "plan words.ini --target" "train words.ini --device"; do
    said=$(cresnet $typed nosuchword 2>&1); is "$typed: a wrong word" $? 2
    words=$(replies "cresnet $typed ")
    [ -n "$words" ] || fail "$typed: no words"
    for word in $words; do has "$typed: $word" "$said" "$word"; done
    # Each word of the message is completed.
    for word in $(sed -n 's/.*\(must be one of\|choose from\|unknown device [a-z]* (\\|known are\) *\([^;)]*\).*/\2/p' <<<"$said" | head -1 | tr -d ','); do
        case " $words or " in *" $word "*) pass ;; *) fail "$typed: $word is not completed" ;; esac
    done
done
is "bash: files are left to the shell" "$(replies 'cresnet train con')" ""
if there zsh; then
    holds "zsh" zsh -n "$prefix/share/zsh/vendor-completions/_cresnet"
    said=$(zsh -fc 'fpath=("$1" $fpath); autoload -Uz compinit; compinit -u -d "$2"; print $_comps[cresnet] $_comps[cresnet-train]' \
        zsh "$prefix/share/zsh/vendor-completions" "$work/dump" 2>&1)
    is "zsh: who completes" "$said" "_cresnet _cresnet"
    cat >"$work/keys.zsh" <<'ZSH'
zmodload zsh/zpty
export TERM=dumb
zpty z zsh -f -i
zpty -w z "PROMPT=; fpath=($1 \$fpath); autoload -Uz compinit; compinit -u -d $2; echo re''ady"
zpty -r z out '*ready*'
zpty -w -n z "$3"$'\t'
zpty -r z out "*$4*" && [[ $out != *"bad option"* ]] && print completed
ZSH
    for typed in 'cresnet train --resume au/--resume auto ' 'cresnet bench inf/bench infer ' 'cresnet prune --pattern 2/--pattern 2:4 ' 'cresnet eval --weights resnet34/--weights resnet34 ' 'cresnet help fine/help finetune '; do
        is "zsh: $typed" "$(cd "$work/empty" && timeout 600 zsh -f "$work/keys.zsh" "$prefix/share/zsh/vendor-completions" "$work/dump" \
            "${typed%/*}" "${typed#*/}" 2>&1)" completed
    done
else skip "no zsh here"; fi
said=$(cresnet help completion fish 2>&1); is "fish" $? 2; has "fish" "$said" "fish_update_completions"

# ---- docs/reference/config.md ----
if cresnet help markdown | cmp -s - "$source_dir/docs/reference/config.md"; then pass; else
    fail "docs/reference/config.md is out of date: cresnet help markdown > docs/reference/config.md"; fi

# ---- the package ----
if [ -n "${CRESNET_SANITIZE:-}" ] || ! there cpack || ! there dpkg-shlibdeps; then skip "the package: not built here"; sum_up; fi
holds "cpack" cpack -G DEB --config "$build/CPackConfig.cmake" -B "$work/package"
deb=$(ls "$work"/package/cresnet_*.deb 2>/dev/null)
[ -n "$deb" ] || { fail "no package"; sum_up; }
fields=$(dpkg-deb -f "$deb")
for needed in libc6 libpng libjpeg libiniparser; do has "what the package depends on" "$fields" "$needed"; done
dpkg-deb -x "$deb" "$work/root"
said=$("$work/root/usr/bin/cresnet-plan" demo.ini --json 2>/dev/null); has "the packaged program" "$said" '"peak_bytes"'
is "nothing outside /usr" "$(ls "$work/root")" usr
for file in LICENSE THIRD_PARTY_NOTICES.md CHANGELOG.md SECURITY.md copyright changelog.gz; do
    holds "$file in the package" test -s "$work/root/usr/share/doc/cresnet/$file"
done
dpkg-deb -e "$deb" "$work/control"
has "programs that link the library depend on the package" "$(cat "$work/control/shlibs" 2>/dev/null)" \
    "libcresnet $(cresnet --version | awk '/^cresnet / { sub(/\.[0-9]+$/, "", $2); print $2 }') cresnet (>= "
is "the library is found after the installation" "$(cat "$work/control/triggers" 2>/dev/null)" "activate-noawait ldconfig"
is "the version of the package" "$(dpkg-deb -f "$deb" Version)" "$(cresnet --version | awk '/^cresnet / { print $2 }')"
has "the licence in --version" "$(cresnet --version)" "MIT, Copyright"
holds "no maintainer script: the trigger runs ldconfig" test ! -e "$work/control/postinst" -a ! -e "$work/control/postrm"
# Each file is in the package once; other names of a program or a library are links.
is "files that are in the package twice" "$(find "$work/root" -type f -size +0 -exec sha256sum {} + | awk 'seen[$1]++ { print $2 }')" ""
for command in $commands; do is "cresnet-$command in the package" "$(readlink "$work/root/usr/bin/cresnet-$command")" cresnet; done
is "links to the library" "$(find "$work/root" -name 'libcresnet.so*' -type l | wc -l) $(find "$work/root" -name 'libcresnet.so*' -type f | wc -l)" "2 1"
# dpkg-gencontrol(1): files are rounded up to KiB, everything else counts 1 KiB.
installed=$(find "$work/root" -mindepth 1 -type f -printf '%s\n' | awk '{ kib += int(($1 + 1023) / 1024) } END { print kib }')
is "Installed-Size" "$(dpkg-deb -f "$deb" Installed-Size)" "$((installed + $(find "$work/root" -mindepth 1 ! -type f | wc -l)))"
is "owners in the package" "$(dpkg-deb -c "$deb" | awk '{ print $2 }' | sort -u)" root/root
# A build with CUDA finds its toolkit's libraries by a path of their own.
if there lintian; then
    lintian --allow-root "$deb" >tags 2>/dev/null
    is "lintian's errors" "$(grep '^E:' tags | grep -v 'custom-library-search-path RUNPATH .*cuda')" ""
    is "lintian on ldconfig" "$(grep ldconfig tags)" ""
else skip "no lintian here"; fi
sum_up
