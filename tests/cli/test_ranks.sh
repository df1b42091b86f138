#!/usr/bin/env bash
# test_ranks.sh: training by several processes, as a user starts it: forked, or by launchers whose variables are set as they set
# them; and what happens when one of the processes dies, hangs or cannot start. Every case: everybody has ended in time, one clear
# message, no process, no memory and no port left. Ends with "N passed, N failed, N skipped".
#   CRESNET_SANITIZE  when set, times are not checked
#   RANKS_LAUNCHERS=yes   also starts by the real torchrun, mpirun.openmpi and mpiexec.hydra, where they are installed
. "$(dirname "$0")/../harness/support.sh"
. "$source_dir/tests/harness/ranks_support.sh"
(sleep 900; kill -9 $(pgrep -f -- "-o $work/")) >/dev/null 2>&1 & # what hangs is a failure, not a test that never ends
guard=$!
trap 'kill $guard; kill -9 $(ours) 2>/dev/null; rm -rf "$work"' EXIT

ours() { pgrep -f -- "-o $work/"; } # every process of a case has its run folder on its command line
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
shared_memory() { ls /dev/shm 2>/dev/null | grep -v "^cresnet-test-"; } # folders of test programs come and go
memory_before=$(shared_memory)

train() { timeout 600 "$bin" train net.ini -q "$@"; }

# cleanup NAME: nothing of the case is left
cleanup() {
    local i left
    for i in $(seq 600); do # however slow the machine is
        left=$(ours)
        [ -z "$left" ] && break
        sleep 0.1
    done
    is "$1: processes left" "$left" ""
    [ -z "$left" ] || kill -9 $left 2>/dev/null
    is "$1: shared memory left" "$(shared_memory)" "$memory_before"
}

# ---- the same run, however it is started ----

# env_ranks OUT TEMPLATE...: two ranks with the variables of a launcher, @R standing for the rank
env_ranks() {
    local out=$1 r pids=()
    shift
    for r in 1 0; do
        env "${@//@R/$r}" timeout 600 "$bin" train net.ini -q --steps 6 -o "$work/$out" 2>"$out.err$r" &
        pids+=($!)
    done
    rc=0
    for r in "${pids[@]}"; do wait "$r" || rc=$?; done
}

train --ranks 2 --steps 6 -o "$work/forked" 2>err || fail "forked: $(cat err)"
losses forked >want
is "forked: steps in the log" "$(wc -l <want)" 6
# launched NAME OUT TEMPLATE...: the same losses by env_ranks
launched() {
    local name=$1
    shift
    env_ranks "$@"
    is "$name" "$rc $(problems "$1".err*)" "0 "
    losses "$1" | cmp - want && pass || fail "$name: other losses"
}
launched "torchrun's variables" torch RANK=@R WORLD_SIZE=2 LOCAL_RANK=@R LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT="$(free_port)"
launched "two groups as two hosts" hosts RANK=@R WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 GROUP_RANK=@R MASTER_ADDR=localhost MASTER_PORT="$(free_port)"
launched "Open MPI's variables" ompi OMPI_COMM_WORLD_RANK=@R OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=@R OMPI_COMM_WORLD_LOCAL_SIZE=2 "PMIX_NAMESPACE=t$$"
launched "Slurm's variables" slurm SLURM_PROCID=@R SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=@R SLURM_JOB_ID=$$ SLURM_STEP_ID=0 SLURM_STEP_NODELIST=localhost
if [ "${RANKS_LAUNCHERS:-no}" = yes ]; then
    # -r 1 -t 1: torchrun 1.13 under Python 3.11 knows no other redirections
    for launcher in "torchrun --nproc_per_node 2 --master_port $(free_port) -r 1 -t 1 --no_python" "mpirun.openmpi --allow-run-as-root --oversubscribe -n 2" "mpiexec.hydra -n 2"; do
        name=${launcher%% *}
        command -v "$name" >/dev/null || { skip "$name is not installed"; continue; }
        timeout 600 $launcher "$bin" train net.ini -q --steps 6 -o "$work/$name" >err 2>&1 && losses "$name" | cmp - want && pass || fail "$name: $(tail -5 err)"
    done
fi
cleanup "launchers"

# ---- something dies ----

