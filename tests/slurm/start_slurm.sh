#!/usr/bin/env bash
# Idempotent one-machine Slurm for tests: root, no systemd, no cgroups, fake GPUs.
#   start_slurm.sh [start|stop|status|env]
# Knobs (environment):
#   SLURM_T_DIR   state dir              (default /tmp/slurm-test; must be short, absolute)
#   SLURM_T_NODES virtual nodes          (default 1;  N>1 starts N slurmd with -N gpuNN)
#   SLURM_T_GPUS  fake GPUs per node     (default 8)
#   SLURM_T_CPUS  pretended CPUs/node    (default 64; may exceed the real count)
#   SLURM_T_PORT  first TCP port         (default 26817: slurmctld; slurmd = +1 .. +N)
# Global effects: apt packages if missing, and a '127.0.0.1 gpuNN' line in /etc/hosts. Clients find the cluster through SLURM_CONF (see 'env').
set -euo pipefail
D=${SLURM_T_DIR:-/tmp/slurm-test}; NODES=${SLURM_T_NODES:-1}; GPUS=${SLURM_T_GPUS:-8}
CPUS=${SLURM_T_CPUS:-64}; PORT=${SLURM_T_PORT:-26817}; H=$(hostname -s 2>/dev/null || hostname)
export SLURM_CONF=$D/etc/slurm.conf
MUNGE_SOCK=$D/munge/munge.socket
cmd=${1:-start}

names() { for i in $(seq 0 $((NODES-1))); do printf 'gpu%02d\n' "$i"; done; }
# a zombie (nobody reaps in a container without init) still answers kill -0, its cmdline is empty; a reused pid is not ours
alive() { [ -s "$1" ] && tr '\0' ' ' 2>/dev/null < "/proc/$(cat "$1")/cmdline" | grep -qE 'slurm|munged'; } 2>/dev/null

