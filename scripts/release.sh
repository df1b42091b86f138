#!/usr/bin/env bash
# release.sh [DIR]: makes all files of a release in DIR (build/release): the source package, both wheels, the Debian package, an archive of
# `cmake --install`, checksums and the notes. Needs Debian 12, a clean work tree and, for the GPU code, an hour. Nothing is published.
#   CRESNET_RELEASE_CUDA=no   without the wheel for GPUs
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
. scripts/deps.sh
out=$(realpath -m "${1:-build/release}")
version=$(sed -n 's/^project(cresnet VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
fail() { echo "release.sh: $*" >&2; exit 1; }
scripts/check-version.py >/dev/null || fail "the files disagree about the version: scripts/check-version.py"
[ -z "$(git status --porcelain)" ] || fail "the work tree has changes that are not committed: git status"
rm -rf "$out"
mkdir -p "$out"

# ---- wheels and the source package ----
rm -rf build/wheel/dist
scripts/build-wheel.sh cpu
[ "${CRESNET_RELEASE_CUDA:-}" = no ] || scripts/build-wheel.sh cuda
cp build/wheel/dist/* "$out/"

# ---- the Debian package, and the same files as an archive ----
need_packages $debian_packages dpkg-dev file
build_target="cresnet libcresnet pages library_page" build build/release-deb -DCMAKE_INSTALL_PREFIX=/usr -DCMAKE_BUILD_TYPE=Release -DBUILD_TESTING=OFF -DCRESNET_WITH_CUDA=OFF
(cd build/release-deb && cpack -G DEB && cpack -G TXZ) >build/release-deb/cpack.log
cp build/release-deb/*.deb build/release-deb/*.tar.xz "$out/"
if command -v lintian >/dev/null; then lintian --fail-on error,warning "$out"/*.deb; else echo "lintian is not installed: the package was not checked"; fi

# ---- notes: the entry of the changelog, what each file is, checksums ----
{
    echo "# cresnet $version"
    echo
    awk -v head="## [$version]" 'index($0, head) == 1 { on = 1; next } /^## \[/ { on = 0 } on' CHANGELOG.md
    echo "## Files"
    echo
    echo "| file | bytes | for |"
    echo "|---|---:|---|"
    (cd "$out" && for file in *; do
        case $file in
        cresnet_cpu-*.whl) purpose="pip, without GPU code" ;;
        cresnet-*.whl) purpose="pip, with code for NVIDIA GPUs: \`pip install --find-links . \"cresnet[cuda13]\"\`" ;;
        *.deb) purpose="Debian 12, without GPU code" ;;
        *.tar.xz) purpose="the files of the Debian package, for any folder" ;;
        *.tar.gz) purpose="the source package for pip" ;;
        *) continue ;;
        esac
        echo "| \`$file\` | $(stat -c %s "$file") | $purpose |"
    done)
} >build/release-notes.md
mv build/release-notes.md "$out/NOTES.md"
(cd "$out" && sha256sum -- * >SHA256SUMS && sha256sum --check --quiet SHA256SUMS)
ls -l "$out"
