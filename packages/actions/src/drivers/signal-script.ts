/**
 * Signals processes and their descendants, with `orphans` those of its user that have lost their parents as well, but for one
 * that is spared, and prints how many it found.
 */
export const signalScript = `
signal=$1; orphans=$2; hit=" $3 "; spared=$4; again=1
while [ $again = 1 ]; do
  again=0
  for folder in /proc/[0-9]*; do
    pid=\${folder#/proc/}
    case "$hit" in *" $pid "*) continue ;; esac
    [ -O "$folder" ] && read -r line 2>/dev/null < "$folder/stat" || continue
    set -- \${line##*) }
    [ "$1" = Z ] || [ "$pid" = "$spared" ] && continue
    case "$hit" in
      *" $2 "*) ;;
      *) [ $orphans = 1 ] && [ "$2" = 1 ] || continue ;;
    esac
    hit="$hit$pid "
    again=1
  done
done
count=0
for pid in $hit; do kill -$signal $pid 2>/dev/null && count=$((count+1)); done
echo $count
`;
