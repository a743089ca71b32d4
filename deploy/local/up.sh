#!/usr/bin/env bash
# Three NATS servers and three node agents on this machine, until Ctrl-C.
#   deploy/local/up.sh                 on loopback, ports 4222 to 4224
#   deploy/local/up.sh --namespaces    each pair in a network namespace of its own, joined by a bridge (root)
set -euo pipefail
cd "$(dirname "$0")/../.."

bridge=treadle0
subnet=10.88.0
namespaces=false
[[ "${1:-}" == "--namespaces" ]] && namespaces=true

find_server() {
  local cache="${XDG_CACHE_HOME:-$HOME/.cache}/treadle/nats-server"
  for path in "$(command -v nats-server || true)" "$cache/usr/sbin/nats-server" "$cache/usr/bin/nats-server"; do
    if [[ -x "$path" ]]; then
      echo "$path"
      return
    fi
  done
  echo "no nats-server here; install it, or on Debian without root:" >&2
  echo "  mkdir -p $cache && cd $cache && apt-get download nats-server && dpkg -x nats-server_*.deb ." >&2
  exit 2
}

server=$(find_server)
folder=$(mktemp -d -t treadle-local-XXXXXX)
pids=()

clean_up() {
  trap - EXIT INT TERM
  # Agents leave in order, and end their workers; servers go last.
  for pid in "${pids[@]:3}"; do kill "$pid" 2>/dev/null || true; done
  for pid in "${pids[@]:3}"; do wait "$pid" 2>/dev/null || true; done
  for pid in "${pids[@]:0:3}"; do kill "$pid" 2>/dev/null || true; done
  wait 2>/dev/null || true
  if $namespaces; then
    for i in 1 2 3; do ip netns delete "treadle-$i" 2>/dev/null || true; done
    ip link delete "$bridge" 2>/dev/null || true
  fi
  rm -rf "$folder"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

if $namespaces; then
  ip link add "$bridge" type bridge
  ip address add "$subnet.1/24" dev "$bridge"
  ip link set "$bridge" up
  for i in 1 2 3; do
    ip netns add "treadle-$i"
    ip link add "$bridge-$i" type veth peer name eth0 netns "treadle-$i"
    ip link set "$bridge-$i" master "$bridge" up
    ip -n "treadle-$i" address add "$subnet.1$i/24" dev eth0
    ip -n "treadle-$i" link set eth0 up
    ip -n "treadle-$i" link set lo up
  done
fi

host() { if $namespaces; then echo "$subnet.1$1"; else echo 127.0.0.1; fi; }
client_port() { if $namespaces; then echo 4222; else echo $((4221 + $1)); fi; }
inside() {
  local i=$1
  shift
  if $namespaces; then exec ip netns exec "treadle-$i" "$@"; else exec "$@"; fi
}

# Keys, and servers that admit only their holders.
servers=()
for i in 1 2 3; do servers+=(--server "$(host "$i"):$(client_port "$i")"); done
cluster="$folder/cluster"
node packages/cli/bin/treadle.js cluster init "$cluster" "${servers[@]}" >/dev/null

for i in 1 2 3; do
  inside "$i" "$server" -c "$cluster/nats-$i.conf" >"$folder/s$i.log" 2>&1 &
  pids+=($!)
done

# The servers elect who keeps what before they keep anything.
sleep 3

for i in 1 2 3; do
  inside "$i" node packages/cli/bin/treadle.js node --cluster "$cluster" --name "n$i" --bind "$(host "$i")" \
    --project "$PWD" 2>&1 &
  pids+=($!)
done

runner_bind=127.0.0.1
if $namespaces; then runner_bind="$subnet.1"; fi
cat <<EOF

in another terminal:
  npx treadle run workflows/reasoning-grpo --cluster $cluster --set cluster.minNodes=3 --set cluster.links.bind=$runner_bind
  npx treadle status --cluster $cluster

EOF
wait
