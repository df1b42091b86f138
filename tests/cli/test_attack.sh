#!/usr/bin/env bash
# test_attack.sh: a sample of the cases of scripts/attack-test.py, and a test that its rules notice a program that breaks them.
. "$(dirname "$0")/../harness/support.sh"
there python3 || { skip "no python3"; sum_up 77; }

attack() { python3 "$source_dir/scripts/attack-test.py" "$@" >said.txt 2>&1; rc=$?; } # the last lines count the cases

if [ -z "${CRESNET_SANITIZE:-}" ]; then # a sanitizer changes which limits a program can start with
    attack --program "$bin" --plain "$bin" --every 43
    if [ $rc = 0 ]; then pass; else fail "a sample of the cases: $(cat said.txt)"; fi
    has "a sample of the cases: number" "$(tail -1 said.txt)" " 0 failed"
fi

# ---- a program that breaks one rule in each of these cases ----
cat >broken <<END
#!/usr/bin/env bash
case "\$1 \$3" in
"plan data.image_size=1") kill -SEGV \$\$ ;;
"plan data.prefetch=64") exit 3 ;;
"plan data.pad=64") exit 1 ;;
"plan data.val_images=1") echo "cresnet plan: one" >&2; echo "cresnet plan: two" >&2; exit 1 ;;
"plan data.train_images=1") echo "==1==ERROR: AddressSanitizer: heap-use-after-free" >&2; exit 0 ;;
"plan data.train_images=3") printf '\033[31m'; exit 0 ;;
"plan data.mixup=1000") printf '\377' >&2; exit 0 ;;
"plan data.erase=1") touch out.tmp.12; exit 0 ;;
"plan data.jitter=1,1,1,1") cat ../outside/victim.txt; exit 0 ;;
"plan data.ratio=0.01,100") cat ../outside/victim.txt >stolen; exit 0 ;;
"plan data.workers=1024") echo >>../outside/victim.txt; exit 0 ;;
esac
exec "$bin" "\$@"
END
chmod +x broken
attack --program ./broken --only "configuration: the extreme data.*" --jobs 1
is "a broken program: exit code" $rc 1
noticed() { # SETTING MESSAGE
    has "$1: noticed" "$(grep -A4 "^FAIL configuration: the extreme $1 " said.txt)" "$2"
}
noticed data.image_size=1 "exit code -11"
noticed data.prefetch=64 "exit code 3"
noticed data.pad=64 "0 error messages"
noticed data.val_images=1 "2 error messages"
noticed data.train_images=1 "report: ERROR: AddressSanitizer"
noticed data.train_images=3 "stdout has the control character"
noticed data.mixup=1000 "stderr is no UTF-8"
noticed data.erase=1 "leaves ["
noticed data.jitter=1,1,1,1 "stdout shows a foreign file"
noticed data.ratio=0.01,100 "stolen has the text of a foreign file"
noticed data.workers=1024 "changes ["
is "the other cases pass" "$(grep -c ^FAIL said.txt)" 11
sum_up