# start OUT ARGS...: forks three ranks and waits until they train; parent, child[0..2]
start() {
    local out=$1
    shift
    rm -rf "$work/$out"
    "$bin" train net.ini -q --ranks 3 -o "$work/$out" "$@" >"$out.err" 2>&1 &
    parent=$!
    await $parent grep '"event":"train"' "$out/log.jsonl"
    child=($(pgrep -P $parent))
    [ ${#child[@]} = 3 ] || fail "$out: ${#child[@]} ranks run"
    began=$(now)
}
# ended NAME OUT RC [TEXT]: the parent ends with RC, long before the time limits; with a TEXT there is one line, and it holds it
ended() {
    local name=$1 out=$2 want=$3 rc
    wait "$parent" 2>/dev/null
    rc=$?
    local took=$((($(now) - began) / 1000000))
    is "$name: exit code" "$rc" "$want"
    [ -n "${CRESNET_SANITIZE:-}" ] || [ $took -le 50000 ] && pass || fail "$name: took $took ms, the time limits of the ranks are 100 s"
    if [ $# -gt 3 ]; then
        is "$name: lines printed ($(cat "$out.err"))" "$(problems "$out.err" | wc -l)" 1
        case $(cat "$out.err") in *"$4"*) pass ;; *) fail "$name: lacks \"$4\": $(cat "$out.err")" ;; esac
    else
        is "$name: printed" "$(problems "$out.err")" ""
    fi
    cleanup "$name"
}

start killed; kill -9 "${child[1]}"; ended "kill -9 of rank 1" killed 1 "rank 1 of 3 on $(hostname) (process ${child[1]}) was killed by signal 9"
start first; kill -9 "${child[0]}"; ended "kill -9 of rank 0" first 1 "rank 0 of 3 on $(hostname) (process ${child[0]}) was killed by signal 9"
if [ -n "${CRESNET_SANITIZE:-}" ]; then skip "a crash: the sanitizer prints its own story"
else start crashed; kill -SEGV "${child[2]}"; ended "a crash of rank 2" crashed 1 "rank 2 of 3"; fi
start stopped ranks.timeout=2; kill -STOP "${child[2]}"; ended "SIGSTOP of rank 2" stopped 1 "rank 2 of 3 on $(hostname) (process ${child[2]}) has sent no heartbeat for"
start term; kill -TERM "${child[1]}"; ended "SIGTERM of one rank" term 143
is "SIGTERM of one rank: saved once" "$(ls -d term/step-* | wc -l) $(grep -c '"save"' term/log.jsonl)" "1 1"
start all; kill -TERM "$parent"; ended "SIGTERM of the parent" all 143
is "SIGTERM of the parent: saved once" "$(ls -d all/step-* | wc -l)" 1
start twice; kill -INT "$parent"; kill -INT "$parent"; ended "SIGINT twice" twice 130
start usr1; kill -USR1 "${child[0]}"; await $parent compgen -G "usr1/step-*"; began=$(now); is "SIGUSR1: saved" "$(ls -d usr1/step-* | wc -l)" 1; kill -INT "$parent"; ended "SIGUSR1, then SIGINT" usr1 130
start orphans; kill -9 "$parent"; ended "kill -9 of the parent" orphans 137
is "kill -9 of the parent: the ranks saved" "$(ls -d orphans/step-* | wc -l)" 1
start paused ranks.timeout=3; kill -TSTP "$parent"; sleep 7; kill -CONT "$parent"; sleep 0.5; kill -TERM "$parent"; ended "all stopped for longer than the time-out, then continued" paused 143

# with a launcher that does not care: the ranks end each other
lone() { # OUT GROUP...: two ranks by torchrun's variables, as one host or as two
    local out=$1 r
    shift
    port=$(free_port)
    for r in 0 1; do
        env RANK=$r WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT="$port" "${@//@R/$r}" "$bin" train net.ini -q -o "$work/$out" $limit 2>"$out.err$r" &
        rank[r]=$!
    done
    await "${rank[0]}" [ -s "$out/log.jsonl" ]
}
for how in KILL STOP; do
    for groups in GROUP_RANK=0 GROUP_RANK=@R; do
        limit=
        [ $how = KILL ] || limit=ranks.timeout=2
        lone "lone$how$groups" $groups
        kill -$how "${rank[1]}"; began=$(now)
        wait "${rank[0]}"; rc=$?
        holds "no parent, $how, $groups: long before the time limits" [ $((($(now) - began) / 1000000)) -le 50000 ]
        [ $groups = GROUP_RANK=0 ] || [ $how = KILL ] || kill -9 "${rank[1]}" # on another host nobody could end it
        wait "${rank[1]}" 2>/dev/null
        is "no parent, $how, $groups" "$rc $(cat "lone$how$groups".err* | grep -c 'rank 1 of 2')" "1 1"
        cleanup "no parent, $how, $groups"
    done
done

# ---- a start that cannot succeed: test_comm has the other reasons ----

limit=
lone good GROUP_RANK=0
good=("${rank[@]}")
for r in 0 1; do
    env RANK=$r WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT="$port" TORCHELASTIC_RUN_ID=none "$bin" train net.ini -q ranks.port="$port" -o "$work/bad" 2>"bad.err$r" &
    rank[r]=$!
done
for r in 0 1; do wait "${rank[r]}" && fail "a second job on the same port: rank $r: exit code 0" || pass; done
is "a second job on the same port: $(cat bad.err*)" "$(cat bad.err* | grep -c -- "is in use, perhaps by another job\|already has all its 2 ranks\|belongs to another job")" 2
kill -TERM "${good[1]}"
wait "${good[0]}"; is "the first job goes on, and ends on a signal" $? 143
cleanup "a second job on the same port"
python3 -c "import socket; s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(('127.0.0.1', $port))" && pass || fail "port $port is still taken"

# ---- the command line ----

line() { # NAME RC TEXT ARGS...
    local name=$1 want=$2 text=$3 rc
    shift 3
    timeout 600 "$bin" train net.ini -q -o "$work/line" "$@" >line.err 2>&1
    rc=$?
    is "$name" "$rc $(grep -c -- "$text" line.err)" "$want 1"
}
line "--gpus on the CPU" 2 "ranks N starts N processes on the CPU" --gpus 2 --device cpu
line "--gpus and --ranks" 2 "give one of them" --gpus 2 --ranks 2
line "--ranks 0" 2 "integer" --ranks 0
line "an error of all ranks is printed once" 2 "batch = 4: 12 images per update" --ranks 3 data.train_images=8
line "an error during training is printed once" 1 "not finite" --ranks 3 optim.lr=1000 optim.weight_decay=10
RANK=0 WORLD_SIZE=2 MASTER_PORT=1 line "--ranks under a launcher" 2 "has already started 2 ranks" --ranks 2
RANK=0 WORLD_SIZE=2 line "no MASTER_PORT" 2 "MASTER_PORT is not" 

sum_up