stop() {
  if alive "$D/run/slurmctld.pid"; then      # let jobs end first: a slurmstepd that cannot report outlives its slurmd
    timeout 5 scancel -u root 2>/dev/null || true
    end=$((SECONDS+15)); while [ $SECONDS -lt $end ] && timeout 5 squeue -h 2>/dev/null | grep -q .; do sleep .2; done
  fi
  for p in "$D"/run/slurmd-*.pid "$D"/run/slurmctld.pid "$D"/munge/munged.pid; do
    alive "$p" && kill "$(cat "$p")" || true
  done
  for _ in $(seq 50); do
    any=0; for p in "$D"/run/*.pid "$D"/munge/munged.pid; do alive "$p" && any=1; done
    [ $any = 0 ] && break; sleep .1
  done
}

case $cmd in
  env)    echo "export SLURM_CONF=$SLURM_CONF"; exit 0 ;;
  stop)   stop; exit ;;
  status) scontrol ping; sinfo -N -o '%N %T %c %m %G'; exit ;;
  start)  ;;
  *) echo "usage: $0 [start|stop|status|env]" >&2; exit 2 ;;
esac

if ! command -v slurmctld >/dev/null || ! command -v munged >/dev/null; then
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq && apt-get install -y -qq --no-install-recommends slurm-wlm munge >/dev/null
fi
if alive "$D/run/slurmctld.pid" && timeout 5 scontrol ping 2>/dev/null | grep -q 'is UP'; then
  echo "slurm already up: eval \"\$($0 env)\""; exit 0
fi
stop || true
rm -rf "$D/state" "$D/log"
mkdir -p "$D"/{etc,run,log,state,munge,dev} ; for n in $(names); do mkdir -p "$D/spool/$n"; done
# munged refuses a socket/key/log dir writable by group/other anywhere up its path unless --force
chmod 755 "$D" "$D/munge"

# torch.distributed / submitit use the Slurm node NAME as MASTER_ADDR: it must resolve
for n in $(names); do getent hosts "$n" >/dev/null || echo "127.0.0.1 $n" >> /etc/hosts; done

# --- munge: own key, own socket (no /run/munge, no /etc/munge needed) ---------------------------
[ -s "$D/munge/munge.key" ] || ( umask 077; head -c 128 /dev/urandom > "$D/munge/munge.key" )
chmod 400 "$D/munge/munge.key"
munged --force --num-threads=2 --key-file="$D/munge/munge.key" --socket="$MUNGE_SOCK" \
  --pid-file="$D/munge/munged.pid" --log-file="$D/munge/munged.log" --seed-file="$D/munge/seed" 2>>"$D/log/munged.err"

# --- config ------------------------------------------------------------------------------------
MEM=$(awk '/MemTotal/{print int($2/1024)}' /proc/meminfo)
cat > "$D/etc/slurm.conf" <<CONF
ClusterName=fake
SlurmctldHost=$H(127.0.0.1)
SlurmctldPort=$PORT
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$MUNGE_SOCK,cred_expire=5   # 5 s: a requeued job waits this long (default 120 s!)
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc=$D/log/jobcomp.txt
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal   # >= 23.02: PreemptParameters=send_user_signal
MailProg=/bin/true
JobRequeue=1
ReturnToService=2
KillWait=5
MinJobAge=300
InactiveLimit=0
SlurmctldTimeout=30
SlurmdTimeout=300
SlurmdParameters=config_overrides
StateSaveLocation=$D/state
SlurmdSpoolDir=$D/spool/%n
SlurmctldPidFile=$D/run/slurmctld.pid
SlurmdPidFile=$D/run/slurmd-%n.pid
SlurmctldLogFile=$D/log/slurmctld.log
SlurmdLogFile=$D/log/slurmd-%n.log
SlurmctldDebug=info
SlurmdDebug=info
CONF
i=0; for n in $(names); do i=$((i+1))
  echo "NodeName=$n NodeHostname=$H NodeAddr=127.0.0.1 Port=$((PORT+i)) CPUs=$CPUS Boards=1 SocketsPerBoard=1 CoresPerSocket=$CPUS ThreadsPerCore=1 RealMemory=$MEM Gres=gpu:h100:$GPUS State=UNKNOWN" >> "$D/etc/slurm.conf"
done
cat >> "$D/etc/slurm.conf" <<CONF
PartitionName=gpu  Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO PriorityTier=1 PreemptMode=REQUEUE GraceTime=10
PartitionName=high Nodes=ALL Default=NO  MaxTime=INFINITE State=UP OverSubscribe=NO PriorityTier=10 PreemptMode=OFF
CONF
# Fake devices: gres needs File= (distinct, existing) for CUDA_VISIBLE_DEVICES to be set.
: > "$D/etc/gres.conf"
for g in $(seq 0 $((GPUS-1))); do
  [ -e "$D/dev/fakegpu$g" ] || mknod "$D/dev/fakegpu$g" c 1 3 2>/dev/null || : > "$D/dev/fakegpu$g"
done
echo "Name=gpu Type=h100 File=$D/dev/fakegpu[0-$((GPUS-1))]" > "$D/etc/gres.conf"
echo "CgroupAutomount=no" > "$D/etc/cgroup.conf"

# --- daemons -----------------------------------------------------------------------------------
slurmctld -c -f "$SLURM_CONF" >>"$D/log/slurmctld.out" 2>&1
for n in $(names); do slurmd -N "$n" -f "$SLURM_CONF" >>"$D/log/slurmd-$n.out" 2>&1; done
end=$((SECONDS+30))
while [ $SECONDS -lt $end ]; do
  [ "$(timeout 5 sinfo -h -N -p gpu -t idle -o %N 2>/dev/null | sort -u | wc -l)" = "$NODES" ] && {
    echo "slurm up: eval \"\$($0 env)\""; exit 0; }
  sleep .1
done
echo "slurm did not come up; see $D/log" >&2; tail -n 20 "$D"/log/* >&2; exit 1
